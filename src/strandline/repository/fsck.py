"""`fsck`: whether everything that a repository refers to is there and whole, and what lies there that nobody refers to.

References are read first and files are listed afterwards, so what is written meanwhile is never taken for missing.
Nothing is changed. Memory: the addresses of all objects and the keys of all files, as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.cell import BranchCell
from strandline.branch.commits import CommitLog
from strandline.branch.record import Branch, RefRecord, Tag
from strandline.branch.staging import scan_staged
from strandline.branch.token_queue import queued_tokens
from strandline.branch.view import consistently
from strandline.envelope import decode
from strandline.errors import BranchGone, FormatError, NotFound, ObjectMissing
from strandline.ids import CommitId
from strandline.repository.catalog import MARKER
from strandline.repository.core import RepositoryCore
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.store import EMPTY, METARANGES_FOLDER, TreeRef, TreeStore

CACHE_MAX_BYTES = 1 << 20
"""What is checked is read from the object store, not from memory."""
YOUNG_S = 3_600
"""A file that is younger than this may be about to be referred to."""
SHOWN = 1_000
Progress = Callable[[], object]


@dataclass
class Audit:
    """What `Repository.fsck` found.

    Attributes:
        branches, tags, commits, trees, ranges, objects, staged: how many were looked at; objects and staged entries
            count once for each place that refers to them.
        imported: objects whose bytes somebody else keeps; they are not looked at.
        problems: what is missing or damaged, in words, at most `SHOWN`.
        problem_count: how many there are.
        orphans, orphan_bytes: files that nobody refers to, left by failed or overtaken operations.
        young_orphans: those of them that may be about to be referred to.
        waiting_tokens: staging tokens that wait to be swept.
    """

    branches: int = 0
    tags: int = 0
    commits: int = 0
    trees: int = 0
    ranges: int = 0
    objects: int = 0
    staged: int = 0
    imported: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    young_orphans: int = 0
    waiting_tokens: int = 0

    @property
    def is_sound(self) -> bool:
        return self.problem_count == 0

    def add(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < SHOWN:
            self.problems.append(problem)


def fsck(core: RepositoryCore, progress: Progress = lambda: None) -> Audit:
    """Read all metadata of a repository and compare it with the files that there are.

    Args:
        progress: called after each range.

    Raises:
        StoreUnavailable: a store does not answer. What it answers wrongly is in the audit.
    """
    return _Fsck(core, progress).run()


class _Fsck:
    def __init__(self, core: RepositoryCore, progress: Progress) -> None:
        self._core = core
        self._progress = progress
        self._audit = Audit()
        self._trees = TreeStore(core.stores.trees.blobs, CACHE_MAX_BYTES)
        self._commits = CommitLog(core.stores)
        self._referred: list[pa.StringArray] = []
        self._staged: list[tuple[pa.StringArray, pa.StringArray]] = []

    def run(self) -> Audit:
        heads, tree_refs = self._refs()
        for ref in self._walk(heads):
            tree_refs.setdefault(ref, "a commit")
        ranges = self._ranges(tree_refs)
        keys, sizes, ages = self._files()
        for paths, addresses in self._staged:
            self._objects(paths, addresses, keys)
        for info in ranges.values():
            self._range(info, keys)
            self._progress()
        self._orphans(keys, sizes, ages)
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
            if isinstance(record, Tag):
                self._audit.tags += 1
                heads.append(record.commit)
            elif isinstance(record, Branch):
                self._branch(name, record, heads, trees)
        return heads, trees

    def _branch(self, name: str, record: Branch, heads: list[CommitId], trees: dict[TreeRef, str]) -> None:
        cell = BranchCell(self._core.stores, name)

        def read(now: Branch) -> tuple[Branch, list[tuple[pa.StringArray, pa.StringArray]], int]:
            staged, count = [], 0
            for batch in scan_staged(self._core.stores, now.tokens):
                is_there = pa.array(~batch.deleted)
                count += len(batch)
                staged.append((batch.paths.filter(is_there), column(batch.rows, "physical_address").filter(is_there)))
            return now, staged, count

        try:
            now, staged, count = consistently(cell, record.branch_id, read)
        except BranchGone:
            return
        except FormatError as error:
            self._audit.add(f"staged on branch {name!r}: {error.what}")
            now, staged, count = record, [], 0
        self._audit.branches += 1
        self._audit.staged += count
        self._staged += staged
        heads.append(now.head)
        if now.compacted is not None:
            trees[now.compacted] = f"branch {name!r}"

    def _walk(self, heads: Sequence[CommitId]) -> Iterator[TreeRef]:
        """The trees of all commits that can be reached."""
        seen: set[CommitId] = set()
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
            yield commit.tree_ref

    def _ranges(self, trees: dict[TreeRef, str]) -> dict[str, RangeInfo]:
        found: dict[str, RangeInfo] = {}
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
            found.update((info.address, info) for info in tree.ranges)
        self._referred.append(pa.array(files, pa.string()))
        self._referred.append(pa.array(list(found), pa.string()))
        return found

    def _files(self) -> tuple[pa.StringArray, list[int], list[int]]:
        keys: list[str] = []
        sizes: list[int] = []
        times: list[int] = []
        for page in self._core.stores.trees.blobs.list_pages():
            keys += [info.key for info in page]
            sizes += [info.size for info in page]
            times += [info.modified_at_us for info in page]
        return pa.array(keys, pa.string()), sizes, times

    def _range(self, info: RangeInfo, files: pa.StringArray) -> None:
        self._audit.ranges += 1
        try:
            rows = self._trees.rows(info)
        except (ObjectMissing, FormatError) as error:
            self._audit.add(error.what)
            return
        self._audit.objects += rows.num_rows
        self._objects(column(rows, "path"), column(rows, "physical_address"), files)

    def _objects(self, paths: pa.StringArray, addresses: pa.StringArray, files: pa.StringArray) -> None:
        elsewhere = pc.match_substring(addresses, "://")
        self._audit.imported += pc.sum(elsewhere).as_py() or 0
        there = pc.or_(elsewhere, pc.is_in(addresses, value_set=files))
        if not pc.all(there).as_py():
            for path, address in zip(paths.filter(pc.invert(there)), addresses.filter(pc.invert(there)), strict=True):
                self._audit.add(f"The bytes of {path.as_py()!r} are gone: there is no file {address.as_py()!r}.")
        self._referred.append(addresses.filter(pc.invert(elsewhere)))

    def _orphans(self, keys: pa.StringArray, sizes: list[int], times: list[int]) -> None:
        referred = pa.concat_arrays([pa.array([], pa.string()), *(array.cast(pa.string()) for array in self._referred)])
        now_us = self._core.stores.clock.now_us()
        for at, is_known in enumerate(pc.is_in(keys, value_set=referred).to_pylist()):
            if is_known or keys[at].as_py() == MARKER:
                continue
            self._audit.orphans += 1
            self._audit.orphan_bytes += sizes[at]
            self._audit.young_orphans += now_us - times[at] < YOUNG_S * 1_000_000
