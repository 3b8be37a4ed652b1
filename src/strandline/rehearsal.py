"""What a workload asks of an object store in a year: its calls are rehearsed in memory, counted, and multiplied.

What grows with the repository is computed, by how ranges and nodes are cut: a commit reads and writes each range that
it touches, and on each level the nodes above them. Shards have a rehearsal of their own (`shards.cost`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache

from strandline.errors import UsageError
from strandline.ids import new_id
from strandline.lake import open_lake
from strandline.redaction import SecretUrl
from strandline.repository.repository import Repository
from strandline.settings import Settings
from strandline.shards.cost import YEAR_S, Bill, Prices, yearly
from strandline.shards.log.metering import Count, Meter, MeteredBlobs
from strandline.tree.chunking import MEAN_ROWS
from strandline.tree.levels import FLAT_MAX, MEAN_CHILDREN

DAY_S = 86_400
PAGE_KEYS = 1_000
"""What a store lists in one request."""
ENTRY_BYTES = 20
PART_BYTES = 236
"""Of an object in a range's file, and of a range in its node, as docs/scale.md has measured them."""
Requests = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is done with a repository.

    Attributes:
        objects, object_bytes: that it holds, and how large they are.
        commits_per_day, objects_per_commit: objects that are put, at places of the tree that have nothing in common.
        reads_per_day: of whole objects, by processes that know the tree.
        lists_per_day: of a folder within a range, by processes that begin.
        merges_per_day: of a branch with one commit.
        collections_per_day: of garbage.
        days: for which commits are kept.
    """

    objects: int = 1_000_000
    object_bytes: float = 1e6
    commits_per_day: float = 100
    objects_per_commit: int = 10
    reads_per_day: float = 10_000
    lists_per_day: float = 1_000
    merges_per_day: float = 10
    collections_per_day: float = 1
    days: float = 30

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{one.name} is a finite number that is not negative; got {value!r}.")
        if not self.objects or not self.objects_per_commit:
            raise UsageError("There is at least one object, in the repository and in a commit.")


def day_of(workload: Workload) -> dict[str, Count]:
    """The requests of a day, by kind."""
    unit = _units()
    touched = _touched(workload.objects, workload.objects_per_commit)
    path = _touched(workload.objects, 1)
    total: Counter[str] = Counter()

    def add(times: float, requests: Requests) -> None:
        for kind, each in requests.items():
            total[kind] += round(each * times)

    more_objects = {"blob put": workload.objects_per_commit - 1.0}
    more_files = {kind: sum(touched) - 1.0 for kind in ("blob get", "blob put")}
    for requests in (unit["commit"], more_objects, more_files):
        add(workload.commits_per_day, requests)
    add(workload.reads_per_day, unit["read"])
    add(workload.lists_per_day, unit["list"])
    add(workload.lists_per_day, {"blob get": sum(path) - 1.0})
    add(workload.merges_per_day, unit["merge"])
    add(workload.merges_per_day, {kind: 2 * (sum(path) - 1.0) for kind in ("blob get", "blob put")})
    new_files = workload.commits_per_day * (sum(touched) + workload.objects_per_commit)
    ranges = workload.objects / MEAN_ROWS + workload.commits_per_day * touched[0] * workload.days
    add(workload.collections_per_day, {"blob list": (workload.objects + new_files * workload.days) / PAGE_KEYS})
    add(workload.collections_per_day, {"blob get": ranges})
    return {kind: Count(requests) for kind, requests in sorted(total.items()) if requests}


def stored_bytes(workload: Workload) -> int:
    """What lies in the object store: the objects, and the metadata of the commits that are kept."""
    touched, *nodes = _touched(workload.objects, workload.objects_per_commit)
    of_a_commit = touched * ENTRY_BYTES * MEAN_ROWS + sum(nodes) * PART_BYTES * MEAN_CHILDREN
    kept = workload.commits_per_day * workload.days
    put = kept * workload.objects_per_commit * workload.object_bytes
    return round(workload.objects * (workload.object_bytes + ENTRY_BYTES) + put + kept * of_a_commit)


def workload_bill(workload: Workload, prices: Prices | None = None) -> Bill:
    """What a year of it costs, with what is stored on average."""
    day = day_of(workload)
    year = {kind: Count(round(count.requests * YEAR_S / DAY_S)) for kind, count in day.items()}
    return yearly(year, YEAR_S, prices, stored_bytes=stored_bytes(workload))


def _touched(objects: int, changes: int) -> list[float]:
    """How many ranges some scattered changes touch, and how many nodes on each level above them, on average."""
    parts = max(1.0, objects / MEAN_ROWS)
    found = [_distinct(parts, changes)]
    while parts > FLAT_MAX:
        parts /= MEAN_CHILDREN
        found.append(_distinct(parts, changes))
    return found


def _distinct(places: float, times: int) -> float:
    """How many of some places are met when one is chosen so many times."""
    return places * -math.expm1(times * math.log1p(-1 / places)) if places > 1 else 1.0


@cache
def _units() -> Mapping[str, Requests]:
    """The requests of each call, in a small repository."""
    name = f"rehearsal-{new_id()}"
    settings = Settings(
        kv=SecretUrl(f"memory://{name}"), blob=f"memory://{name}", committer="rehearsal", compaction=False
    )
    with open_lake(settings, create=True) as lake, open_lake(settings) as other:
        repository = lake.repository("rehearsal", create=True)
        main = repository.branch("main")
        meter = _metered(repository)
        for number in range(PAGE_KEYS):
            main.put(f"folder/{number:04}", b"object")
        main.commit("objects")
        beginner = other.repository("rehearsal")

        def commit() -> None:
            main.put("folder/new", new_id().encode())
            main.commit("one object")

        commit()  # the first one after many reads a compacted tree
        side = main.create_branch("side")
        side.put("folder/side", b"object")
        side.commit("to be merged")
        return {
            "commit": _counted(meter, commit),
            "read": _counted(meter, lambda: main.read("folder/0500")),
            "merge": _counted(meter, lambda: main.merge("side")),
            "list": _counted(_metered(beginner), lambda: list(beginner.branch("main").list("folder/0"))),
        }


def _metered(repository: Repository) -> Meter:
    """Counts from now on what a handle asks of its object store."""
    meter = Meter()
    core = repository._core
    core.resolver.namespace = core.stores.trees.blobs = MeteredBlobs(core.resolver.namespace, meter)
    return meter


def _counted(meter: Meter, action: Callable[[], object]) -> Requests:
    before = meter.counts
    action()
    return {kind: float(now.requests - before.get(kind, Count()).requests) for kind, now in meter.counts.items()}
