"""The shards of a repository by their names."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.background import Background
from strandline.blob.store import BlobStore
from strandline.clock import Clock, Microseconds
from strandline.envelope import decode, encode
from strandline.errors import Advice, AlreadyExists, InvalidName, SchemaMismatch, ShardNotFound, UsageError
from strandline.forks import survives_forks
from strandline.ids import new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.shards.deciding.machine import Machine, Place
from strandline.shards.deciding.service import ServiceRoute, ShardService, Upkeep
from strandline.shards.log.blob_consensus import BlobConsensus
from strandline.shards.log.consensus import Consensus
from strandline.shards.log.kv_consensus import KvConsensus
from strandline.shards.log.metering import Meter, MeteredBlobs, MeteredConsensus
from strandline.shards.rows.codec import CODECS, JsonCodec, check_schema, deserialised, serialised
from strandline.shards.shard import Shard
from strandline.shards.state.state import ShardId, State
from strandline.shards.state.transitions import initial
from strandline.shards.upkeep.upkeep import Heartbeats, is_due, maintain

ConsensusKind = Literal["kv", "blob"]
FOLDER = "shards"
"""In the repository's storage namespace: the blobs of shards, each in a folder of its own."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


class ShardRecord(msgspec.Struct, frozen=True):
    """What a name stands for; the record of a deleted one stays, since only a swap can tell whose name it is."""

    id: ShardId
    name: str
    consensus: ConsensusKind
    created_at: Microseconds
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Services:
    """Which processes decide on shards and compact them.

    Attributes:
        repository: the name by which other processes know it.
        decides: decides the commands of all shards; None to swap in this process.
        compacts: compacts and collects when it is asked to; None to do so in this process.
        runs_upkeep: whether that is done beside the callers of this process.
    """

    repository: str = ""
    decides: ShardService | None = None
    compacts: ShardService | None = None
    runs_upkeep: bool = True


class ShardCatalog:
    """Finds, makes and deletes shards. Safe to share between threads.

    Args:
        partition: of the names and of the logs.
        reopen: makes the handle of a name in another process, from nothing secret.
    """

    def __init__(
        self,
        kv: Store,
        partition: bytes,
        blobs: BlobStore,
        clock: Clock,
        host: str,
        background: Background,
        reopen: Callable[[str], tuple[Callable[..., Any], tuple[Any, ...]]],
        services: Services,
    ) -> None:
        self._kv = kv
        self._names = partition + b"/names"
        self._blobs = blobs
        self._clock = clock
        self._host = host
        self._background = background
        self._reopen = reopen
        self._services = services
        self._consensus: dict[ConsensusKind, Consensus] = {
            "kv": KvConsensus(kv, partition + b"/logs"),
            "blob": BlobConsensus(blobs, f"{FOLDER}/_logs"),
        }
        self._heartbeats = Heartbeats(background, partition.decode(), clock)
        self._open: dict[ShardId, Shard] = {}
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def get(
        self,
        name: str,
        schema: pa.Schema | None = None,
        *,
        key: Sequence[str] | None = None,
        codec: str = "columns",
        consensus: ConsensusKind = "kv",
    ) -> Shard:
        """A shard; made with the schema if there is none of that name."""
        check_shard_name(name)
        record = self._record(name)
        if record is None:
            if schema is None and codec in CODECS and codec != JsonCodec.name:
                raise ShardNotFound(
                    f"There is no shard {name!r}.",
                    next="`strandline shard list REPOSITORY` shows them; a schema makes one.",
                )
            # judged before anything is written: a name without a shard would be in everybody's way
            self._first(ShardRecord(ShardId(""), name, check_kind(consensus), 0), schema, key, codec)
            record = self._named(ShardRecord(ShardId(new_id()), name, check_kind(consensus), self._clock.now_us()))
        shard = self._opened(record)
        state = shard._machine.find()
        if state is None:
            state = shard._machine.create(self._first(record, schema, key, codec))
        if schema is not None or (codec != state.codec and codec != "columns"):
            _refuse_another(state, schema, key, codec, name)
        return shard

    def _first(self, record: ShardRecord, schema: pa.Schema | None, key: Sequence[str] | None, codec: str) -> State:
        if codec not in CODECS:
            raise UsageError(f"{codec!r} is not a codec.", next=f"There are {', '.join(CODECS)}.")
        if schema is None:
            if codec != JsonCodec.name:
                raise ShardNotFound(f"The shard {record.name!r} was never finished being made.", next="Give a schema.")
            schema, key = JsonCodec.SCHEMA, ("key",)
        return initial(record.id, record.name, codec, serialised(*check_schema(schema, key)))

    def exists(self, record: ShardRecord) -> bool:
        """Whether a shard was made, and not only named by a process that died then."""
        return self._opened(record)._machine.find() is not None

    def list(self) -> Iterator[ShardRecord]:
        """All names of shards."""
        for _, raw in self._kv.scan(self._names):
            record: ShardRecord = decode(ShardRecord, raw, "a shard")
            if not record.is_deleted:
                yield record

    def delete(self, name: str) -> None:
        """End a shard and free its name."""
        raw, record = self._read(check_shard_name(name))
        if raw is None or record is None or record.is_deleted:
            raise ShardNotFound(f"There is no shard {name!r}.", next="`strandline shard list REPOSITORY` shows them.")
        shard = self._opened(record)
        if shard._machine.find() is not None:
            shard.retire()
        try:
            self._kv.set_if(self._names, name.encode(), encode(replace(record, is_deleted=True)), raw)
        except PredicateFailed:
            return  # somebody else deleted it at the same time; the name may be another shard's by now
        with self._lock:
            self._open.pop(record.id, None)

    def _record(self, name: str) -> ShardRecord | None:
        record = self._read(name)[1]
        return None if record is None or record.is_deleted else record

    def _read(self, name: str) -> tuple[bytes | None, ShardRecord | None]:
        raw = self._kv.get(self._names, name.encode())
        return raw, None if raw is None else decode(ShardRecord, raw, f"shard {name!r}")

    def _named(self, record: ShardRecord) -> ShardRecord:
        """Take a name; of two callers that do at once, both get the same shard."""
        raw, held = self._read(record.name)
        if held is not None and not held.is_deleted:
            return held
        try:
            self._kv.set_if(self._names, record.name.encode(), encode(record), ABSENT if raw is None else raw)
        except PredicateFailed:
            found = self._record(record.name)
            if found is None:
                raise AlreadyExists(
                    f"The shard {record.name!r} was made and deleted by somebody else during the call."
                ) from None
            return found
        return record

    def _opened(self, record: ShardRecord) -> Shard:
        with self._lock:
            shard = self._open.get(record.id)
            if shard is None:
                meter = Meter()
                place = Place(
                    record.id,
                    MeteredConsensus(self._consensus[record.consensus], meter),
                    MeteredBlobs(self._blobs, meter),
                    f"{FOLDER}/{record.id}",
                    self._clock,
                    self._host,
                )
                machine = Machine(place)
                if self._services.decides is not None:
                    machine.route = ServiceRoute(self._services.decides, self._services.repository, record.name)
                if self._services.runs_upkeep:
                    machine.changed = self._upkeep_of(machine, record.name)
                shard = Shard(record.name, machine, self._heartbeats, meter, self._reopen(record.name))
                self._open[record.id] = shard
            return shard

    def _upkeep_of(self, machine: Machine, name: str) -> Callable[[State], None]:
        service = self._services.compacts
        wanted = Upkeep(self._services.repository, name, machine.place.shard)

        def run() -> None:
            if service is None or not service.maintain(wanted):
                maintain(machine)

        def changed(state: State) -> None:
            if is_due(state):
                self._background.start(("shard", state.shard), run)

        return changed


def check_shard_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a shard name.",
            next="Use 1 to 128 letters, digits, '-', '_' and '.', starting with a letter, a digit or '_'.",
        )
    return name


def check_kind(consensus: ConsensusKind) -> ConsensusKind:
    if consensus not in get_args(ConsensusKind):
        raise UsageError(f"consensus is 'kv' or 'blob', not {consensus!r}.")
    return consensus


def _refuse_another(state: State, schema: pa.Schema | None, key: Sequence[str] | None, codec: str, name: str) -> None:
    """Demand that a shard is what its user takes it for: the codec, and one of its schemas."""
    if codec != state.codec:
        raise SchemaMismatch(
            f"The shard {name!r} has the codec {state.codec!r}, not {codec!r}.", next=f"Open it with {state.codec!r}."
        )
    if schema is None:
        return
    if serialised(*check_schema(schema, key)) in state.schemas.values():
        return
    held, held_key = deserialised(state.schemas[state.schema_id])
    described = ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in held)
    raise SchemaMismatch(
        f"The shard {name!r} has another schema: {described}; key {', '.join(held_key)}.",
        next=Advice(
            "Open it without a schema, or change it with shard.evolve(…).",
            command="Name no columns to use it as it is, or take another name.",
        ),
    )
