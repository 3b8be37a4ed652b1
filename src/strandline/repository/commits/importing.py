"""Import by reference: a commit that points to objects where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob import BlobInfo, BlobNotFound, open_store, without_marks
from strandline.branch import transactions
from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit, Draft
from strandline.branch.heads import NewHead, set_head
from strandline.branch.rules.record import refuse_blocked
from strandline.branch.rules.writers import check_writer_name
from strandline.branch.transactions import Publication, Repeat, Who
from strandline.core.node import this_node, this_process
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Fenced, StrandlineError, UsageError, some_paths
from strandline.ids import prefix_end
from strandline.progress import Progress
from strandline.repository.commits.listing import ImportSource, NothingNew, no_object, references, refuse_namespaces
from strandline.repository.commits.mirroring import MirroredTable
from strandline.repository.commits.resuming import Resumable
from strandline.repository.commits.slices import SlicedImport, Workers, WorkersHere
from strandline.tree.apply import apply
from strandline.tree.diff import Difference
from strandline.tree.rows import SCHEMA, Changes, column, concat, search
from strandline.tree.store import Tree

BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did: the number of objects found, and the commit; None if every one was there already."""

    objects: int
    commit: Commit | None


class Fence(Protocol):
    """What makes an import happen once, and is told how far it is."""

    @property
    def writer(self) -> str:
        """A name that no other import has."""

    @property
    def token(self) -> str:
        """The same for each run of the import."""

    @property
    def is_empty(self) -> bool:
        """Whether the run that used the token had called `empty`: then no commit is this import's."""

    def begun(self, transaction: int) -> None:
        """Called before anything is listed; if it raises, nothing happens."""

    def empty(self) -> None:
        """Called before the token is noted for an import that found nothing new."""


class Import:
    """Sources, listed once, and put on whatever the head is by then.

    Args:
        replaces: what else lies below the destinations of prefixes goes.
    """

    def __init__(
        self, core: RepositoryCore, sources: Sequence[ImportSource], draft: Draft, progress: Progress, *, replaces: bool
    ) -> None:
        self._core, self._draft, self._progress = core, draft, progress
        self._prefixes = tuple(_outermost(source.below for source in sources if not source.is_object))
        self._replaces = replaces
        self._paths = {source.destination for source in sources if source.is_object}
        self._found = 0
        for source in sources:
            source.check_destination()
        self._rows = _joined([self._references(source) for source in sources])

    @property
    def objects(self) -> int:
        """How many objects the sources have."""
        return len(column(self._rows, "path"))

    def _references(self, source: ImportSource) -> pa.Table:
        before = self._found

        def tell(found: int) -> None:
            self._found = before + found
            self._progress("listing", self._found, None)

        return _references(source, tell)

    def in_the_way(self, staged: Difference) -> list[str]:
        """Staged changes at the destinations."""
        paths: list[str] = staged.paths.to_pylist()
        return [path for path in paths if path in self._paths or path.startswith(self._prefixes)]

    def compute(self, head: Commit) -> NewHead:
        """The commit of the import on a head.

        Raises:
            NothingNew: the head has all of it.
        """
        core, changes = self._core, self._changes(self._core.commits.tree(head.id))
        applied = apply(core.stores.trees, core.commits.tree(head.id), self._batches(changes))
        if not applied.changed:
            raise NothingNew
        return NewHead(self._draft.commit(applied.tree, (head,)), applied.tree)

    def _batches(self, changes: Changes) -> Iterator[Changes]:
        for at in range(0, len(changes), BATCH_ROWS):
            self._progress("writing", at, len(changes))
            yield changes.slice(at, min(at + BATCH_ROWS, len(changes)))

    def _changes(self, tree: Tree) -> Changes:
        """References, with deletions of what they replace."""
        mine = column(self._rows, "path")
        gone: list[pa.Array] = []
        for prefix in self._prefixes if self._replaces else ():
            for rows in self._core.stores.trees.scan(tree, prefix, prefix_end(prefix)):
                self._progress("writing", 0, None)
                paths = column(rows, "path")
                gone.append(paths.filter(pa.array(~search(mine, paths)[1])))
        deleted = pa.concat_arrays(gone) if gone else mine.slice(0, 0)
        if not len(deleted):
            return Changes(self._rows, np.zeros(self._rows.num_rows, np.bool_))
        blank = [pa.nulls(len(deleted), one.type) for one in SCHEMA if one.name != "path"]
        both = concat([self._rows, pa.Table.from_arrays([deleted, *blank], schema=SCHEMA)])
        order = pc.sort_indices(column(both, "path"))
        is_deletion = np.arange(both.num_rows) >= self._rows.num_rows
        return Changes(concat([both.take(order)]).combine_chunks(), is_deletion[order.to_numpy()])


def import_objects(
    core: RepositoryCore,
    at: BranchAt,
    sources: Sequence[ImportSource],
    draft: Draft,
    progress: Progress,
    *,
    replaces: bool,
    workers: Workers | None = None,
    job: str | None = None,
) -> ImportResult:
    """Commit references to everything that the sources have, at one instant.

    Args:
        workers: list them in slices; None lists them here, in one go.
        job: names what a later call goes on with, in slices.
    """
    if workers is None:
        if job is not None:
            raise UsageError(
                "One process lists a source in one go, so that nothing is left to go on with.",
                next="Give a Spark session, or leave job out.",
            )
        return _imported(core, at, Import(core, sources, draft, progress, replaces=replaces))
    kept = None if job is None else Resumable(core, at.branch_id, check_writer_name(job))
    made = SlicedImport(core, sources, draft, progress, workers, replaces=replaces, job=kept)
    return _imported(core, at, made, kept)


def mirror_table(
    core: RepositoryCore,
    at: BranchAt,
    source: ImportSource,
    table: MirroredTable,
    draft: Draft,
    progress: Progress,
    workers: Workers | None,
    job: str | None = None,
) -> ImportResult:
    """Commit references to the files of a table, and its record, at one instant."""
    slicers = WorkersHere() if workers is None else workers
    kept = None if job is None else Resumable(core, at.branch_id, check_writer_name(job))
    made = SlicedImport(core, [source], draft, progress, slicers, replaces=True, table=table, job=kept)
    return _imported(core, at, made, kept)


def _imported(
    core: RepositoryCore, at: BranchAt, made: Import | SlicedImport, kept: Resumable | None = None
) -> ImportResult:
    try:
        record: Commit | None = set_head(
            at, lambda now: refuse_blocked(now, "commit", at.name), "import", made.compute, made.in_the_way
        )
    except NothingNew:
        record = None
    if kept is not None:
        kept.forget()
    if record is not None:
        core.committed()
    return ImportResult(made.objects, record)


def publish_import(
    core: RepositoryCore,
    at: BranchAt,
    sources: Sequence[ImportSource],
    draft: Draft,
    progress: Progress,
    fence: Fence,
) -> ImportResult:
    """Import under the fence of a writer's name: once for a token, whatever dies, and not at all once it is doomed.

    It is judged as a transaction is: the swap demands that this run is the last one begun under the name, and notes the
    token. So a run that another one took over from, or that was aborted, publishes nothing when it comes back.

    Raises:
        Fenced: another run of the writer was begun, or it was aborted. Nothing was published.
    """
    who = Who(check_writer_name(fence.writer), this_node(), this_process())
    record = transactions.begin(at, who, fence.token, draft.message)
    if isinstance(record, Repeat):
        return ImportResult(0, None if fence.is_empty else core.commits.get(record.commit))
    try:
        fence.begun(record.id)
        made = Import(core, sources, draft, progress, replaces=True)
        publication = Publication(
            id=record.id,
            who=who,
            compute=made.compute,
            in_the_way=made.in_the_way,
            digest=fence.token,
            position=None,
            token=fence.token,
        )
        try:
            commit: Commit | None = transactions.publish(at, publication)
        except NothingNew:
            fence.empty()
            transactions.publish(at, replace(publication, is_empty=True))
            commit = None
    except Fenced:
        with suppress(StrandlineError):  # an operator can say so later
            transactions.acknowledge(at, fence.writer, record.id)
        raise
    except Exception as error:
        # a lost answer may have published it: the token finds out
        if getattr(error, "happened", "no") == "no":
            with suppress(StrandlineError):
                transactions.abort(at, who, record.id)
                transactions.acknowledge(at, fence.writer, record.id)
        raise
    core.committed()
    return ImportResult(made.objects, commit)


def abort_import(at: BranchAt, writer: str, id: int) -> None:
    """Make sure that an import of another thread or process is never published.

    Raises:
        TransactionClosed: it was published.
    """
    transactions.abort(at, Who(writer, this_node(), this_process()), id)


def _outermost(prefixes: Iterable[str]) -> list[str]:
    """Prefixes without those that lie below others."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    return kept


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of all sources, sorted by path.

    Raises:
        UsageError: two sources give the same path.
    """
    if len(tables) == 1:
        return tables[0]
    rows = concat(tables)
    rows = concat([rows.take(pc.sort_indices(column(rows, "path")))]).combine_chunks()
    paths = column(rows, "path")
    if len(paths) > 1 and (twice := paths[1:].filter(pc.equal(paths[1:], paths[:-1]))):
        raise UsageError(
            f"Two sources give the same paths: {some_paths(twice.to_pylist())}.",
            next="Import one of them to another destination.",
        )
    return rows


def _references(source: ImportSource, tell: Callable[[int], None]) -> pa.Table:
    """Rows for all blobs of a source, sorted by path.

    Raises:
        InvalidSettings: nobody knows the URL's scheme, or its options are wrong.
        UsageError: it lies in the storage namespace of a repository.
        NotFound: it has no object.
    """
    root, prefix = source.split()
    store = open_store(root)
    refuse_namespaces(store, prefix)
    found: list[BlobInfo] = []
    if source.is_object:
        with suppress(BlobNotFound):
            found.append(store.head(prefix))
            tell(1)
    else:
        pages = store.list_pages(prefix)
        for page in without_marks(pages) if store.is_remote else pages:
            found += page
            tell(len(found))
    if not found:
        raise no_object(source)
    return references(store, prefix, source.below, found)
