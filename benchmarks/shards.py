"""What do shards cost: appends, bulk writes, snapshots, and how soon a listener hears of a write?

On SQLite and local files, synced. A bare Parquet file of the same rows, written and synced in the same run, stands
beside the appends, and reading such a file beside the snapshots.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import strandline
from benchmarks.harness import Result, folder, result, seconds
from strandline.repository.repository import Repository
from strandline.shards.handles.listen import Listen
from strandline.shards.shard import Shard

SMALL_ROWS = 1_000
SMALL_BATCHES = 400
BULK_ROWS = 10_000_000
RUNS = 3
NEWS = 100
NEWS_EVERY_S = 0.02
HEARTBEATS = 100_000
HEARTBEATS_SHOWN = 10_000
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])
WHERE = "SQLite + local files, synced; 2 cores"


def run() -> list[Result]:
    found: list[Result] = []
    with folder() as place, strandline.open(place / "lake", create=True) as lake:
        repo = lake.repository("bench", create=True)
        found += _appends(repo, place)
        found += _bulk(repo, place)
        found += _news(repo, place)
        found += _idle_writer(repo, place)
    return found


def _table(rows: int) -> pa.Table:
    chance = np.random.default_rng(1)
    return pa.table(
        {"id": np.arange(rows), "k": chance.integers(0, 100, rows), "v": chance.random(rows)}, schema=SCHEMA
    )


def _rates(count: int, action: Callable[[], object], runs: int = RUNS) -> list[float]:
    return [count / seconds(action) for _ in range(runs)]


# --- writing and reading ----------------------------------------------------------------------------------------------


def _appends(repo: Repository, place: Path) -> list[Result]:
    table = _table(SMALL_ROWS)
    shard = repo.shard("small", SCHEMA, key=["id"])
    writer = shard.writer()

    def appends() -> None:
        upper = shard.state.upper
        for at in range(upper, upper + SMALL_BATCHES):
            writer.compare_and_append(table, at, at + 1)

    def bare() -> None:
        store = shard._machine.place.blobs
        for number in range(SMALL_BATCHES):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            store.put(f"bare/{time.monotonic_ns()}-{number}", sink.getvalue().to_pybytes(), "create")

    appends()
    ours = _rates(SMALL_BATCHES, appends)
    theirs = _rates(SMALL_BATCHES, bare)
    ratio = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return [
        result("shard: append 1,000 rows", ours, "/s", 200, "more", f"{WHERE}, with compaction beside it"),
        result("shard: append 1,000 rows ÷ a bare synced Parquet file", ratio, "×", None, "more", WHERE),
    ]


def _bulk(repo: Repository, place: Path) -> list[Result]:
    table = _table(BULK_ROWS)
    shuffled = table.take(np.random.default_rng(2).permutation(BULK_ROWS))
    found = []
    for name, rows in (("in order", table), ("shuffled", shuffled)):
        shards: list[Shard] = []

        def bulk(rows: pa.Table = rows, name: str = name, shards: list[Shard] = shards) -> None:
            shard = repo.shard(f"bulk-{name.replace(' ', '-')}-{len(shards)}", SCHEMA, key=["id"])
            shards.append(shard)
            shard.writer().compare_and_append(rows, 0, 1)

        path = place / "bare.parquet"
        write = _rates(BULK_ROWS, bulk)
        bare = _rates(BULK_ROWS, lambda rows=rows: pq.write_table(rows, path))
        read = _rates(BULK_ROWS, lambda shards=shards: shards[-1].snapshot(0).to_arrow())
        plain = _rates(BULK_ROWS, lambda: pq.read_table(path))
        where = f"{WHERE}; keys {name}"
        found += [
            result(f"shard: 10,000,000 rows in bulk, {name}", write, "rows/s", 1_000_000, "more", where),
            result(f"shard: bulk, {name} ÷ one bare Parquet file", _over(write, bare), "×", None, "more", where),
            result(f"shard: snapshot of 10,000,000 rows, {name}", read, "rows/s", 5_000_000, "more", where),
            result(f"shard: snapshot, {name} ÷ reading that file", _over(read, plain), "×", None, "more", where),
        ]
    return found


def _over(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


# --- write to listen --------------------------------------------------------------------------------------------------


def _listen(place: str, name: str, pipe: object) -> None:
    """Tell when each change was heard of; times are those of the monotonic clock, which processes share."""
    with strandline.open(place) as lake:
        listen = lake.repository("bench").shard(name).listen(0, timeout_s=60)
        pipe.send("ready")  # type: ignore[attr-defined]
        pipe.send(_heard(listen))  # type: ignore[attr-defined]


def _news(repo: Repository, place: Path) -> list[Result]:
    found = []
    one = _table(1)
    for across, target in ((False, 10.0), (True, 30.0)):
        name = f"news-{across}"
        shard = repo.shard(name, SCHEMA, key=["id"])
        writer = shard.writer()
        writer.compare_and_append([], 0, 1)
        here, there = multiprocessing.get_context("spawn").Pipe()
        listener = None
        if across:
            listener = multiprocessing.get_context("spawn").Process(
                target=_listen, args=(str(place / "lake"), name, there)
            )
            listener.start()
            here.recv()
        heard: list[tuple[int, float]] = []
        thread = threading.Thread(target=_listen_here, args=(shard, heard))
        if not across:
            thread.start()
        sent = {}
        for at in range(1, NEWS + 1):
            time.sleep(NEWS_EVERY_S)
            sent[at + 1] = time.monotonic()
            writer.compare_and_append(one, at, at + 1)
        if listener is not None:
            heard = here.recv()
            listener.join()
        else:
            thread.join()
        delays = [(moment - sent[bound]) * 1_000 for bound, moment in heard]
        where = f"{WHERE}; {NEWS} writes, one every {NEWS_EVERY_S * 1_000:g} ms"
        label = "two processes" if across else "one process"
        found.append(
            result(f"shard: write to listen, {label}", [statistics.median(delays)], "ms", target, "less", where)
        )
    return found


def _listen_here(shard: Shard, heard: list[tuple[int, float]]) -> None:
    heard.extend(_heard(shard.listen(0, timeout_s=60)))


def _heard(listen: Listen) -> list[tuple[int, float]]:
    """Each frontier, and when it was heard of."""
    heard = []
    while listen.as_of < NEWS:
        heard.append((listen.next().frontier.bound, time.monotonic()))
    return heard


# --- an idle writer ---------------------------------------------------------------------------------------------------


def _idle_writer(repo: Repository, place: Path) -> list[Result]:
    """What is left of many heartbeats and empty appends, at a tenth of the way and at its end."""
    shard = repo.shard("idle", SCHEMA, key=["id"])
    writer = shard.writer()
    writer.compare_and_append(_table(10), 0, 1)
    sizes = []
    for number in range(HEARTBEATS):
        writer.compare_and_append([], number + 1, number + 2)
        if number + 1 in (HEARTBEATS_SHOWN, HEARTBEATS):
            time.sleep(1)  # what runs beside it ends
            sizes.append(_left(repo, shard))
    where = f"{HEARTBEATS:,} empty appends; records and blobs after {HEARTBEATS_SHOWN:,}: {sizes[0]:,}"
    return [
        result("shard: records and blobs left by an idle writer", [float(sizes[-1])], "things", 1_000, "less", where)
    ]


def _left(repo: Repository, shard: Shard) -> int:
    place = shard._machine.place
    blobs = sum(1 for _ in place.blobs.list_keys(place.folder + "/"))
    return blobs + len(place.consensus.scan(place.shard, 1, 1_000_000))
