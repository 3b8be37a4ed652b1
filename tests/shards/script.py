"""Runs a script against a shard: directives, and below each `----` what it is to say.

A line is a directive and its arguments; indented lines below are updates `key value time diff`. Directives that change
the state say `v<seqno>`, so each script also says which calls write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.errors import StrandlineError
from strandline.shards.handles.durable_reader import DurableReader
from strandline.shards.handles.listen import Listen
from strandline.shards.handles.reader import Reader
from strandline.shards.handles.snapshot import Snapshot
from strandline.shards.handles.writer import Writer
from strandline.shards.rows.batches import WrittenBatch
from strandline.shards.state.frontier import Antichain
from strandline.shards.upkeep.collection import collect, write_rollup
from strandline.shards.upkeep.compaction import compact_all, compact_once
from strandline.shards.upkeep.upkeep import maintain
from strandline.testing.faults import Outcome
from tests.shards.stage import Process, Stage, Update

OUTCOMES = {"not-done": Outcome.NOT_DONE, "lost": Outcome.DONE_BUT_LOST, "late": Outcome.LATE, "done": Outcome.DONE}


@dataclass
class Script:
    stage: Stage
    process: Process = field(init=False)
    processes: dict[str, Process] = field(default_factory=dict)
    handles: dict[str, Any] = field(default_factory=dict)
    has_blobs_elsewhere: bool = False

    def __post_init__(self) -> None:
        self.process = self.processes["main"] = self.stage.process()

    def run(self, text: str) -> str:
        """The script with what it really says."""
        said = []
        for words, updates, lines in _directives(text):
            said += [*lines, "----", *self._one(words, updates), ""]
        return "\n".join(said)

    def _one(self, words: list[str], updates: list[Update]) -> list[str]:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words[1:] if "=" not in word]
        directive: Callable[..., list[str]] = getattr(self, "do_" + words[0].replace("-", "_"))
        before = self._seqno()
        try:
            said = directive(*names, updates=updates, **options)
        except StrandlineError as error:
            said = [f"{error.kind}: {error.what}"]
        after = self._seqno()
        mark = f"v{after}" if after != before else "-"
        return [f"{mark} {said[0]}" if said else mark, *said[1:]]

    def _seqno(self) -> int:
        head = self.stage.log.head(self.stage.shard_id)
        return head.seqno if head else 0

    # --- who acts -----------------------------------------------------------------------------------------------------

    def do_process(self, name: str, updates: list[Update]) -> list[str]:
        """Go on as another process."""
        self.processes.setdefault(name, self.processes.get(name) or self.stage.process(create=False))
        self.process = self.processes[name]
        return ["ok"]

    def do_fail(self, call: str, *outcomes: str, updates: list[Update]) -> list[str]:
        self.process.fail(call, *(OUTCOMES[name] for name in outcomes))
        return ["ok"]

    def do_wait(self, seconds: str, updates: list[Update]) -> list[str]:
        self.stage.clock.advance_s(float(seconds))
        return ["ok"]

    # --- writers ------------------------------------------------------------------------------------------------------

    def _writer(self, name: str) -> Writer:
        found = self.handles.get(name)
        if found is None:
            found = self.handles[name] = self.process.shard.writer(name.removeprefix("durable-") if "-" in name else "")
        assert isinstance(found, Writer)
        return found

    def do_append(
        self, writer: str, updates: list[Update], expected: str, upper: str, token: str | None = None
    ) -> list[str]:
        self._writer(writer).compare_and_append(updates, frontier(expected), frontier(upper), token=token, timeout_s=5)
        return ["appended"]

    def do_append_all(self, writer: str, updates: list[Update], lower: str, upper: str) -> list[str]:
        done = self._writer(writer).append(updates, frontier(lower), frontier(upper), timeout_s=5)
        return ["appended" if done else "was there"]

    def do_append_epoch(self, writer: str, updates: list[Update], epoch: str) -> list[str]:
        time = self._writer(writer).append_epoch(updates, int(epoch), timeout_s=5)
        return ["was there" if time is None else f"at {time}"]

    def do_write_batch(
        self, name: str, updates: list[Update], lower: str, upper: str, part_bytes: str = "1000000"
    ) -> list[str]:
        writer = self._writer(f"writer of {name}".replace("-", "_"))
        with writer.batch(frontier(lower), frontier(upper), part_bytes=int(part_bytes)) as builder:
            builder.add(updates)
            self.handles[name] = batch = builder.finish()
        return [f"{len(batch.parts)} parts, {batch.rows} rows"]

    def do_append_batches(
        self, writer: str, *batches: str, updates: list[Update], expected: str, upper: str
    ) -> list[str]:
        given: list[WrittenBatch] = [self.handles[name] for name in batches]
        self._writer(writer).compare_and_append_batches(given, frontier(expected), frontier(upper), timeout_s=5)
        return ["appended"]

    def do_close(self, name: str, updates: list[Update]) -> list[str]:
        self.handles[name].close()
        return ["closed"]

    def do_finish(self, updates: list[Update]) -> list[str]:
        self.process.shard.finish(timeout_s=5)
        return ["finished"]

    def do_retire(self, updates: list[Update]) -> list[str]:
        self.process.shard.retire()
        return ["retired"]

    # --- readers ------------------------------------------------------------------------------------------------------

    def do_reader(self, name: str, updates: list[Update], lease_s: str = "900") -> list[str]:
        reader = self.handles[name] = self.process.shard.reader(lease_s=int(lease_s))
        return [f"since {reader.since}"]

    def do_downgrade(self, name: str, updates: list[Update], since: str) -> list[str]:
        reader: Reader | DurableReader = self.handles[name]
        return [f"holds {reader.downgrade_since(frontier(since), timeout_s=5)}"]

    def do_heartbeat(self, name: str, updates: list[Update]) -> list[str]:
        return ["alive" if self.handles[name].heartbeat() else "expired"]

    def do_durable(self, name: str, updates: list[Update]) -> list[str]:
        reader = self.handles[name] = self.process.shard.durable_reader(name)
        return [f"since {reader.since} token {reader.token!r}"]

    def do_claim(self, name: str, token: str, updates: list[Update]) -> list[str]:
        return [f"holds {self.handles[name].claim(token)}"]

    def do_compare_and_downgrade(
        self, name: str, updates: list[Update], expected: str, token: str, since: str
    ) -> list[str]:
        reader: DurableReader = self.handles[name]
        return [f"holds {reader.compare_and_downgrade_since(expected, token, frontier(since), timeout_s=5)}"]

    def do_remove(self, name: str, updates: list[Update]) -> list[str]:
        return ["removed" if self.handles[name].remove() else "was not there"]

    def do_snapshot(
        self, as_of: str, updates: list[Update], splits: str = "1", name: str = "", reader: str = ""
    ) -> list[str]:
        shard = self.handles[reader] if reader else self.process.shard
        snapshot: Snapshot = shard.snapshot(int(as_of), num_splits=int(splits), timeout_s=0)
        if name:
            self.handles[name] = snapshot
            return [f"{len(snapshot.splits)} splits"]
        return [f"at {snapshot.as_of}", *shown(snapshot.to_list())]

    def do_fetch(self, name: str, updates: list[Update]) -> list[str]:
        """Read the splits of a snapshot as another process would."""
        tables = [split.to_arrow(blobs=self.stage.blobs) for split in self.handles[name].splits]
        return [f"{sum(table.num_rows for table in tables)} rows"]

    def do_listen(self, name: str, updates: list[Update], as_of: str) -> list[str]:
        self.handles[name] = self.process.shard.listen(int(as_of), timeout_s=0)
        return ["ok"]

    def do_next(self, name: str, updates: list[Update]) -> list[str]:
        listen: Listen = self.handles[name]
        told = listen.next(0)
        return [f"up to {told.frontier}", *shown(told.to_list())]

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def do_compact(self, updates: list[Update], full: str = "") -> list[str]:
        machine = self.process.machine
        done = next(compact_all(machine), None) if full else compact_once(machine)
        if done is None:
            return ["nothing to merge"]
        return [f"{done.outcome.value}: {done.batches} batches, {done.rows} rows became {done.rows_after}"]

    def do_rollup(self, updates: list[Update]) -> list[str]:
        seqno = write_rollup(self.process.machine)
        return ["was there" if seqno is None else f"of {seqno}"]

    def do_collect(self, updates: list[Update], until: str | None = None) -> list[str]:
        done = collect(self.process.machine, None if until is None else int(until))
        if done.target is None:
            return ["nothing to collect"]
        return [f"to {done.target}: {self._blobs(done.blobs)}{done.records} records"]

    def do_maintain(self, updates: list[Update]) -> list[str]:
        maintain(self.process.machine)
        return ["ok"]

    def do_sweep(self, updates: list[Update], after_s: str = "0") -> list[str]:
        return [f"{self._blobs(self.process.shard.sweep(after_s=int(after_s)).blobs)}swept"]

    def _blobs(self, count: int) -> str:
        """Where batches lie inline for a while, the number of blobs is none of the script's."""
        return "" if self.has_blobs_elsewhere else f"{count} blobs, "

    # --- looking ------------------------------------------------------------------------------------------------------

    def do_describe(self, updates: list[Update]) -> list[str]:
        state = self.process.machine.refreshed()
        lines = [
            f"since {frontier_name(state.since)} upper {frontier_name(state.upper)} holds from {state.seqno_since}"
        ]
        lines += [
            f"  [{batch.lower}, {frontier_name(batch.upper)}) since {frontier_name(batch.since)}: {batch.rows} rows"
            for batch in state.batches
        ]
        if state.readers or state.durable_readers or state.writers:
            lines.append(
                f"  {len(state.readers)} readers, {len(state.durable_readers)} durable, {len(state.writers)} writers"
            )
        return lines

    def do_log(self, updates: list[Update]) -> list[str]:
        return ["records " + ", ".join(str(record.seqno) for record in self.stage.log.scan(self.stage.shard_id, 1))]

    def do_rollups(self, updates: list[Update]) -> list[str]:
        return ["rollups " + ", ".join(map(str, sorted(self.process.machine.refreshed().rollups)))]

    def do_stored(self, updates: list[Update]) -> list[str]:
        """How many blobs there are, of updates and of states."""
        rollups = sum(key.startswith("rollup/") for key in self.stage.blob_keys)
        return [f"{self._blobs(len(self.stage.blob_keys) - rollups)}{rollups} rollups"]


def frontier(text: str) -> Antichain | int:
    return Antichain() if text == "[]" else int(text)


def frontier_name(bound: int) -> str:
    return "[]" if bound == Antichain().bound else str(bound)


def shown(updates: list[Update]) -> list[str]:
    ordered = sorted(updates, key=lambda update: (update[1], update[0]))
    return [f"  {key} {value} {time} {diff:+d}" for (key, value), time, diff in ordered]


def _directives(text: str) -> Iterator[tuple[list[str], list[Update], list[str]]]:
    """The directives of a script, without what they are to say: words, updates, and the lines themselves."""
    for block in text.strip().split("\n\n"):
        lines = []
        for line in block.splitlines():
            if line == "----":
                break
            lines.append(line)
        acts = [line for line in lines if not line.startswith("#")]
        updates = []
        for line in acts[1:]:
            key, value, time, diff = line.split()
            updates.append(((key, int(value)), int(time), int(diff)))
        yield acts[0].split(), updates, lines
