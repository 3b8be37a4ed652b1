"""Does a collection read each file of Iceberg's metadata once, and what does that cost beside only reading them?"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro

import strandline
from benchmarks.harness import Result, folder, result, seconds
from strandline import Branch, Repository
from strandline.blob.local import LocalBlobStore
from strandline.core.iceberg_files import read_avro
from strandline.iceberg.names import pointer_of
from strandline.parallel import in_parallel
from strandline.tree.rows import Entry

TABLES = 1_000
SNAPSHOTS = 100
COMMITS = 3
"""So many versions of each table's metadata name the same lists and manifests."""
RUNS = 2
KEY = "0" * 20
"""Stands for the key of a table in what is written once and stored for each."""
LIST = {"type": "record", "name": "manifest_file", "fields": [{"name": "manifest_path", "type": "string"}]}
FILE = {"type": "record", "name": "r2", "fields": [{"name": "file_path", "type": "string"}]}
ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [{"name": "status", "type": "int"}, {"name": "data_file", "type": FILE}],
}


def run() -> list[Result]:
    with folder() as place, strandline.open(place / "lake", create=True, synced=False, compaction=False) as lake:
        repository = lake.repository("bench", create=True)
        _fill(repository.branch("main"))
        reads: Counter[str] = Counter()
        with _counted(reads):
            repository.gc.plan(grace_days=1)
        keys = list(reads)
        ratios = []
        for _ in range(RUNS):
            took = seconds(lambda: repository.gc.plan(grace_days=1))
            ratios.append(took / seconds(lambda: _read(repository, keys)))
    where = f"{TABLES:,} tables of {SNAPSHOTS} snapshots, {COMMITS} commits of each; {len(keys):,} files"
    return [
        result("mark of Iceberg's tables: most reads of one file", [max(reads.values())], "", 1, "less", where),
        result("mark of Iceberg's tables, beside reading the files", ratios, "×", 2, "less", where),
    ]


@contextmanager
def _counted(reads: Counter[str]) -> Iterator[None]:
    """Count the files of Iceberg's metadata that are read meanwhile."""
    get = LocalBlobStore.get

    def counting(store: LocalBlobStore, key: str, *given: Any, **more: Any) -> bytes:
        if key.startswith("ice/"):
            reads[key] += 1
        return get(store, key, *given, **more)

    with mock.patch.object(LocalBlobStore, "get", counting):
        yield


def _read(repository: Repository, keys: list[str]) -> None:
    """The floor: each file is read and decoded once, by as many threads."""
    blobs = repository._core.stores.trees.blobs

    def read(key: str) -> None:
        data = blobs.get(key)
        if key.endswith(".json"):
            json.loads(data)
        else:
            read_avro(data, {"manifest_path"} if "/snap-" in key else {"status", "data_file", "file_path"})

    for _ in in_parallel(read, keys):
        pass


def _avro(schema: Any, rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, rows)  # not compressed, so that a key can be put in place of another one
    return out.getvalue()


def _fill(main: Branch) -> None:
    """Tables whose every snapshot has added a manifest with one file."""
    blobs = main._core.resolver.namespace
    root = blobs.local_path("x")
    assert root is not None
    root = root[:-1]
    below = f"file://{root}ice/{KEY}/part"
    manifests = [f"{below}/metadata/{n:03d}-m0.avro" for n in range(SNAPSHOTS)]
    lists = [f"{below}/metadata/snap-{n:03d}.avro" for n in range(SNAPSHOTS)]
    made: dict[str, bytes] = {}
    for n in range(SNAPSHOTS):
        row = {"status": 1, "data_file": {"file_path": f"{below}/data/{n:03d}.parquet"}}
        made[manifests[n]] = _avro(ENTRY, [row])
        made[lists[n]] = _avro(LIST, [{"manifest_path": one} for one in manifests[: n + 1]])
    for commit in range(COMMITS):
        shown = lists[: SNAPSHOTS - COMMITS + 1 + commit]
        snapshots = [{"snapshot-id": n + 1, "manifest-list": one} for n, one in enumerate(shown)]
        made[f"{below}/metadata/{commit:05d}-v.metadata.json"] = json.dumps({"snapshots": snapshots}).encode()
    for number in range(TABLES):
        key = f"{number:020d}"
        Path(f"{root}ice/{key}/part/metadata").mkdir(parents=True)
        for at, data in made.items():
            path = at.removeprefix("file://").replace(KEY, key, 1)
            Path(path).write_bytes(data.replace(KEY.encode(), key.encode()))
    for commit in range(COMMITS):
        entries = []
        for number in range(TABLES):
            address = f"ice/{number:020d}/part/metadata/{commit:05d}-v.metadata.json"
            entries.append((pointer_of(("db", f"t{number}")), Entry(address, 9, f"c{commit}-{number}", 1)))
        main.stage_each(entries)
        main.commit(f"version {commit}")
