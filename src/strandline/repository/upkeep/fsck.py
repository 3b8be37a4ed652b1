"""`fsck`: whether everything that a repository refers to is there and whole, and what lies there that nobody refers to.

References are read first and files are listed afterwards, so what is written meanwhile is never taken for missing.
Nothing is changed. Memory: the keys of all files, as a column, and what is staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.at import BranchAt
from strandline.branch.commits import CommitLog
from strandline.branch.reflog import read_moves
from strandline.branch.rules.record import BranchRecord, RefRecord, TagRecord
from strandline.branch.staged import scan_staged
from strandline.branch.token_queue import queued_tokens
from strandline.branch.view import consistently
from strandline.core.iceberg_files import Reach
from strandline.core.promises import expired
from strandline.core.repository_core import RepositoryCore
from strandline.envelope import decode
from strandline.errors import BranchGone, Contention, FormatError, NotFound, ObjectMissing
from strandline.ids import CommitId
from strandline.parallel import in_parallel
from strandline.progress import Progress, no_progress
from strandline.repository.upkeep.content import changed_elsewhere, other_bytes
from strandline.repository.upkeep.files import Files
from strandline.tree.files import TreeFiles
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.store import EMPTY, METARANGES_FOLDER, TreeRef, TreeStore

CACHE_MAX_BYTES = 1 << 20
"""What is checked is read from the object store, not from memory."""
YOUNG_S = 3_600
"""A file that is younger than this may be about to be referred to."""
SHOWN = 1_000
OBJECT_COLUMNS = ["path", "physical_address", "size", "checksum"]
CHUNK_BYTES = 1 << 20


@dataclass
class FsckReport:
    """What `Repository.fsck` found.

    Attributes:
        branches, tags, commits, trees, ranges, objects, staged: how many were looked at; objects and staged entries
            count once for each place that refers to them.
        imported: objects whose bytes somebody else keeps: whether they are there, with size and tag, is looked at.
        iceberg: files with the metadata of Iceberg's tables and views, which were followed to all that they refer to.
        expired: commits that no retention rule keeps; their files may be gone.
        unreachable: commits that no branch, tag or reflog leads to; they can still be read by their ids.
        problems: what is missing or damaged, in words, at most `SHOWN`.
        problem_count: how many there are.
        is_complete: whether all metadata could be read; if not, what it refers to is among the orphans.
        orphans, orphan_bytes: files that nothing refers to, not even an unreachable commit: overwritten and discarded
            writes, trees that were compacted again, and what failed or overtaken operations left.
        young_orphans: those of them that may be about to be referred to.
        waiting_tokens: staging tokens that wait to be swept.
        compared: files whose bytes were compared with checksums of our own; 0 unless content was asked for.
        pages_compared: Parquet files whose pages were compared with the checksums that their writer put beside them.
        sizes_compared: files of which nothing but the size, or a tag of the store, was compared.
    """

    branches: int = 0
    tags: int = 0
    commits: int = 0
    trees: int = 0
    ranges: int = 0
    objects: int = 0
    staged: int = 0
    imported: int = 0
    iceberg: int = 0
    expired: int = 0
    unreachable: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    is_complete: bool = True
    orphans: int = 0
    orphan_bytes: int = 0
    young_orphans: int = 0
    waiting_tokens: int = 0
    compared: int = 0
    pages_compared: int = 0
    sizes_compared: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether no problem was found."""
        return self.problem_count == 0

    def add(self, problem: str, *, is_metadata: bool = True) -> None:
        """Add a problem; after the first ones only their number is kept."""
        self.problem_count += 1
        self.is_complete = self.is_complete and not is_metadata
        if len(self.problems) < SHOWN:
            self.problems.append(problem)


def fsck(core: RepositoryCore, progress: Progress = no_progress, *, content: bool = False) -> FsckReport:
    """Read all metadata of a repository and compare it with the files that there are.

    Args:
        progress: called after each range.
        content: also read the bytes, and compare them with their checksums.

    Raises:
        StoreUnavailable: a store does not answer. What it answers wrongly is in the audit.
    """
    return _Fsck(core, progress, content).run()


class _Fsck:
    def __init__(self, core: RepositoryCore, progress: Progress, content: bool) -> None:
        self._core = core
        self._progress = progress
        self._content = content
        self._read: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._seen: set[CommitId] = set()
        self._audit = FsckReport()
        self._expired = set(expired(core.stores))
        self._trees = TreeStore(core.stores.trees.blobs, CACHE_MAX_BYTES)
        self._broken: list[str] = []
        self._commits = CommitLog(core.stores)
        self._staged: list[pa.Table] = []

    def run(self) -> FsckReport:
        heads, tree_refs = self._refs()
        for ref in self._walk(heads):
            tree_refs.setdefault(ref, "a commit")
        found, metarange_keys = self._parts(tree_refs)
        self._files = Files(self._core.stores.trees.blobs)
        self._files.mark(pa.array([*metarange_keys, *found.addresses], pa.string()))
        for rows in self._staged:
            self._objects(rows)
        for done, info in enumerate(found.ranges.values(), 1):
            self._range(info)
            self._progress("reading ranges", done, len(found.ranges))
        self._iceberg()
        self._unreachable(found)
        self._orphans()
        self._audit.waiting_tokens = queued_tokens(self._core.stores)
        return self._audit

    def _refs(self) -> tuple[list[CommitId], dict[TreeRef, str]]:
        heads: list[CommitId] = []
        trees: dict[TreeRef, str] = {}
        for key, value in self._core.stores.kv.scan(self._core.stores.refs):
            name = key.decode()
            try:
                record = decode(RefRecord, value, f"ref {name!r}")
            except FormatError as error:
                self._audit.add(error.what)
                continue
            if isinstance(record, TagRecord):
                self._audit.tags += 1
                heads.append(record.commit)
            elif isinstance(record, BranchRecord):
                self._branch(name, record, heads, trees)
        return heads, trees

    def _branch(self, name: str, record: BranchRecord, heads: list[CommitId], trees: dict[TreeRef, str]) -> None:
        at = BranchAt.of(self._core.stores, name, record.branch_id)

        def read(now: BranchRecord) -> tuple[BranchRecord, list[pa.Table], int]:
            rows, count = [], 0
            for batch in scan_staged(self._core.stores, now.tokens):
                count += len(batch)
                rows.append(batch.rows.select(OBJECT_COLUMNS).filter(pa.array(~batch.deleted)))
            return now, rows, count

        try:
            now, staged, count = consistently(at, read)
        except BranchGone:
            return
        except (FormatError, Contention) as error:
            self._audit.add(f"What is staged on branch {name!r} could not be checked: {error.what}")
            now, staged, count = record, [], 0
        self._audit.branches += 1
        self._audit.staged += count
        self._staged += staged
        heads.append(now.head)
        try:
            for move in read_moves(self._core.stores, now):
                heads += [move.after, *([move.before] if move.before else [])]
        except FormatError as error:
            self._audit.add(error.what)
        if now.compacted is not None:
            trees[now.compacted] = f"branch {name!r}"

    def _walk(self, heads: Sequence[CommitId]) -> Iterator[TreeRef]:
        """The trees of all commits that can be reached."""
        seen = self._seen
        waiting = list(heads)
        while waiting:
            id = waiting.pop()
            if id in seen:
                continue
            seen.add(id)
            try:
                commit = self._commits.get(id)
            except (NotFound, FormatError) as error:
                self._audit.add(error.what if isinstance(error, FormatError) else f"The record of commit {id} is gone.")
                continue
            self._audit.commits += 1
            waiting.extend(commit.parents)
            if id in self._expired:
                self._audit.expired += 1
            else:
                yield commit.tree_ref

    def _unreachable(self, known: TreeFiles) -> None:
        """Note what commits refer to that nothing leads to: of a deleted branch, or made in vain. It is not checked."""
        for commit in self._commits.all():
            if commit.id in self._seen or commit.id in self._expired:
                continue
            self._audit.unreachable += 1
            ref = commit.tree_ref
            try:
                fresh = known.add(self._trees.tree(ref))
                if self._broken:
                    self._audit.is_complete = False
                    self._broken.clear()
                keys = [f"{METARANGES_FOLDER}/{ref}.parquet", *(part.address for part in fresh)]
                self._files.mark(pa.array(keys, pa.string()))
                for part in fresh:
                    if isinstance(part, RangeInfo):
                        self._files.mark(column(self._trees.rows(part), "physical_address"))
            except (ObjectMissing, FormatError):
                self._audit.is_complete = False

    def _parts(self, trees: dict[TreeRef, str]) -> tuple[TreeFiles, list[str]]:
        found = TreeFiles(self._trees, lambda _, error: self._broken.append(error.what))
        files: list[str] = []
        for ref, of in trees.items():
            if ref == EMPTY.ref:
                continue
            self._audit.trees += 1
            files.append(f"{METARANGES_FOLDER}/{ref}.parquet")
            try:
                tree = self._trees.tree(ref)
            except (ObjectMissing, FormatError) as error:
                self._audit.add(f"{error.what} ({of} needs it)")
                continue
            found.add(tree)
            for what in self._broken:
                self._audit.add(f"{what} ({of} needs it)")
            self._broken.clear()
        return found, files

    def _range(self, info: RangeInfo) -> None:
        self._audit.ranges += 1
        try:
            rows = self._trees.rows(info)
        except (ObjectMissing, FormatError) as error:
            self._audit.add(error.what)
            return
        self._audit.objects += rows.num_rows
        self._objects(rows.select(OBJECT_COLUMNS))

    def _objects(self, rows: pa.Table) -> None:
        elsewhere = pc.match_substring(column(rows, "physical_address"), "://")
        self._audit.imported += pc.sum(elsewhere).as_py() or 0
        self._imported(rows.filter(elsewhere))
        rows = rows.filter(pc.invert(elsewhere)).combine_chunks()
        found, sizes = self._files.mark(column(rows, "physical_address"))
        expected = column(rows, "size").to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(~found | (sizes != expected)).tolist():
            path, address = column(rows, "path")[at].as_py(), column(rows, "physical_address")[at].as_py()
            if (path, address) in self._told:
                continue  # an object that many trees have is one problem
            self._told.add((path, address))
            if found[at]:
                told = f"{path!r} has {sizes[at]:,} bytes instead of {expected[at]:,}, in {address!r}."
            else:
                told = f"The bytes of {path!r} are gone: there is no file {address!r}."
            self._audit.add(told, is_metadata=False)
        if self._content:
            self._compare(rows.filter(pa.array(found & (sizes == expected))))

    def _iceberg(self) -> None:
        """Follow the metadata of Iceberg's tables, each by itself: what one lacks says nothing about the others."""
        reach = Reach(self._core.stores.trees.blobs)
        for metadata in self._files.referred_metadata():
            self._audit.iceberg += 1
            try:
                keys = sorted({key for part in reach.from_metadata([metadata]) for key in part})
            except FormatError as error:
                self._audit.add(error.what)
                continue
            found, _ = self._files.mark(pa.array(keys, pa.string()))
            for at in np.flatnonzero(~found).tolist():
                told = f"The file {keys[at]!r} is gone, to which the Iceberg metadata {metadata!r} refers."
                self._audit.add(told, is_metadata=False)

    def _imported(self, rows: pa.Table) -> None:
        """Ask for size and tag of what somebody else keeps, once for each address."""
        wanted = []
        for path, address, size, checksum in zip(
            *(rows.column(name).to_pylist() for name in OBJECT_COLUMNS), strict=True
        ):
            if address not in self._read:
                self._read.add(address)
                wanted.append((path, address, size, checksum))

        resolver = self._core.resolver
        for problem in in_parallel(lambda one: changed_elsewhere(resolver, *one), wanted):
            if problem is not None:
                self._audit.add(problem, is_metadata=False)

    def _compare(self, rows: pa.Table) -> None:
        """Read bytes and compare them with what is known of them: a checksum of ours, or those of Parquet's pages."""
        blobs = self._core.stores.trees.blobs
        wanted = []
        for path, address, _, checksum in zip(*(rows.column(name).to_pylist() for name in OBJECT_COLUMNS), strict=True):
            if address in self._read:
                continue
            self._read.add(address)
            if checksum.startswith("blake3:"):
                self._audit.compared += 1
            elif address.endswith(".parquet"):
                self._audit.pages_compared += 1
            else:
                self._audit.sizes_compared += 1
                continue
            wanted.append((path, address, checksum))

        for problem in in_parallel(lambda one: other_bytes(blobs, *one), wanted):
            if problem is not None:
                self._audit.add(problem, is_metadata=False)

    def _orphans(self) -> None:
        files = self._files
        orphan = ~files.is_referred
        now_us = self._core.stores.clock.now_us()
        self._audit.orphans = int(orphan.sum())
        self._audit.orphan_bytes = int(files.sizes[orphan].sum())
        self._audit.young_orphans = int((now_us - files.times[orphan] < YOUNG_S * 1_000_000).sum())
