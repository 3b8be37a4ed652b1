"""Making a backup while the lake is in use.

What points is read before what it points to: refs, then commits, then trees, then bytes. Everything below a ref is
immutable, and nothing that is referred to is deleted, so each branch and tag is in the backup as it was at one instant,
and all that it needs is read after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.backup.layout import (
    Manifest,
    Pair,
    SavedBranch,
    SavedRepository,
    file_key,
    load_manifest,
    records_key,
    refs_key,
    runs_prefix,
    save_manifest,
    save_pairs,
    staged_key,
)
from strandline.blob import BlobNotFound, BlobStore, is_absolute
from strandline.branch import repeats, shared_changes, transactions
from strandline.branch.at import BranchAt
from strandline.branch.commits import CommitLog, commit_pair
from strandline.branch.reflog import block_pairs, read_moves
from strandline.branch.rules.record import BranchRecord, RefRecord, TagRecord
from strandline.branch.staged import staged_window
from strandline.branch.stores import Stores
from strandline.branch.view import consistently
from strandline.clock import Microseconds
from strandline.core.iceberg_files import Reach, is_metadata
from strandline.core.promises import expired, expired_pair
from strandline.core.record import RepositoryRecord
from strandline.envelope import decode, encode
from strandline.errors import AlreadyExists, BranchGone, Corrupted, NotFound, ObjectMissing
from strandline.ids import CommitId, new_id
from strandline.parallel import in_parallel
from strandline.progress import Progress
from strandline.tree.files import TreeFiles
from strandline.tree.rows import changes_from_staged, column
from strandline.tree.store import EMPTY, METARANGES_FOLDER, TreeRef, TreeStore

SCAN_KEYS = 20_000
COPY_WHOLE_MAX_BYTES = 8 << 20
"""Larger files are copied piece by piece."""


@dataclass(frozen=True, slots=True)
class Source:
    """A repository to be saved."""

    record: RepositoryRecord
    stores: Stores


@dataclass
class _Found:
    """What a repository's refs lead to."""

    refs: list[Pair] = field(default_factory=list)
    branches: list[SavedBranch] = field(default_factory=list)
    tags: int = 0
    heads: set[CommitId] = field(default_factory=set)
    trees: set[TreeRef] = field(default_factory=set)
    blocks: list[Pair] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict)
    """Sizes of staged objects by their physical addresses within the namespace."""


def save(
    place: BlobStore,
    sources: Iterable[Source],
    lake_id: str,
    now: Microseconds,
    *,
    data: bool,
    progress: Progress,
) -> Manifest:
    """Save repositories; what an earlier backup at the same place has already is not copied again."""
    _held(place, lake_id)  # refuse another lake's place before anything is written
    saved = {one.record.id: one for one in (_Save(place, source, data, progress).run() for source in sources)}
    before = _held(place, lake_id)
    kept = [one for one in before if one.record.id not in saved]
    manifest = Manifest(lake_id=lake_id, made_at=now, repositories=(*kept, *saved.values()))
    save_manifest(place, manifest)
    for one in before:  # records of the runs that the manifest just replaced was about
        if one.record.id in saved:
            place.delete_many([info.key for info in place.list(f"{runs_prefix(one.record.id)}{one.run}/")])
    return manifest


def _held(place: BlobStore, lake_id: str) -> tuple[SavedRepository, ...]:
    """The repositories of an earlier backup at the same place, which stay in it."""
    try:
        manifest = load_manifest(place)
    except NotFound:
        return ()
    if manifest.lake_id != lake_id:
        raise AlreadyExists(f"There is a backup of another lake at {place.url}.", next="Take another place.")
    return manifest.repositories


class _Save:
    def __init__(self, place: BlobStore, source: Source, data: bool, progress: Progress) -> None:
        self._place = place
        self._record = replace(source.record, lock=None)
        self._stores = source.stores
        self._run = new_id()
        self._data = data
        self._progress = progress
        self._trees = TreeStore(source.stores.trees.blobs, 8 << 20)
        self._commits = CommitLog(source.stores)
        self._expired = expired(source.stores)

    def run(self) -> SavedRepository:
        id = self._record.id
        found = self._refs()
        self._place.put(refs_key(id, self._run), msgspec.msgpack.encode(found.refs))
        commits = list(self._walk(found))
        pages, _ = save_pairs(self._place, lambda number: records_key(id, self._run, number), [*commits, *found.blocks])
        files, size = self._copy(self._files(found))
        return SavedRepository(
            record=self._record,
            run=self._run,
            url=self._stores.trees.blobs.url,
            branches=tuple(found.branches),
            tags=found.tags,
            commits=len(commits),
            record_pages=pages,
            files=files,
            bytes=size,
            has_data=self._data,
        )

    def _refs(self) -> _Found:
        found = _Found()
        for key, value in self._stores.kv.scan(self._stores.refs):
            name = key.decode()
            record = decode(RefRecord, value, f"ref {name!r}")
            if isinstance(record, TagRecord):
                found.tags += 1
                found.heads.add(record.commit)
                found.refs.append((key, value))
            elif isinstance(record, BranchRecord):
                self._branch(name, record, found)
        return found

    def _branch(self, name: str, record: BranchRecord, found: _Found) -> None:
        at = BranchAt.of(self._stores, name, record.branch_id)

        def read(now: BranchRecord) -> tuple[BranchRecord, list[Pair]]:
            return now, list(_staged(self._stores, now))

        try:
            now, pairs = consistently(at, read)
        except BranchGone:
            return
        id = self._record.id
        _, count = save_pairs(self._place, lambda number: staged_key(id, self._run, now.branch_id, number), pairs)
        if pairs:
            rows = changes_from_staged([key for key, _ in pairs], [value for _, value in pairs])
            found.objects.update(_own_sizes(rows.rows))
        # locks are of processes that work on this lake
        found.refs.append((name.encode(), encode(replace(now, locks=(), whole=None, waiting=()))))
        found.branches.append(SavedBranch(name, now.head, count))
        found.heads.add(now.head)
        found.blocks += block_pairs(self._stores, now)
        found.blocks += [*repeats.pairs(self._stores, now), *transactions.record_pairs(self._stores, now.branch_id)]
        found.blocks += shared_changes.pairs(self._stores, now.branch_id)
        for move in read_moves(self._stores, now):
            found.heads |= {move.after, *([move.before] if move.before else [])}
        if now.compacted is not None:
            found.trees.add(now.compacted)

    def _walk(self, found: _Found) -> Iterator[Pair]:
        """The records of all commits that refs and reflogs lead to."""
        waiting, seen = list(found.heads), set(found.heads)
        while waiting:
            commit = self._commits.get(waiting.pop())
            if commit.id in self._expired:
                yield expired_pair(commit.id, self._expired[commit.id])  # its files may be gone
            else:
                found.trees.add(commit.tree_ref)
            yield commit_pair(commit)
            for parent in commit.parents:
                if parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)

    def _files(self, found: _Found) -> dict[str, int | None]:
        """The keys of all files that belong into the backup, with their sizes where those are on record."""
        files: dict[str, int | None] = {}
        trees = TreeFiles(self._trees)
        for ref in found.trees - {EMPTY.ref}:
            files[f"{METARANGES_FOLDER}/{ref}.parquet"] = None
            trees.add(self._trees.tree(ref))
        files |= dict.fromkeys(trees.addresses)
        if self._data:
            files |= found.objects
            for info in trees.ranges.values():
                files |= _own_sizes(self._trees.rows(info))
            metadata = [key for key in files if is_metadata(key)]
            for keys in Reach(self._stores.trees.blobs, self._progress).from_metadata(metadata) if metadata else ():
                files.update((key, None) for key in keys if key not in files)
        return files

    def _copy(self, files: dict[str, int | None]) -> tuple[int, int]:
        keys = sorted(files)
        id = self._record.id
        cut = len(file_key(id, ""))
        there = {info.key[cut:]: info.size for info in self._place.list(file_key(id, ""))}
        total = sum(there[key] for key in keys if key in there)
        missing = [key for key in keys if key not in there]
        done = len(keys) - len(missing)
        blobs = self._stores.trees.blobs
        copy = partial(copy_file, blobs, self._place)
        for size in in_parallel(lambda key: copy(key, file_key(id, key), files[key]), missing):
            done, total = done + 1, total + size
            self._progress("copying", done, len(keys))
        return len(keys), total


def _staged(stores: Stores, record: BranchRecord) -> Iterator[Pair]:
    """The newest staged entry of each path."""
    start: bytes | None = b""
    while start is not None:
        keys, values, reach = staged_window(stores, record.tokens, start, None, SCAN_KEYS)
        yield from zip(keys, values, strict=True)
        start = None if reach is None else reach + b"\0"


def _own_sizes(rows: pa.Table) -> dict[str, int]:
    """The sizes of objects by their addresses, of those within the namespace."""
    pairs = zip(column(rows, "physical_address").to_pylist(), column(rows, "size").to_pylist(), strict=True)
    return {address: size for address, size in pairs if address is not None and not is_absolute(address)}


def copy_file(source: BlobStore, target: BlobStore, key: str, to: str, expected: int | None = None) -> int:
    """Copy a file; returns its size. It appears whole or not at all.

    Args:
        expected: its size, if that is on record.

    Raises:
        ObjectMissing: it is not there.
        Corrupted: it has another size.
    """
    try:
        size = source.head(key).size
        if expected is not None and size != expected:
            raise Corrupted(
                f"The file {key!r} in {source.url} has {size:,} bytes instead of {expected:,}: it was cut, or written "
                "over.",
                safe="The backup is not complete; what an earlier one at its place holds is there still.",
                next="`strandline fsck` names the objects; restore the file, or delete them, then repeat the backup.",
            )
        if size <= COPY_WHOLE_MAX_BYTES:
            target.put(to, source.get(key))
        else:
            with source.open_read(key) as file:
                target.put(to, file)
    except BlobNotFound:
        raise ObjectMissing(
            f"There is nothing at {key!r} in {source.url}, though it is referred to.",
            next="`strandline fsck` says what else is missing.",
        ) from None
    return size
