"""List-append histories of real processes that are killed at random: strict serializability, and equal reads.

The workload is Jepsen's list-append on one shard: a transaction reads a list at the newest complete time, then appends
to one at the next time by one compare-and-append; a transaction that only reads appends nothing, also by one. The
checker has no need to search for an order: each that committed knows its time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.errors import StrandlineError, UpperMismatch
from strandline.shards.shard import Shard

SECONDS = 12.0
WORKERS = 3
KILL_EVERY_S = (0.3, 1.2)
KEYS = ("a", "b", "c")
SCHEMA = pa.schema([("list", pa.string()), ("time", pa.int64()), ("item", pa.string())])
MIN_COMMITTED = 100
MIN_KILLED = 5


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a client did and was told.

    Attributes:
        item: that it appended; "" if it only read.
        at: the time at which it committed, -1 if it did not.
        status: "ok", "fail" (it surely did not happen), "info" (it may have).
        seen: by list, what it read, in order.
    """

    item: str
    key: str
    at: int
    began: float
    ended: float
    status: str
    seen: dict[str, list[str]]


def work(place: str, name: str, seed: int) -> None:
    """A client: transactions one after the other, each told to a file when it begins and when it ends."""
    chance = random.Random(seed)
    with strandline.open(place, synced=False) as lake, open(f"{place}/{name}.log", "a", buffering=1) as log:
        shard = lake.repository("nyc").shard("lists")
        writer = shard.writer()
        for number in range(1_000_000):
            key = chance.choice(KEYS)
            item = f"{name}-{number}" if chance.random() < 0.7 else ""
            began = time.monotonic()
            log.write(json.dumps({"item": item, "key": key, "began": began}) + "\n")
            upper = shard.state.upper
            seen = read(shard, upper - 1, chance)
            rows = [((key, (upper, item)), upper, 1)] if item else []
            told = {"item": item, "key": key, "began": began, "seen": seen}
            try:
                writer.compare_and_append(rows, upper, upper + 1, timeout_s=5)
                log.write(json.dumps({**told, "at": upper, "status": "ok", "ended": time.monotonic()}) + "\n")
            except UpperMismatch:
                log.write(json.dumps({**told, "at": -1, "status": "fail", "ended": time.monotonic()}) + "\n")
            except StrandlineError:
                log.write(json.dumps({**told, "at": -1, "status": "info", "ended": time.monotonic()}) + "\n")


def read(shard: Shard, as_of: int, chance: random.Random) -> dict[str, list[str]]:
    """The lists at a time: by a snapshot, or by an older one and what changed since; both are the same."""
    if as_of < 0:
        return {}
    since = shard.state.since
    rows = shard.snapshot(as_of).to_list()
    if chance.random() < 0.3 and since < as_of:
        middle = chance.randrange(since, as_of)
        again = shard.snapshot(middle).to_list()
        listen = shard.listen(middle, timeout_s=5)
        while listen.as_of < as_of:
            again += [update for update in listen.next().to_list() if update[1] <= as_of]
        assert sorted(row for row, _, _ in again) == sorted(row for row, _, _ in rows)
    lists: dict[str, list[str]] = defaultdict(list)
    for (key, (_, item)), _, diff in sorted(rows, key=lambda update: update[0][1]):
        lists[key] += [item] * diff
    return dict(lists)


def history(place: Path) -> list[Transaction]:
    """All transactions: one whose end nobody told may have happened."""
    found = []
    for path in place.glob("*.log"):
        begun: dict[str, object] | None = None
        for line in path.read_text().splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue  # killed while it wrote
            if "status" in told:
                found.append(Transaction(**told))
                begun = None
            else:
                if begun is not None:
                    found.append(_unknown(begun))
                begun = told
        if begun is not None:
            found.append(_unknown(begun))
    return found


def _unknown(begun: dict[str, object]) -> Transaction:
    return Transaction(str(begun["item"]), str(begun["key"]), -1, float(str(begun["began"])), float("inf"), "info", {})


def violations(transactions: list[Transaction], final: dict[str, list[tuple[int, str]]]) -> list[str]:
    """What breaks strict serializability, given the lists at the end with the time of each item."""
    found = []
    at_of = {item: at for items in final.values() for at, item in items}
    if sum(map(len, final.values())) != len(at_of):
        found.append("an item is there twice")
    for one in transactions:
        if one.item and one.status == "ok" and at_of.get(one.item) != one.at:
            found.append(f"{one.item} was committed at {one.at} and is at {at_of.get(one.item)}")
        if one.item and one.status == "fail" and one.item in at_of:
            found.append(f"{one.item} was refused and is there")
        if one.status == "ok":
            expected = {key: [item for at, item in items if at < one.at] for key, items in final.items()}
            if one.seen != {key: items for key, items in expected.items() if items}:
                found.append(f"the reads of {one.item or 'a reader'} at {one.at} are not what was committed before")
    committed = sorted((one for one in transactions if one.status == "ok"), key=lambda one: one.ended)
    if len({one.at for one in committed}) != len(committed):
        found.append("two transactions committed at one time")
    latest = -1
    by_begin = sorted(committed, key=lambda one: one.began)
    ended = 0
    for one in by_begin:  # whoever ended before this one began lies before it
        while committed[ended].ended < one.began:
            latest = max(latest, committed[ended].at)
            ended += 1
        if one.at <= latest:
            found.append(f"a transaction at {one.at} began after one at {latest} had ended")
    return found


def has_committed(log: Path) -> bool:
    return log.exists() and '"ok"' in log.read_text()


def start(place: Path, name: str, seed: int) -> subprocess.Popen[bytes]:
    code = f"from tests.shards.test_histories import work; work({str(place)!r}, {name!r}, {seed})"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))}
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


@pytest.mark.timeout(120)
def test_histories_of_killed_processes_are_strictly_serializable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "lake"
    with strandline.open(place, create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("lists", SCHEMA, key=["list"])
        chance = random.Random(8)
        running: dict[str, subprocess.Popen[bytes]] = {}
        killed = 0
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or killed < MIN_KILLED:
            while len(running) < WORKERS:
                name = f"w{killed + len(running)}"
                running[name] = start(place, name, killed + len(running))
            time.sleep(chance.uniform(*KILL_EVERY_S))
            assert all(process.poll() is None for process in running.values()), "a client failed"
            at_work = [name for name in running if has_committed(place / f"{name}.log")]
            if at_work:
                victim = running.pop(chance.choice(at_work))
                victim.kill()
                victim.wait()
                killed += 1
        for process in running.values():
            process.kill()
            process.wait()
        final: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for (key, (at, item)), _, diff in shard.snapshot().to_list():
            assert diff == 1
            final[key].append((at, item))
        for items in final.values():
            items.sort()
    transactions = history(place)
    committed = sum(one.status == "ok" for one in transactions)
    with capsys.disabled():
        counts = {status: sum(one.status == status for one in transactions) for status in ("ok", "fail", "info")}
        print(f"\n{len(transactions):,} transactions of {killed + WORKERS} processes, each killed: {counts}")
    assert violations(transactions, final) == []
    assert committed > MIN_COMMITTED


def test_the_checker_notices_what_it_is_for() -> None:
    first = Transaction("x", "a", 0, 0.0, 1.0, "ok", {})
    second = Transaction("y", "a", 1, 2.0, 3.0, "ok", {"a": ["x"]})
    final = {"a": [(0, "x"), (1, "y")]}
    assert violations([first, second], final) == []
    assert violations([first, second], {"a": [(0, "x"), (0, "x"), (1, "y")]})
    assert violations([first, second], {"a": [(0, "x")]})
    assert violations([first, Transaction("y", "a", -1, 2.0, 3.0, "fail", {})], final)
    assert violations([first, Transaction("y", "a", 1, 2.0, 3.0, "ok", {})], final)
    late = Transaction("x", "a", 1, 5.0, 6.0, "ok", {"a": ["y"]})
    assert violations([Transaction("y", "a", 0, 0.0, 9.0, "ok", {}), late], {"a": [(0, "y"), (1, "x")]}) == []
    assert violations([Transaction("y", "a", 0, 7.0, 9.0, "ok", {}), late], {"a": [(0, "y"), (1, "x")]})
