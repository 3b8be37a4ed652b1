"""Making a backup while the lake is in use.

What points is read before what it points to: refs, then commits, then trees, then bytes. Everything below a ref is
immutable, and nothing that is referred to is deleted, so each branch and tag is in the backup as it was at one instant,
and all that it needs is read after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
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
from strandline.backup.moving import Mover, copy_missing, own_sizes, sizes_at
from strandline.blob import BlobStore
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
from strandline.errors import AlreadyExists, BranchGone, NotFound
from strandline.ids import CommitId, new_id
from strandline.progress import Progress
from strandline.tree.files import TreeFiles
from strandline.tree.rows import changes_from_staged
from strandline.tree.store import EMPTY, METARANGES_FOLDER, TreeRef, TreeStore

SCAN_KEYS = 20_000
METADATA_FOLDER = "_strandline/"


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
    mover: Mover,
) -> Manifest:
    """Save repositories; what an earlier backup at the same place has already is not copied again.

    Args:
        mover: copies objects.
    """
    _held(place, lake_id)  # refuse another lake's place before anything is written
    saved = {one.record.id: one for one in (save_one(place, one, data, progress, mover) for one in sources)}
    before = _held(place, lake_id)
    kept = [one for one in before if one.record.id not in saved]
    manifest = Manifest(lake_id=lake_id, made_at=now, repositories=(*kept, *saved.values()))
    save_manifest(place, manifest)
    for one in before:  # records of the runs that the manifest just replaced was about
        if one.record.id in saved:
            place.delete_many([info.key for info in place.list(f"{runs_prefix(one.record.id)}{one.run}/")])
    return manifest


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Where the files of a repository are copied to.

    Attributes:
        prefix: before their keys.
    """

    store: BlobStore
    prefix: str


def save_one(
    place: BlobStore, source: Source, data: bool, progress: Progress, mover: Mover, files_at: FilesAt | None = None
) -> SavedRepository:
    """Save a repository without a manifest.

    Args:
        files_at: where its files go; by default to the records.
    """
    return _Save(place, source, data, progress, mover, files_at).run()


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
    def __init__(
        self, place: BlobStore, source: Source, data: bool, progress: Progress, mover: Mover, files_at: FilesAt | None
    ) -> None:
        self._place = place
        self._mover = mover
        self._files_at = FilesAt(place, file_key(source.record.id, "")) if files_at is None else files_at
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
        files, size = self._copy(found)
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
            found.objects.update(own_sizes(rows.rows))
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

    def _copy(self, found: _Found) -> tuple[int, int]:
        """Copy the trees, and the objects in them; how many files these are, and their bytes."""
        blobs = self._stores.trees.blobs
        trees = TreeFiles(self._trees)
        files: dict[str, int | None] = {}
        for ref in found.trees - {EMPTY.ref}:
            files[f"{METARANGES_FOLDER}/{ref}.parquet"] = None
            trees.add(self._trees.tree(ref))
        files |= dict.fromkeys(trees.addresses)
        there = sizes_at(self._files_at.store, self._files_at.prefix + METADATA_FOLDER)
        held = {METADATA_FOLDER + key: size for key, size in there.items()}
        count, size = copy_missing(blobs, files, held, self._files_at.store, self._files_at.prefix, self._progress)
        if self._data:
            ranges = list(trees.ranges.values())
            more: dict[str, int | None] = {**found.objects}
            metadata = [*self._mover.metadata(blobs, ranges), *filter(is_metadata, found.objects)]
            for keys in Reach(blobs, self._progress).from_metadata(sorted(set(metadata))) if metadata else ():
                more.update((key, None) for key in keys if key not in more)
            objects, taken = self._mover.objects(
                blobs, ranges, more, self._files_at.store, self._files_at.prefix, self._progress
            )
            count, size = count + objects, size + taken
        return count, size


def _staged(stores: Stores, record: BranchRecord) -> Iterator[Pair]:
    """The newest staged entry of each path."""
    start: bytes | None = b""
    while start is not None:
        keys, values, reach = staged_window(stores, record.tokens, start, None, SCAN_KEYS)
        yield from zip(keys, values, strict=True)
        start = None if reach is None else reach + b"\0"
