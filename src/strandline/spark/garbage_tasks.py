"""What tasks of a garbage collection on Spark do: list, read, judge links, write lists, and delete by them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.blob import BlobNotFound, BlobStore, open_store
from strandline.core.condemned import ListPart, without, write_part
from strandline.core.iceberg_files import MEND, Named, named_by
from strandline.core.physical import ICEBERG_ROOT, TRANSACTIONS_FOLDER
from strandline.core.shapes import are_own
from strandline.errors import Corrupted, FormatError, ObjectMissing, UsageError
from strandline.repository.upkeep.judging import Round, delete_listed, listed_in
from strandline.spark.versions import Task
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.store import TreeStore

NAMED_AT_ONCE = 10_000
NAMED = ("kind", "key", "source")
LISTED = pa.schema(
    [("key", pa.string()), ("size", pa.int64()), ("time", pa.int64()), ("own", pa.bool_()), ("owner", pa.string())]
)
_OWNERS = (
    rf"(?s)^(?:data/sl_branch=|{ICEBERG_ROOT}/[^/]*/)([0-9a-f]{{20}})\.txn-([0-9]{{16}})/.*$",
    rf"(?s)^{TRANSACTIONS_FOLDER}/([0-9a-f]{{20}})/([0-9]{{16}})/.*$",
)
"""Keys of what a transaction wrote, or of what is about it; the groups are branch and id."""
Batches = Iterable[pa.RecordBatch]


def lists(url: str) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            for row in batch.to_pylist():
                for page in blobs.list_between("", row["after"], row["last"]):
                    keys = pa.array([info.key for info in page], pa.string())
                    columns = [
                        keys,
                        pa.array([info.size for info in page], pa.int64()),
                        pa.array([info.modified_at_us for info in page], pa.int64()),
                        pa.array(are_own(keys.cast(pa.large_string())), pa.bool_()),
                        owners_of(keys),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=LISTED)

    return run


def owners_of(keys: pa.StringArray) -> pa.StringArray:
    """The transactions that files belong to: branch id and id of 16 digits; null for all others."""
    found = pa.nulls(len(keys), pa.string())
    for pattern in _OWNERS:
        is_so = pc.match_substring_regex(keys, pattern)
        found = pc.if_else(is_so, pc.replace_substring_regex(keys, pattern, r"\1\2"), found)
    return found


def keys_of(url: str) -> Task:
    """Reads ranges: the keys of their objects that lie in the namespace."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        trees = TreeStore(open_store(url), cache_max_bytes=0)
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    addresses = column(trees.rows(RangeInfo(**row)), "physical_address")
                except (ObjectMissing, FormatError) as error:
                    yield _found([None], error)
                    continue
                is_own = pc.invert(pc.match_substring(addresses, "://"))
                yield _found(addresses.filter(is_own))

    return run


def _found(keys: Any, error: Exception | None = None) -> pa.RecordBatch:
    errors = pa.array([None if error is None else pickle.dumps(error)] * len(keys), pa.binary())
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), errors], names=["key", "error"])


def reads(url: str) -> Task:
    """Reads files in a Python worker, which gets the address of the store and finds credentials where it runs."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        schema = pa.schema([*((name, pa.string()) for name in NAMED), ("error", pa.binary())])
        for batch in batches:
            for row in batch.to_pylist():
                if not row["source"] and not blobs.exists(row["key"]):
                    continue
                try:
                    named = named_by(blobs, Named(row["kind"], row["key"], row["source"]))
                except Corrupted as error:
                    refused = pickle.dumps(Corrupted(error.what, next=MEND))
                    yield pa.RecordBatch.from_pylist([{**row, "kind": "file", "error": refused}], schema)
                    continue
                except UsageError as error:  # such as a library that an executor lacks
                    yield pa.RecordBatch.from_pylist([{**row, "kind": "file", "error": pickle.dumps(error)}], schema)
                    continue
                for first in range(0, len(named), NAMED_AT_ONCE):
                    some = named[first : first + NAMED_AT_ONCE]
                    columns = [pa.array([getattr(one, name) for one in some], pa.string()) for name in NAMED]
                    yield pa.RecordBatch.from_arrays([*columns, pa.nulls(len(some), pa.binary())], schema=schema)

    return run


def listed_dead(url: str) -> Task:
    """Reads deadlists: of each, what its own transaction wrote."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            for row in batch.to_pylist():
                keys = pa.array(listed_in(blobs, row["key"]), pa.string())
                branch, id = row["key"].split("/")[2:4]
                is_its_own = pc.starts_with(keys, f"data/sl_branch={branch}.txn-{id}/")
                yield pa.RecordBatch.from_arrays([keys.filter(is_its_own)], names=["key"])

    return run


def marks_links(url: str) -> Task:
    """Says which of the files that go lie behind a link to another place."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            goes = batch.filter(pc.equal(batch.column("fate"), "goes")).column("key").to_pylist()
            away = pa.array(sorted(blobs.through_links(goes)), pa.string())
            yield batch.append_column("away", pc.is_in(batch.column("key"), away))

    return run


def writes_lists(url: str, folder: str) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        listed = [batch for batch in batches if batch.num_rows]
        if listed:
            whole = pa.Table.from_batches(listed).combine_chunks()
            keys, sizes = (whole.column(name).chunk(0) for name in ("key", "size"))
            yield _told([write_part(open_store(url), folder, keys.cast(pa.string()), sizes)])

    return run


def settles(url: str, folder: str, linked: str) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for part in _parts(batches):
            try:
                left = without(blobs, folder, part, _linked_between(blobs, linked, part.first, part.last))
            except (BlobNotFound, Corrupted) as error:
                yield _told([], error)
                continue
            yield _told([] if left is None else [left])

    return run


def _linked_between(blobs: BlobStore, file: str, first: str, last: str) -> pa.StringArray:
    """The keys of a file of links that lie between two keys."""
    with blobs.open_read(file) as body:
        links = pq.ParquetFile(body)
        bounds = [links.metadata.row_group(at).column(0).statistics for at in range(links.metadata.num_row_groups)]
        groups = [
            at
            for at, one in enumerate(bounds)
            if one is None or not one.has_min_max or (one.max >= first and one.min <= last)
        ]
        keys = links.read_row_groups(groups).column(0).combine_chunks().cast(pa.string())
    return keys.filter(pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last)))


def deletes(url: str, round: Round) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for part in _parts(batches):
            try:
                yield _told([part] if delete_listed(blobs, round, part) else [])
            except (BlobNotFound, Corrupted) as error:
                yield _told([], error)

    return run


def _parts(batches: Batches) -> Iterator[ListPart]:
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield msgspec.json.decode(text, type=ListPart)


def _told(parts: Sequence[ListPart], error: Exception | None = None) -> pa.RecordBatch:
    texts = [msgspec.json.encode(part).decode() for part in parts] if error is None else [None]
    errors = [None if error is None else pickle.dumps(error)] * len(texts)
    return pa.RecordBatch.from_arrays(
        [pa.array(texts, pa.string()), pa.array(errors, pa.binary())], names=["part", "error"]
    )
