"""A large import in slices: each is listed and cut into ranges by itself, wherever, and the driver puts them together.

A slice is a stretch of keys. Its worker lays what it lists over the rows that the branch has there, and cuts ranges
from the slice's start. From the first natural end on those are the ranges of the whole tree, and the driver takes them
as they are; before it the driver cuts anew (`splice`). What comes after the last end is scratch: its rows belong to a
range that the next slice goes on with. So no more than a range's rows are in memory at once, and only descriptions of
ranges pass through the driver.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from strandline.blob import BlobInfo, BlobStore, Resolver, open_store
from strandline.branch.commits import Commit, Draft
from strandline.branch.heads import NewHead
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Contention, StorageError, UsageError
from strandline.ids import prefix_end
from strandline.progress import Progress
from strandline.repository.commits.listing import (
    ImportSource,
    NothingNew,
    below_one,
    is_text,
    no_object,
    references,
    refuse_namespaces,
)
from strandline.repository.commits.mirroring import MirroredTable
from strandline.repository.commits.resuming import Cut, Resumable
from strandline.tables.mirroring import Mirrored, Seen, dressed, gone
from strandline.tree.apply import overlay_rows
from strandline.tree.chunking import Chunker, natural_ends
from strandline.tree.diff import Difference, diff
from strandline.tree.merge import merge
from strandline.tree.node_file import Part
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import BoolArray, Changes, column, empty_rows, search
from strandline.tree.segments import PathSpan
from strandline.tree.splice import splice
from strandline.tree.store import Tree, TreeRef, TreeStore

CACHE_MAX_BYTES = 32 << 20
ATTEMPTS = 5
"""How often the sources are listed, if others change what lies at the destinations meanwhile."""


class Slice(msgspec.Struct, frozen=True):
    """What one worker does: a stretch of the keys of a source, over the rows of a tree.

    Attributes:
        root, prefix: the store, and the prefix in it.
        below: the prefix of the paths.
        after, last: `after < key <= last`; "" and None at the ends of the source.
        namespace: URL of the repository's store.
        tree: what the branch holds.
        replaces: whether paths of the tree that the source does not have go.
        has_levels: whether large trees of the repository have nodes.
        mirrored: what the files are, if they are those of a table.
        result: where the worker writes what it made; "" if nobody would go on with it.
        listed: a digest of the listing behind an earlier result; "" without one.
    """

    root: str
    prefix: str
    below: str
    after: str
    last: str | None
    namespace: str
    tree: TreeRef
    replaces: bool
    has_levels: bool
    mirrored: Mirrored | None = None
    result: str = ""
    listed: str = ""


class Workers(Protocol):
    """Cuts slices: in this process, or on Spark."""

    @property
    def wanted(self) -> int:
        """How many slices there should be, about."""

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        """What became of the slices, in their order."""


class WorkersHere:
    """One slice after the other in this process."""

    wanted = 4

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        for done, one in enumerate(slices):
            progress("listing in slices", done, len(slices))
            yield cut(one)


# --- a worker ---------------------------------------------------------------------------------------------------------


def cut(slice: Slice) -> Cut:
    """List a slice, lay it over the tree, and cut ranges.

    Raises:
        UsageError: it lies in the storage namespace of a repository.
        InvalidName: a key is not a path.
    """
    trees = TreeStore(open_store(slice.namespace), CACHE_MAX_BYTES, has_levels=slice.has_levels)
    source, resolver = open_store(slice.root), Resolver(trees.blobs)
    _refuse_missing(source)
    if slice.listed and _digest_of(slice, source) == slice.listed:
        return Cut([], None, 0, listed=slice.listed, is_as_before=True)
    tree = trees.tree(slice.tree)
    start, end = _paths_of(slice)
    held = list(trees.ranges(tree, start))
    known: dict[str, Part] = {info.id: info for info in held if end is None or info.min_path < end}
    found = _Listed(slice, source)
    seen = Seen()

    def dress(rows: pa.Table, under: pa.Table) -> pa.Table:
        return rows if slice.mirrored is None else dressed(slice.mirrored, rows, under, resolver, seen)

    made: list[RangeInfo] = []
    chunker = Chunker()
    kept = "" if slice.mirrored is None else slice.mirrored.record_path
    for rows, ends in _laid_over(found, trees.scan(tree, start, end), dress, kept if slice.replaces else None):
        made += [trees.write_range(chunk, known) for chunk in chunker.feed(rows, ends)]
    rest = [trees.write_range(rows, known) for rows in chunker.finish()]
    objects = found.objects if slice.mirrored is None else seen.files
    done = Cut(made, rest[0] if rest else None, objects, seen.fields, found.digest)
    if slice.result:
        trees.blobs.put(slice.result, msgspec.msgpack.encode(done))
    return done


def _refuse_missing(source: BlobStore) -> None:
    """Refuse a folder that is not there: it would list as empty, and what lies in it would count as gone."""
    inside = source.local_path("x")
    if inside is not None and not Path(inside).parent.is_dir():
        raise StorageError(
            f"There is no folder {str(Path(inside).parent)!r} on {socket.gethostname()}, where a part of it is listed.",
            safe="Nothing of the import is visible.",
            next="Mount it on all executors, or import without Spark.",
        )


def _paths_of(slice: Slice) -> PathSpan:
    """The paths that a slice is about, from the first on, before the second."""
    start = slice.below if not slice.after else _path(slice, slice.after) + "\0"
    end = prefix_end(slice.below) if slice.last is None else _path(slice, slice.last) + "\0"
    return start, end


def _path(slice: Slice, key: str) -> str:
    return slice.below + key[len(slice.prefix) :]


def _note(digest: blake3, found: Iterable[BlobInfo]) -> None:
    for info in found:
        told = f"{info.key}\0{info.size} {info.etag} {info.modified_at_us}\0"
        digest.update(told.encode(errors="surrogateescape"))


def _digest_of(slice: Slice, store: BlobStore) -> str:
    digest = blake3()
    for page in store.list_between(slice.prefix, slice.after, slice.last):
        _note(digest, page)
    return digest.hexdigest()


class _Listed:
    """The rows of a listing, taken path by path."""

    def __init__(self, slice: Slice, store: BlobStore) -> None:
        self.objects = 0
        self._digest = blake3()
        self._slice, self._store = slice, store
        self._pages = store.list_between(slice.prefix, slice.after, slice.last)
        self._rows = empty_rows()

    @property
    def digest(self) -> str:
        """Of all that was listed, once it is taken."""
        return self._digest.hexdigest()

    def up_to(self, path: str) -> pa.Table:
        """The next rows whose path is not greater, at most a page of them; none if there are no more."""
        if not self._rows.num_rows:
            self._rows = self._next_page()
        at = pc.search_sorted(column(self._rows, "path"), path, side="right").as_py()
        taken, self._rows = self._rows.slice(0, at), self._rows.slice(at)
        return taken

    def rest(self) -> Iterator[pa.Table]:
        """All rows that are left, page by page."""
        if self._rows.num_rows:
            yield self._rows
        while (rows := self._next_page()).num_rows:
            yield rows

    def _next_page(self) -> pa.Table:
        found: list[BlobInfo] = next(self._pages, [])
        self.objects += len(found)
        _note(self._digest, found)
        return references(self._store, self._slice.prefix, self._slice.below, found) if found else empty_rows()


def _laid_over(
    found: _Listed, held: Iterable[pa.Table], dress: Callable[[pa.Table, pa.Table], pa.Table], kept: str | None
) -> Iterator[tuple[pa.Table, BoolArray]]:
    """The rows of the branch with a listing over them, and their natural ends.

    Args:
        dress: is given listed rows, and those of the branch among them.
        kept: of what the listing does not have, only this path stays; None if all of it does.
    """
    for whole in held:
        base = whole
        while base.num_rows:
            paths = column(base, "path")
            rows = found.up_to(paths[len(paths) - 1].as_py())
            reach = len(paths)
            if rows.num_rows:
                reach = pc.search_sorted(paths, column(rows, "path")[rows.num_rows - 1].as_py(), side="right").as_py()
            under = base.slice(0, reach)
            base = base.slice(reach)
            rows = dress(rows, under)
            if kept is not None:
                paths = column(under, "path")
                stays = search(column(rows, "path"), paths)[1]
                under = under.filter(pc.or_(pa.array(stays), pc.equal(paths, kept)))
            changes = Changes(rows, np.zeros(rows.num_rows, np.bool_))
            laid, ends, _ = overlay_rows(under, natural_ends(column(under, "path")), changes)
            if laid.num_rows:
                yield laid, ends
    for page in found.rest():
        rows = dress(page, empty_rows())
        if rows.num_rows:
            yield rows, natural_ends(column(rows, "path"))


# --- the driver -------------------------------------------------------------------------------------------------------


class SlicedImport:
    """Sources, listed by workers over the tree of a head, and put on whatever the head is by then."""

    def __init__(
        self,
        core: RepositoryCore,
        sources: Sequence[ImportSource],
        draft: Draft,
        progress: Progress,
        workers: Workers,
        *,
        replaces: bool,
        table: MirroredTable | None = None,
        job: Resumable | None = None,
    ) -> None:
        self._core, self._sources, self._draft, self._progress = core, sources, draft, progress
        self._workers, self._replaces = workers, replaces
        self._table, self._job = table, job
        self._made: tuple[Tree, Tree] | None = None
        self._listings = 0
        if core.stores.trees.blobs.own is not core.stores.trees.blobs:
            raise UsageError(
                "The bytes of this lake lie in two stores, as it was restored without them, and workers know one.",
                next="Import without Spark, or restore the lake with its bytes.",
            )
        self.objects = 0
        for source in sources:
            source.check_destination()
            if source.is_object:
                raise UsageError(
                    f"{source.shown!r} is a single object, which is not imported in slices.", next="Leave spark out."
                )
        prefixes = [source.below for source in sources]
        if (inner := below_one(prefixes)) is not None:
            raise UsageError(f"One destination lies below another: {inner!r}.", next="Import them one after the other.")
        self._prefixes = tuple(prefixes)

    def in_the_way(self, staged: Difference) -> list[str]:
        """Staged changes at the destinations."""
        paths: list[str] = staged.paths.to_pylist()
        return [path for path in paths if path.startswith(self._prefixes)]

    def compute(self, head: Commit) -> NewHead:
        """The commit of the import on a head.

        What was listed is laid over the rows of one tree. On a later head it is taken as it is if others have changed
        nothing at the destinations, and laid over that head anew otherwise.

        Raises:
            NothingNew: the head has all of it.
            Contention: others kept changing what lies at the destinations.
        """
        trees, now = self._core.stores.trees, self._core.commits.tree(head.id)
        if self._made is not None and self._made[0].id != now.id:
            base, imported = self._made
            if not any(next(diff(trees, base, now, one, prefix_end(one)), None) for one in self._prefixes):
                merged = merge(trees, base, imported, now, {"": "source-wins"})
                return self._on(head, merged.tree, now)
            self._made = None
        if self._made is None:
            if self._listings == ATTEMPTS:
                raise Contention(
                    f"Others kept changing what lies where the objects are imported to, {ATTEMPTS} times.",
                    safe="Nothing of the import is visible.",
                    next="Import again when they are done.",
                )
            self._listings += 1
            self._made = now, self._imported(now)
        return self._on(head, self._made[1], now)

    def _on(self, head: Commit, tree: Tree, now: Tree) -> NewHead:
        if self._core.stores.trees.are_same(tree, now):
            raise NothingNew
        return NewHead(self._draft.commit(tree, (head,)), tree)

    def _imported(self, tree: Tree) -> Tree:
        trees = self._core.stores.trees
        self.objects = 0
        for source in self._sources:
            slices = self._slices(source, tree)
            cuts: list[Cut] = []
            tree = splice(trees, tree, source.below, prefix_end(source.below), self._parts(slices, cuts))
            objects = sum(one.objects for one in cuts)
            if not objects:
                raise no_object(source) if self._table is None else gone("Every data file")
            self.objects += objects
            if self._table is not None:
                fields = {text: file for one in reversed(cuts) for text, file in one.fields.items()}
                tree = self._table.with_record(tree, fields)
        return tree

    def _slices(self, source: ImportSource, tree: Tree) -> list[Slice]:
        root, prefix = source.split()
        store = open_store(root)
        refuse_namespaces(store, prefix)
        self._progress("looking for places to cut", 0, None)
        trees = self._core.stores.trees
        spec = None if self._table is None else self._table.spec(tree)

        def cut_anew() -> list[str]:
            # the worker that lists a key that is not valid UTF-8 refuses it
            return [key for key in store.cuts(prefix, self._workers.wanted) if is_text(key)]

        if self._job is None:
            cuts = cut_anew()
            results = [""] * (len(cuts) + 1)
        else:
            about = (root, prefix, source.below, tree.id, self._replaces, trees.has_levels, spec)
            cuts, results = self._job.plan(about, cut_anew)
        namespace = self._core.resolver.namespace.url
        rest = namespace, tree.ref, self._replaces, trees.has_levels, spec
        return [
            Slice(root, prefix, source.below, after, last, *rest, result)
            for after, last, result in zip(["", *cuts], [*cuts, None], results, strict=True)
        ]

    def _cuts(self, slices: Sequence[Slice]) -> Iterator[Cut]:
        """What became of slices, in their order: what a run before has done, and what workers do now."""
        held = {} if self._job is None else self._job.done([one.result for one in slices])
        asked = [
            msgspec.structs.replace(one, listed=held[one.result].listed) if one.result in held else one
            for one in slices
        ]
        for one, made in zip(slices, self._workers.run(asked, self._progress), strict=True):
            yield held[one.result] if made.is_as_before else made

    def _parts(self, slices: Sequence[Slice], cuts: list[Cut]) -> Iterator[Any]:
        trees = self._core.stores.trees
        for made in self._cuts(slices):
            cuts.append(msgspec.structs.replace(made, ranges=[], rest=None))
            yield from made.ranges
            if made.rest is not None:
                yield trees.rows(made.rest)
