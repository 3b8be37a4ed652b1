"""A repository: its branches, tags, refs and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.arguments import checked
from strandline.branch.commits import Commit
from strandline.branch.locking import OnDirty
from strandline.branch.rules.record import BranchRecord, LockMode, LockRecord, TagRecord
from strandline.branch.token_queue import PRIVATE_AFTER_S, SWEEP_AFTER_S, SWEEP_AGAIN_AFTER_S, sweep
from strandline.clock import from_us
from strandline.core.record import (
    DEFAULT_PROTECTION,
    MAX_PROTECTIONS,
    Protection,
    RepositoryRecord,
    check_protection,
)
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Advice, NotAllowed, PreconditionFailed, RefNotFound, UsageError
from strandline.ids import CommitId
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.branch import Branch
from strandline.repository.locks.owners import LockOwners
from strandline.repository.locks.whole_repository import RepositoryLock, release_repository
from strandline.repository.names.branches import (
    create_branch,
    create_tag,
    delete_branch,
    delete_tag,
    list_names,
    repository_record,
)
from strandline.repository.names.settings import change_settings
from strandline.repository.refs.ref import Ref
from strandline.results.history import merge_base
from strandline.results.rows import Results, check_amount

if TYPE_CHECKING:
    from strandline.repository.upkeep.fsck import FsckReport
    from strandline.repository.upkeep.gc import GarbageCollection
    from strandline.repository.upkeep.usage import StorageUse
    from strandline.shards.shard import Shard


class NamedRef(msgspec.Struct, frozen=True):
    """A branch or a tag in a list of them."""

    name: str
    commit: CommitId
    created_at_us: int

    @property
    def created_at(self) -> datetime:
        """When it was made, in UTC."""
        return from_us(self.created_at_us)


class RefList(Results[NamedRef]):
    """Branches or tags, in the order of their names."""

    _titles = ("name", "commit", "created")

    def __init__(self, rows: Callable[[], Iterator[NamedRef]], amount: int | None = None) -> None:
        check_amount(amount, "list", "names")
        self._rows = rows
        self._amount = amount

    def __iter__(self) -> Iterator[NamedRef]:
        return islice(self._rows(), self._amount)

    def to_arrow(self) -> pa.Table:
        rows = list(self)
        return pa.table(
            {
                "name": pa.array([row.name for row in rows], pa.string()),
                "commit": pa.array([row.commit for row in rows], pa.string()),
                "created_at": pa.array([row.created_at for row in rows], pa.timestamp("us", tz="UTC")),
            }
        )

    def _cells(self, row: NamedRef) -> tuple[object, ...]:
        return row.name, row.commit[:12], row.created_at


@checked()
class Repository:
    """A repository of a lake. Safe to share between threads; usable after a fork; pickles without secrets."""

    def __init__(self, core: RepositoryCore) -> None:
        self._core = core

    @property
    def place(self) -> str:
        """The repository, for messages."""
        return self.name

    def __repr__(self) -> str:
        return f"<Repository {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repository) and other._core.stores.repository_id == self._core.stores.repository_id

    def __hash__(self) -> int:
        return hash(self._core.stores.repository_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._core.reopen

    @property
    def name(self) -> str:
        """Its name in the lake."""
        return self._core.name

    @property
    def settings(self) -> RepositoryRecord:
        """What is on record: namespace, default branch, protections, whether it is read-only."""
        return repository_record(self._core)[1]

    # --- refs ---------------------------------------------------------------------------------------------------------

    def ref(self, expression: str) -> Ref:
        """What a ref expression means: a `Branch` if it names one, else something to read.

        Raises:
            InvalidRef, RefNotFound.
        """
        found: Ref = self._core.open(expression)
        return found

    def branch(self, name: str) -> Branch:
        """A branch.

        Raises:
            RefNotFound: there is no such branch.
        """
        found = self._core.open(name)
        if not isinstance(found, Branch):
            raise RefNotFound(
                f"{name!r} is not a branch.",
                next=Advice(
                    "Use repository.ref() to read it.",
                    command="Commands that change something take a branch; "
                    f"`strandline branch list {self.name}` shows them.",
                ),
            )
        return found

    @property
    def default_branch(self) -> Branch:
        """The branch that readers begin with."""
        return self.branch(self.settings.default_branch)

    @logged("create branch")
    def create_branch(
        self,
        name: str,
        source: Ref | str | None = None,
        *,
        exist_ok: bool = False,
        hidden: bool = False,
        force: bool = False,
    ) -> Branch:
        """Make a branch at the commit of any ref; by default of the default branch.

        Args:
            exist_ok: return the branch of this name if there is one already.
            hidden: leave it out of lists of branches that do not ask for it, as branches of programs are. Versions of
                strandline before 0.2 refuse it, and lists of the repository's branches.
            force: even if the repository is read-only.

        Raises:
            AlreadyExists: the name belongs to a branch or a tag.
        """
        made = create_branch(self._core, name, self._source(source), exist_ok=exist_ok, hidden=hidden, force=force)
        return Branch(self._core, name, made)

    def _source(self, source: Ref | str | None) -> Ref:
        if source is None:
            return self.default_branch
        return source if isinstance(source, Ref) else self.ref(source)

    @logged("delete branch")
    def delete_branch(self, name: str, *, force: bool = False) -> CommitId:
        """Delete a branch, with what is staged on it and its reflog.

        Returns the commit that was its head: a branch made there brings the committed part back.

        Args:
            force: even if the repository is read-only.
        """
        return delete_branch(self._core, name, force=force)

    def branches(
        self, prefix: str = "", *, after: str = "", amount: int | None = None, hidden: bool = False
    ) -> RefList:
        """The branches whose names begin with a prefix, by name.

        Args:
            after: begin behind this name.
            amount: the most that are returned.
            hidden: with those that were made as hidden ones.
        """

        def rows() -> Iterator[NamedRef]:
            for name, record in list_names(self._core, "branch", prefix, after, amount):
                if isinstance(record, BranchRecord) and (hidden or not record.is_hidden):
                    yield NamedRef(name, record.head, record.created_at)

        return RefList(rows, amount)

    @logged("create tag")
    def create_tag(self, name: str, source: Ref | str | None = None, *, force: bool = False) -> Ref:
        """Name a commit for ever; raises `AlreadyExists` if the name belongs to a branch or a tag.

        Args:
            force: even if the repository is read-only.
        """
        create_tag(self._core, name, self._source(source), force=force)
        return self.ref(name)

    @logged("delete tag")
    def delete_tag(self, name: str, *, force: bool = False) -> None:
        """Delete a tag; the commit that it names stays. With `force`, even if the repository is read-only."""
        delete_tag(self._core, name, force=force)

    def tags(self, prefix: str = "", *, after: str = "", amount: int | None = None) -> RefList:
        """The tags whose names begin with a prefix, by name.

        Args:
            after: begin behind this name.
            amount: the most that are returned.
        """

        def rows() -> Iterator[NamedRef]:
            for name, record in list_names(self._core, "tag", prefix, after, amount):
                if isinstance(record, TagRecord):
                    yield NamedRef(name, record.commit, record.created_at)

        return RefList(rows, amount)

    def get_commit(self, ref: str) -> Commit:
        """The commit that a ref expression means."""
        return self.ref(ref).get_commit()

    def merge_base(self, left: Ref | str, right: Ref | str) -> Commit | None:
        """The best common ancestor of two refs, or None."""
        return merge_base(self._core.commits, self._source(left).commit_id, self._source(right).commit_id)

    # --- shards -------------------------------------------------------------------------------------------------------

    def shard(
        self,
        name: str,
        schema: pa.Schema | None = None,
        *,
        key: str | Sequence[str] | None = None,
        codec: str = "columns",
        consensus: Literal["kv", "blob"] = "kv",
    ) -> Shard:
        """A shard: a durable collection with exact times.

        Args:
            schema: of its columns; makes the shard if there is none of this name. Without it, the shard must exist.
            key: the columns of the key, by which its files are sorted; by default all.
            codec: "columns", or "json" for keys and values of any shape.
            consensus: where a new shard's changes are decided: in the key-value store, or in the object store alone,
                which then must be able to refuse to overwrite.

        Raises:
            ShardNotFound: there is none, and no schema to make it.
            SchemaMismatch: it has another schema or codec.
        """
        return self._core.shards.get(name, schema, key=key, codec=codec, consensus=consensus)

    def shards(self) -> list[str]:
        """The names of all shards, in their order."""
        shards = self._core.shards
        return [record.name for record in shards.list() if shards.exists(record)]

    @logged("delete shard")
    def delete_shard(self, name: str) -> None:
        """End a shard, delete its bytes, and free its name."""
        self._core.shards.delete(name)

    # --- settings -----------------------------------------------------------------------------------------------------

    def protect(self, pattern: str, block: Iterable[str] = DEFAULT_PROTECTION, *, writers: Iterable[str] = ()) -> None:
        """Block actions on all branches, present and future, whose name matches a glob pattern.

        Args:
            block: some of "stage", "commit", "merge", "reset", "delete"; by default all but merges.
            writers: names of writers that may publish transactions to them; no other writer may.
        """
        rule = check_protection(pattern, block, writers)

        def change(record: RepositoryRecord) -> RepositoryRecord:
            others = tuple(kept for kept in record.protections if kept.pattern != pattern)
            if len(others) >= MAX_PROTECTIONS:
                raise UsageError(f"A repository has at most {MAX_PROTECTIONS} protections.", next="Use wider patterns.")
            return replace(record, protections=(*others, rule))

        change_settings(self._core, change, is_about_rules=True)

    def unprotect(self, pattern: str) -> None:
        """Remove the protection that was made with this very pattern."""
        change_settings(
            self._core,
            lambda record: replace(
                record, protections=tuple(rule for rule in record.protections if rule.pattern != pattern)
            ),
            is_about_rules=True,
        )

    def set_protections(self, rules: Iterable[Protection], *, expected: Sequence[Protection] | None = None) -> None:
        """Replace all protection rules at once.

        Args:
            expected: those that there are; by default whatever they are.

        Raises:
            PreconditionFailed: there are others than expected.
        """
        wanted = tuple(check_protection(rule.pattern, rule.blocked, rule.writers) for rule in rules)
        if len(wanted) > MAX_PROTECTIONS:
            raise UsageError(f"A repository has at most {MAX_PROTECTIONS} protections.", next="Use wider patterns.")

        def change(record: RepositoryRecord) -> RepositoryRecord:
            if expected is not None and record.protections != tuple(expected):
                raise PreconditionFailed(
                    f"The protections of {self.name!r} were changed by somebody else.",
                    next="Read them again, and decide anew.",
                )
            return replace(record, protections=wanted)

        change_settings(self._core, change, is_about_rules=True)

    @property
    def protections(self) -> tuple[Protection, ...]:
        """The protection rules, by pattern of branch names."""
        return self.settings.protections

    def set_read_only(self, read_only: bool = True) -> None:
        """Refuse every change of every branch and tag, or allow them again."""
        change_settings(self._core, lambda record: replace(record, read_only=read_only), is_about_rules=True)

    def set_default_branch(self, name: str) -> None:
        """Make a branch the one that new branches start from; it cannot be deleted while it is."""
        self.branch(name)
        before = self.settings.default_branch
        change_settings(self._core, lambda record: replace(record, default_branch=name))
        try:
            self.branch(name)  # a deletion that was under way has looked at the settings before this change
        except RefNotFound:
            change_settings(self._core, lambda record: replace(record, default_branch=before))
            raise NotAllowed(
                f"Branch {name!r} was deleted during the call.", safe=f"The default is {before!r}."
            ) from None

    @property
    def lock_owners(self) -> LockOwners:
        """The owners that may hold locks on branches, and what each is for."""
        return LockOwners(self._core)

    def lock_repository(
        self, *, owner: str, mode: LockMode = "exclusive", timeout_s: float = 0.0, on_dirty: OnDirty = "fail"
    ) -> RepositoryLock:
        """Freeze all branches, present and future. Use it with `with`, or call `take` and `release`."""
        return RepositoryLock(self._core, owner, mode, timeout_s, on_dirty)

    @property
    def current_lock(self) -> LockRecord | None:
        """The lock on all branches, if there is one."""
        return self.settings.lock

    @logged("release repository")
    def unlock(self) -> bool:
        """End the lock on all branches, of any holder. Returns whether there was one."""
        return release_repository(self._core)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def sweep(
        self,
        *,
        after_s: float = SWEEP_AFTER_S,
        again_after_s: float = SWEEP_AGAIN_AFTER_S,
        private_after_s: float = PRIVATE_AFTER_S,
    ) -> int:
        """Delete the staged entries of tokens that left their branch long enough ago; returns their number."""
        return sweep(self._core.stores, after_s=after_s, again_after_s=again_after_s, private_after_s=private_after_s)

    @property
    def gc(self) -> GarbageCollection:
        """Retention rules, and the collection of what nothing refers to."""
        from strandline.repository.upkeep.gc import GarbageCollection  # noqa: PLC0415 - few programs collect

        return GarbageCollection(self._core)

    @logged("storage use")
    def storage_use(self, *, depth: int = 1, progress: Progress = no_progress) -> StorageUse:
        """What the repository's objects take: in all, by ref, by one ref alone, by kept history alone, and by prefix.

        It reads all ranges once; `strandline.spark.metadata.storage_use` does so on Spark.

        Args:
            depth: how many folders of a path make a prefix.
        """
        from strandline.repository.upkeep.usage import storage_use  # noqa: PLC0415 - few programs count

        return storage_use(self._core, depth, progress)

    @logged("fsck")
    def fsck(self, progress: Progress = no_progress, *, content: bool = False) -> FsckReport:
        """Check that everything the repository refers to is there, and count what nobody refers to.

        Looks at what branches, tags and reflogs lead to. Reads all metadata, changes nothing, and may run while others
        work.

        Args:
            progress: called after each range of metadata.
            content: also read all bytes and compare them with their checksums; else only sizes are compared.
        """
        from strandline.repository.upkeep.fsck import fsck  # noqa: PLC0415 - few programs check

        return fsck(self._core, progress, content=content)
