"""How fast are commits of Iceberg tables, and what does a table with many snapshots cost?"""

from __future__ import annotations

import base64
import http.client
import io
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa

import strandline
from benchmarks.harness import Result, entries, folder, result, seconds
from strandline import Branch
from strandline.iceberg import Catalog
from strandline.iceberg.names import pointer_of
from strandline.iceberg.refusals import Stale
from strandline.iceberg.tables import TableChange, Tables
from strandline.iceberg.updates import apply
from strandline.lake import Lake

WRITERS = 8
COMMITS = 25
ROUNDS = 5
SNAPSHOTS = 2_000
TABLES = 10_000
MERGED = 100
NOW_MS = 1_800_000_000_000
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "k", "required": False, "type": "long"}]}
LIST = {"type": "record", "name": "manifest_file", "fields": [{"name": "manifest_path", "type": "string"}]}
ASKED = 400
SETTING = f"{WRITERS} threads, SQLite, not synced, at most 200 snapshots"


def run() -> list[Result]:
    with folder() as place:
        return [*_commits(place), *_long(), *_listing(place), *_served(place), *_merges(place), *_many(place)]


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
            added = _added(1_000 * (writer + 1) + turn, held, parent, _listed(tables))
            try:
                tables.commit([TableChange(("db", name), wanted, added)])
            except Stale:
                continue
            break


def _listed(tables: Tables) -> str:
    """Where a manifest list is, as a client has written one before its commit."""
    key = f"ice/{'0' * 20}/{'1' * 20}/metadata/snap.avro"
    blobs = tables._core.resolver.namespace
    if not list(blobs.list_keys(key)):
        out = io.BytesIO()
        fastavro.writer(out, LIST, [])
        blobs.put(key, out.getvalue())
    return tables.url_of(key)


def _added(id: int, held: dict[str, Any], parent: int | None, listed: str = "file:///x") -> list[dict[str, Any]]:
    snapshot = {
        "snapshot-id": id,
        "sequence-number": held["last-sequence-number"] + 1,
        "timestamp-ms": held["last-updated-ms"] + 1,
        "manifest-list": listed,
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


# --- over HTTP ----------------------------------------------------------------------------------------------------


def _served(place: Path) -> list[Result]:
    """What a client waits for that asks `strandline serve`, on one connection and on several."""
    lake_place = place / "served"
    with strandline.open(lake_place, create=True, synced=False) as lake:
        main = lake.create_repository("bench").branch("main")
        tables = Tables(main)
        tables.create_namespace(["db"], {})
        for number in range(WRITERS):
            tables.create(["db", f"t{number}"], {"schema": SCHEMA})
        for turn in range(100):
            held = tables.load(["db", "t0"]).metadata
            current = held["current-snapshot-id"]
            parent = None if current == -1 else current
            tables.commit([TableChange(("db", "t0"), [], _added(turn + 1, held, parent, _listed(tables)))])
        (_, one), *_ = entries("x", 1)
        main.stage_each([(pointer_of(("many", f"t{number:05d}")), one) for number in range(TABLES)])
        main.commit("many tables")
        listed = _listed(tables)
    command = [sys.executable, "-m", "strandline.cli", "serve", str(lake_place), "--json", "--port", "0", "--no-sync"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        shown: dict[str, str] = {}
        while "url" not in shown:
            shown |= json.loads(process.stdout.readline())
        host = shown["url"].partition("://")[2]
        basic = base64.b64encode(f"{shown['access_key_id']}:{shown['secret_access_key']}".encode()).decode()
        return _asked(host, {"Authorization": f"Basic {basic}"}, listed)
    finally:
        process.terminate()
        process.wait()


def _asked(host: str, headers: dict[str, str], listed: str) -> list[Result]:
    client = http.client.HTTPConnection(host)

    def ask(path: str, more: dict[str, str] | None = None) -> tuple[float, int, str]:
        began = time.perf_counter()
        client.request("GET", f"/iceberg/v1/bench/main/{path}", headers={**headers, **(more or {})})
        answer = client.getresponse()
        answer.read()
        return (time.perf_counter() - began) * 1_000, answer.status, answer.getheader("ETag", "")

    tag = ask("namespaces/db/tables/t0")[2]
    loads = sorted(ask("namespaces/db/tables/t0")[0] for _ in range(ASKED))
    known = [ask("namespaces/db/tables/t0", {"If-None-Match": tag}) for _ in range(ASKED)]
    assert {status for _, status, _ in known} == {304}
    unchanged = sorted(took for took, _, _ in known)
    names = [ask("namespaces/many/tables")[0] / 1_000 for _ in range(5)]
    client.close()

    def commit_some(number: int) -> None:
        own = http.client.HTTPConnection(host)
        path = f"/iceberg/v1/bench/main/namespaces/db/tables/t{number}"
        for turn in range(COMMITS):
            own.request("GET", path, headers=headers)
            held = json.loads(own.getresponse().read())["metadata"]
            current = held["current-snapshot-id"]
            parent = None if current == -1 else current
            updates = _added(1_000_000 * (number + 1) + turn, held, parent, listed)
            body = json.dumps({"requirements": [], "updates": updates})
            own.request("POST", path, body, headers)
            answer = own.getresponse()
            answer.read()
            assert answer.status == 200
        own.close()

    rates = []
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(WRITERS) as pool:
            began = time.perf_counter()
            list(pool.map(commit_some, range(WRITERS)))
            rates.append(WRITERS * COMMITS / (time.perf_counter() - began))
    middle = ASKED // 2
    about = "100 snapshots, from memory, one connection"
    return [
        result("load over HTTP, median", [loads[middle]], "ms", 2.0, "less", about),
        result("load over HTTP of what is known (304), median", [unchanged[middle]], "ms", 1.0, "less", about),
        result("listing over HTTP", names, "s", 0.5, "less", f"{TABLES:,} tables of a namespace"),
        result("loads and commits over HTTP to different tables", rates, "/s", 100.0, "more", f"{WRITERS} connections"),
    ]


def _begun(lake: Lake) -> tuple[Branch, Catalog, pa.Table]:
    """A branch with a namespace, its catalog, and a row."""
    main = lake.create_repository("bench").branch("main")
    catalog = Catalog(main)
    catalog.create_namespace("db")
    return main, catalog, pa.table({"k": pa.array([1], pa.int64())})


def _merges(place: Path) -> list[Result]:
    """Both sides append to a table of many files; the reference reads the same manifests with PyIceberg."""
    with strandline.open(place / "merged", create=True, synced=False) as lake:
        main, catalog, rows = _begun(lake)
        table = catalog.create_table("db.t", rows.schema)
        for _ in range(100):
            table.append(rows)
        took, reading = [], []
        for turn in range(ROUNDS):
            dev = main.create_branch(f"dev{turn}")
            Catalog(dev).load_table("db.t").append(rows)
            catalog.load_table("db.t").append(rows)
            began = time.perf_counter()
            main.merge(f"dev{turn}")
            took.append(time.perf_counter() - began)
            began = time.perf_counter()
            for _ in range(3):  # base, source and branch
                catalog.load_table("db.t").inspect.files()
            reading.append(time.perf_counter() - began)
        ratios = [one / other for one, other in zip(took, reading, strict=True)]
    return [result("merge of a table, beside reading its files 3 times", ratios, "×", 1.0, "less", "100 manifests")]


def _many(place: Path) -> list[Result]:
    """Both sides append to each of many tables."""
    with strandline.open(place / "both", create=True, synced=False) as lake:
        main, catalog, rows = _begun(lake)
        names = [f"db.t{number}" for number in range(MERGED)]
        for name in names:
            catalog.create_table(name, rows.schema).append(rows)
        took = []
        for turn in range(ROUNDS):
            dev = main.create_branch(f"dev{turn}")
            for branch in (dev, main):
                with branch.transaction("append") as tx:
                    for name in names:
                        Catalog(tx).load_table(name).append(rows)
            took.append(seconds(lambda turn=turn: main.merge(f"dev{turn}")))
    return [result("a merge of many tables", took, "s", 1.0, "less", f"{MERGED} tables that both sides changed")]
