"""How fast are commits of Iceberg tables, and what does a table with many snapshots cost?"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

import strandline
from benchmarks.harness import Result, entries, folder, result, seconds
from strandline import Branch
from strandline.iceberg.names import pointer_of
from strandline.iceberg.refusals import Stale
from strandline.iceberg.tables import TableChange, Tables
from strandline.iceberg.updates import apply

WRITERS = 8
COMMITS = 25
ROUNDS = 5
SNAPSHOTS = 2_000
TABLES = 10_000
NOW_MS = 1_800_000_000_000
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "k", "required": False, "type": "long"}]}
SETTING = f"{WRITERS} threads, SQLite, not synced, at most 200 snapshots"


def run() -> list[Result]:
    with folder() as place:
        return [*_commits(place), *_long(), *_listing(place)]


def _commits(place: Path) -> list[Result]:
    one: list[float] = []
    several: list[float] = []
    for turn in range(ROUNDS):
        with strandline.open(place / f"lake{turn}", create=True, synced=False) as lake:
            repository = lake.create_repository("bench")
            tables = Tables(repository.branch("main"))
            tables.create_namespace(["db"], {})
            for number in range(WRITERS):
                tables.create(["db", f"t{number}"], {"schema": SCHEMA})
            for rates, names in ((one, ["t0"] * WRITERS), (several, [f"t{n}" for n in range(WRITERS)])):
                handles = [repository.branch("main") for _ in range(WRITERS)]
                with ThreadPoolExecutor(WRITERS) as pool:
                    began = time.perf_counter()
                    list(pool.map(_append_some, handles, names, range(WRITERS)))
                    rates.append(WRITERS * COMMITS / (time.perf_counter() - began))
    return [
        result("commits to one table", one, "/s", 60.0, "more", SETTING),
        result("commits to different tables", several, "/s", 150.0, "more", SETTING),
    ]


def _append_some(branch: Branch, name: str, writer: int) -> None:
    tables = Tables(branch)
    for turn in range(COMMITS):
        while True:
            held = tables.load(["db", name]).metadata
            current = held["current-snapshot-id"]
            parent = None if current == -1 else current
            wanted = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}]
            added = _added(1_000 * (writer + 1) + turn, held, parent)
            try:
                tables.commit([TableChange(("db", name), wanted, added)])
            except Stale:
                continue
            break


def _added(id: int, held: dict[str, Any], parent: int | None) -> list[dict[str, Any]]:
    snapshot = {
        "snapshot-id": id,
        "sequence-number": held["last-sequence-number"] + 1,
        "timestamp-ms": held["last-updated-ms"] + 1,
        "manifest-list": f"file:///lake/ice/table/branch/metadata/snap-{id}.avro",
        "summary": {"operation": "append", "added-records": "1000", "total-records": "1000000"},
        "schema-id": 0,
        **({} if parent is None else {"parent-snapshot-id": parent}),
    }
    move = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
    return [{"action": "add-snapshot", "snapshot": snapshot}, move]


def _long() -> list[Result]:
    """Our own part of a commit: read the metadata, apply an append, write it."""
    with strandline.open("memory://", create=True) as lake:
        tables = Tables(lake.create_repository("bench").branch("main"))
        tables.create_namespace(["db"], {})
        held = tables.create(["db", "t"], {"schema": SCHEMA}).metadata
    for number in range(SNAPSHOTS):
        held = apply(held, _added(number + 1, held, number or None), NOW_MS + number, previous=f"file:///m{number}")
    raw = msgspec.json.encode(held)

    def step() -> None:
        read = msgspec.json.decode(raw)
        msgspec.json.encode(apply(read, _added(SNAPSHOTS + 1, read, SNAPSHOTS), NOW_MS + SNAPSHOTS))

    took = [seconds(step) * 1_000 for _ in range(20)]
    about = f"{SNAPSHOTS:,} snapshots, {len(raw) / 1e6:.2f} MB"
    return [result("own time of a commit", took, "ms", 50.0, "less", about)]


def _listing(place: Path) -> list[Result]:
    with strandline.open(place / "many", create=True, synced=False) as lake:
        main = lake.create_repository("bench").branch("main")
        (_, one), *_ = entries("x", 1)
        main.stage_each([(pointer_of(("db", f"t{number:05d}")), one) for number in range(TABLES)])
        main.commit("many tables")
        tables = Tables(main)
        took = [seconds(lambda: tables.all_in(["db"])) for _ in range(7)]
    return [result("listing of tables", took, "s", 0.5, "less", f"{TABLES:,} tables of a namespace")]
