"""What do transactions cost: begin, publish of many files, many small ones from several writers?"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

import strandline
from benchmarks.harness import Result, folder, result, seconds, setting
from strandline.parallel import in_parallel
from strandline.repository.branch import Branch
from strandline.repository.transactions.transaction import Transaction
from strandline.tables.columns import Kind
from strandline.tables.statistics import encode_statistics, parquet_statistics
from strandline.tree.rows import Entry

RUNS = 9
FILES = (10, 1_000, 10_000, 100_000)
STATISTICS_FILES = 10_000
STATISTICS_COLUMNS = (3, 32)
BEGINS = 50
WRITERS = 4
SECONDS = 8.0
WRITER = """
import sys, time, strandline
kv, blob, name, seconds = sys.argv[1:5]
main = strandline.open(kv=kv, blob=blob, synced=False).repository("bench").branch("main")
print("ready", flush=True)
sys.stdin.readline()
until, number = time.monotonic() + float(seconds), 0
while time.monotonic() < until:
    with main.transaction(name) as tx:
        tx.put(f"{name}/{number % 50}", b"x")
    number += 1
print(number, flush=True)
"""


def run() -> list[Result]:
    return [*_begin(), *_publish(), *_publish_with_statistics(), *_small_on_postgres()]


def _begin() -> list[Result]:
    found = []
    for synced in (True, False):
        with folder() as place, strandline.open(place / "lake", create=True, synced=synced) as lake:
            main = lake.repository("bench", create=True).branch("main")
            for number in range(200):  # names on record
                with main.transaction(f"writer {number}") as tx:
                    tx.put(f"w/{number}", b"x")
            times = []
            for _ in range(BEGINS):
                transaction = main.transaction("bench")
                times.append(seconds(transaction.begin) * 1000)
                transaction.abort()
            found.append(result("begin", times, "ms", 5, "less", f"SQLite, 200 writers on record, {setting(synced)}"))
    return found


def _publish() -> list[Result]:
    """Files that are there already: what is measured is listing, manifest, deadlist, commit and swap."""
    found = []
    for count in FILES:
        times = []
        for number in range(RUNS if count <= 10_000 else 3):
            with folder() as place, strandline.open(place / "lake", create=True) as lake:
                main = lake.repository("bench", create=True).branch("main")
                _commit_something(main, number)
                transaction = main.transaction("bench").begin()
                _write(transaction, count)
                times.append(seconds(transaction.commit))
        target = 1.0 if count == 10_000 else None
        where = "local files, synced; without statistics"
        found.append(result(f"publish {count:,} files", times, "s", target, "less", where))
        per_thousand = [took * 1000 / count * 1000 for took in times]
        found.append(result(f"publish, per 1,000 of {count:,} files", per_thousand, "ms", None, "less", where))
    return found


def _publish_with_statistics() -> list[Result]:
    """The same, with the footers of real Parquet files, as a table's write reads them."""
    found = []
    for columns in STATISTICS_COLUMNS:
        kinds: dict[str, Kind] = {f"c{number}": "integer" for number in range(columns)}
        table = pa.table({name: range(10) for name in kinds})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        raw = sink.getvalue().to_pybytes()
        times = []
        for number in range(3):
            with folder() as place, strandline.open(place / "lake", create=True) as lake:
                main = lake.repository("bench", create=True).branch("main")
                _commit_something(main, number)
                transaction = main.transaction("bench").begin()
                keys = _files(transaction, STATISTICS_FILES, raw)
                times.append(seconds(partial(_stage_and_publish, transaction, keys, len(raw), kinds)))
        name = f"publish {STATISTICS_FILES:,} files with statistics of {columns} columns"
        found.append(result(name, times, "s", None, "less", "local files, synced; footers and publication"))
    return found


def _stage_and_publish(transaction: Transaction, keys: list[str], size: int, kinds: dict[str, Kind]) -> None:
    store = transaction._core.resolver.namespace

    def footer(key: str) -> tuple[str, Entry]:
        with store.open_read(key) as source:
            metadata = encode_statistics(parquet_statistics(source, kinds))
        return f"t/{key.rpartition('/')[2]}", Entry(key, size, f"etag:{key}", 1, None, metadata)

    transaction.stage_atomically(list(in_parallel(footer, keys)))
    transaction.commit()


def _commit_something(main: Branch, number: int) -> None:
    main.put("before", str(number).encode())
    main.commit("before")


def _write(transaction: Transaction, count: int) -> None:
    keys = _files(transaction, count, b"x")
    transaction.stage_atomically(
        [(f"t/{key.rpartition('/')[2]}", Entry(key, 1, f"etag:{number}", 1)) for number, key in enumerate(keys)]
    )


def _files(transaction: Transaction, count: int, raw: bytes) -> list[str]:
    """Files of a Spark job, as it leaves them: a folder, many files. Their keys."""
    store = transaction._core.resolver.namespace
    folder_key = transaction._new_folder()
    first = store.local_path(f"{folder_key}/part-0")
    assert first is not None
    store.put(f"{folder_key}/part-0", b"x")
    base = first.removesuffix("part-0")
    names = [f"part-{number:06d}.parquet" for number in range(count)]
    for name in names:
        with open(base + name, "wb") as file:
            file.write(raw)
    return [f"{folder_key}/{name}" for name in names]


def _small_on_postgres() -> list[Result]:
    from tests.harness import servers

    with servers.postgres() as url, folder() as place:
        blob = str(place / "data")
        with strandline.open(kv=url, blob=blob, create=True) as lake:
            lake.repository("bench", create=True)
        writers = []
        for number in range(WRITERS):
            command = [sys.executable, "-c", WRITER, url, blob, f"writer-{number}", str(SECONDS)]
            pipe = subprocess.PIPE
            writers.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        time.sleep(SECONDS)
        total = 0
        for writer in writers:
            assert writer.stdout is not None
            total += int(writer.stdout.readline() or 0)
            writer.wait(30)
    where = f"PostgreSQL, one branch, {WRITERS} processes with a name each, one object a transaction"
    return [result("small transactions", [total / SECONDS], "per s", 50, "more", where)]
