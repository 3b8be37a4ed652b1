"""What shards cost in a year: requests counted or rehearsed, times a table of prices.

The question behind it: what can a user do that makes the bill ten times as large without storing more? Split
one source into ten: each batch of each shard is a request of its own, however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import msgspec
import pyarrow as pa

from strandline.background import Background
from strandline.clock import SystemClock
from strandline.errors import UsageError
from strandline.ids import new_id
from strandline.kv.memory import MemoryStore
from strandline.shards.catalog import Services, ShardCatalog
from strandline.shards.handles.open_shard import POLL_FIRST_S, POLL_MAX_S, POLL_SHARE
from strandline.shards.log.metering import Count
from strandline.shards.rows.batches import PART_TARGET_BYTES
from strandline.shards.shard import Shard
from strandline.shards.state.transitions import INLINE_MAX_BYTES
from strandline.shards.upkeep.upkeep import maintain

YEAR_S = 365 * 86_400
REHEARSED_APPENDS = 512
MAINTAINED_EVERY = 8
KINDS = {"blob put": "put", "blob list": "put", "blob get": "get", "blob head": "get", "blob delete": "delete"}
"""What object stores charge a kind of call as; listing costs what writing does."""


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars. The defaults are Amazon's list prices for S3 Standard in us-east-1; a database of one's own has none.

    Attributes:
        put, get, delete, consensus: of a thousand requests.
        gigabyte_month: of a gigabyte stored for a month.
    """

    put: float = 0.005
    get: float = 0.0004
    delete: float = 0.0
    consensus: float = 0.0
    gigabyte_month: float = 0.023


@dataclass(frozen=True, slots=True)
class Item:
    """A line of a bill: a kind of call, or "storage", for a year."""

    kind: str
    requests: int
    dollars: float


@dataclass(frozen=True, slots=True)
class Bill:
    """What a year costs."""

    items: tuple[Item, ...]

    @property
    def dollars(self) -> float:
        """What it all costs, in US dollars."""
        return sum(item.dollars for item in self.items)

    @property
    def requests(self) -> int:
        """How many requests it all takes."""
        return sum(item.requests for item in self.items)


def yearly(counts: Mapping[str, Count], seconds: float, prices: Prices | None = None, *, stored_bytes: int = 0) -> Bill:
    """The bill of a year that goes on like some seconds did.

    Args:
        counts: as `shard.counts` tells them, of those seconds.
        stored_bytes: that are there all the year.

    Raises:
        UsageError: the time is not positive.
    """
    if not seconds > 0:
        raise UsageError(f"seconds must be more than 0; got {seconds!r}.")
    price = prices or Prices()
    items = []
    for kind, count in counts.items():
        requests = round(count.requests * YEAR_S / seconds)
        each = getattr(price, KINDS.get(kind, "consensus"))
        items.append(Item(kind, requests, requests * each / 1_000))
    if stored_bytes:
        items.append(Item("storage", 0, stored_bytes / 1e9 * price.gigabyte_month * 12))
    return Bill(tuple(items))


@dataclass(frozen=True, slots=True)
class Plan:
    """Sources that are written to shards, each to one of its own.

    Attributes:
        sources: how many.
        bytes_per_s: that each writes.
        every_s: how long a batch is collected.
        listeners: that follow each shard from processes of their own.
    """

    sources: int = 1
    bytes_per_s: float = 1e6
    every_s: float = 1.0
    listeners: int = 0

    def __post_init__(self) -> None:
        if self.sources < 1 or self.bytes_per_s < 0 or self.every_s <= 0 or self.listeners < 0:
            raise UsageError("There is at least one source, and a batch takes some time.")
        if not math.isfinite(self.bytes_per_s) or not math.isfinite(self.every_s):
            raise UsageError("Rates and times are finite numbers.")


def rehearsed(plan: Plan) -> dict[str, Count]:
    """The requests of a year of a plan."""
    parts = max(1, -(-int(plan.bytes_per_s * plan.every_s) // PART_TARGET_BYTES))
    appends = plan.sources * YEAR_S / plan.every_s
    found = {}
    for kind, each in _per_append(plan.bytes_per_s * plan.every_s < INLINE_MAX_BYTES).items():
        factor = parts if kind in ("blob put", "blob get", "blob delete") else 1
        found[kind] = Count(round(each * appends * factor), 0)
    if plan.listeners:
        polls = plan.sources * plan.listeners / min(POLL_MAX_S, max(plan.every_s / POLL_SHARE, POLL_FIRST_S))
        reads = plan.sources * plan.listeners * parts / plan.every_s
        found["consensus scan"] = _plus(found, "consensus scan", polls)
        found["blob get"] = _plus(found, "blob get", reads)
    return found


@cache
def _per_append(is_inline: bool) -> dict[str, float]:
    """How many requests of each kind an append leads to, with all upkeep: from a rehearsal in memory.

    Args:
        is_inline: its batches are so small that they lie in the state until they are merged.
    """
    shard = _rehearsal()
    if not is_inline:
        shard._machine.place.inline_max_bytes = 0
    before = shard.counts
    rows = pa.table({"row": list(range(1_000))})
    with shard.writer() as writer:
        for at in range(REHEARSED_APPENDS):
            writer.compare_and_append(rows, at, at + 1)
            if at % MAINTAINED_EVERY == 0:
                maintain(shard._machine)
    after = shard.counts
    shard.retire()
    return {
        kind: (count.requests - before.get(kind, Count()).requests) / REHEARSED_APPENDS for kind, count in after.items()
    }


def _plus(counts: Mapping[str, Count], kind: str, per_s: float) -> Count:
    return Count(counts.get(kind, Count()).requests + round(per_s * YEAR_S), 0)


def plan_bill(plan: Plan, prices: Prices | None = None) -> Bill:
    """What a plan costs in a year: requests, and the storage of what is written in it, half of it on average."""
    stored = round(plan.sources * plan.bytes_per_s * YEAR_S / 2)
    return yearly(rehearsed(plan), YEAR_S, prices, stored_bytes=stored)


@dataclass(slots=True)
class _Still:
    """Nothing runs beside a rehearsal."""

    started: list[tuple[str, ...]] = field(default_factory=list)

    def start(self, key: tuple[str, ...], job: object) -> None:
        self.started.append(key)

    def pause(self, seconds: float) -> bool:
        return True


def _rehearsal() -> Shard:
    from strandline.blob import open_store  # noqa: PLC0415 - only a rehearsal needs it

    background: Background = _Still()
    catalog = ShardCatalog(
        MemoryStore(),
        b"rehearsal",
        open_store(f"memory://rehearsal-{new_id()}"),
        SystemClock(),
        "rehearsal",
        background,
        lambda name: (_rehearsal, ()),
        Services(runs_upkeep=False),
    )
    return catalog.get("rehearsal", pa.schema([("row", pa.int64())]))
