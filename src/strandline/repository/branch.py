"""Writing: a branch, its staged changes, its commits, and merges into it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.arguments import checked
from strandline.branch.commit import commit as commit_branch
from strandline.branch.commits import Commit
from strandline.branch.compaction import Compaction, compact
from strandline.branch.folding import Folder, fold_here
from strandline.branch.heads import reset_head
from strandline.branch.locking import LOCK_PATIENCE_S, OnDirty
from strandline.branch.reflog import read_moves
from strandline.branch.rules.ranges import as_ranges
from strandline.branch.rules.record import COOL_DOWN_S, LockMode
from strandline.core.node import this_thread
from strandline.core.promises import pinned
from strandline.core.upload import Content, upload
from strandline.engines import engine
from strandline.errors import UsageError
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.bulk import BulkChanges
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.merging import MergePreview, merge_into, preview_merge, replay
from strandline.repository.commits.one_shot import Asked, check_asked, publish_entries
from strandline.repository.commits.settling import Appended, MergeStrategy, Side, check_decisions
from strandline.repository.jobs.range_jobs import RangeJobs
from strandline.repository.locks.held import LockedTransaction, LockOptions
from strandline.repository.locks.locks import Locks, Ranges, check_ids
from strandline.repository.names.branches import create_branch
from strandline.repository.refs.exporting import check_local
from strandline.repository.refs.ref import Ref
from strandline.repository.refs.reflog import Reflog
from strandline.repository.transactions.joined import JoinedTransaction, join
from strandline.repository.transactions.operators import Transactions, Writers
from strandline.repository.transactions.options import OnStaged, TransactionOptions
from strandline.repository.transactions.transaction import Transaction, resume
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.repository.feed import Feed


@checked()
class Branch(BulkChanges):
    """A branch: what is committed on it, with what is staged over it.

    The handle belongs to one creation of the name. If the branch is deleted, and even if another one is made under its
    name, calls raise `BranchGone`.
    """

    @property
    def forced(self) -> Branch:
        """A handle of the branch whose calls change it even in a read-only repository; rules and locks hold as ever."""
        made = copy(self)
        made._is_forced = True
        return made

    @logged("compact")
    def compact(
        self, *, force: bool = False, progress: Progress = no_progress, spark: SparkSession | None = None
    ) -> Compaction:
        """Fold what is staged into a tree, so that listings and look-ups need not go through it entry by entry.

        It changes nothing that anybody sees, and stops nobody. It happens in the background when it is worth it.

        Args:
            force: even if another compaction of the branch began less than a minute ago.
            spark: a session whose executors write the tree, for millions of staged objects.
        """
        cool_down_s = 0 if force else COOL_DOWN_S
        return compact(self._at, cool_down_s=cool_down_s, fold_staged=self._folder(spark, progress))

    def _folder(self, spark: SparkSession | None, progress: Progress) -> Folder:
        if spark is None:
            return fold_here
        made: Folder = engine("spark").folder(spark, self._core, self._at.branch_id, progress)
        return made

    def reflog(self) -> Reflog:
        """The moves of the branch's head, newest first: when, by what, by whom, from where, to where."""
        return Reflog(lambda: read_moves(self._core.stores, self._at.read().branch))

    # --- committing ---------------------------------------------------------------------------------------------------

    @logged("commit")
    def commit(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        date: datetime | None = None,
        allow_empty: bool = False,
        allow_empty_message: bool = False,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> Commit:
        """Commit everything staged; writers go on while it runs.

        Args:
            allow_empty: commit even if nothing is staged in effect.
            allow_empty_message: the message may be empty, for programs that have none.
            progress: with Spark, called as what is staged is copied, and as its parts are laid over the tree.
            spark: a session whose executors write the tree, for millions of staged objects; the commit is the same.

        Raises:
            NothingToCommit: nothing is staged in effect and `allow_empty` is not set.
        """
        draft = make_draft(
            self._core,
            message,
            metadata,
            committer,
            date,
            allow_empty=allow_empty,
            allow_empty_message=allow_empty_message,
        )
        record = commit_branch(self._at, draft, self._folder(spark, progress))
        self._core.committed()
        return record

    @logged("publish")
    def publish(
        self,
        changes: Mapping[str, Content | None],
        message: str,
        *,
        expected: Mapping[str, ObjectInfo | None],
        writer: str | None = None,
        token: str = "",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
    ) -> Commit:
        """Change some objects in a commit of their own, if the head holds what the caller has read.

        It needs no transaction, and takes nothing with it that is staged: that stays staged. For many objects, or for
        a job that must not run twice, use `transaction`.

        Args:
            changes: by path, the new content as for `put`; None deletes.
            expected: by path, what `repository.ref("main@").find` returned, or None for nothing there. Each path that
                changes is named here; others may be, if they must stay as they were.
            writer: a name by which a protection may allow it.
            token: makes a repetition recognisable for a week: it gets the commit that was made, and changes nothing.

        Raises:
            Conflict: the head holds something else (`paths`).
            UncommittedChanges: something is staged at a path that changes.
            NothingToCommit: the head holds all of it already.
            TransactionClosed: the token was used for other changes.
            RangeLocked, BranchProtected, RepositoryReadOnly.
        """
        asked = Asked(writer, token)
        check_asked(self._core, changes, expected, asked)
        draft = make_draft(self._core, message, metadata, committer)
        entries = {
            path: None if content is None else upload(self._core, self._new_key(path), path, content, None, None)
            for path, content in changes.items()
        }
        return publish_entries(self._core, self._at, entries, expected, draft, asked)

    @logged("merge")
    def merge(
        self,
        source: Ref | str,
        message: str | None = None,
        *,
        strategy: MergeStrategy = None,
        take: Mapping[str, Side] | None = None,
        appended: Appended = "fail",
        squash: bool = False,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        date: datetime | None = None,
        allow_empty: bool = False,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> Commit:
        """Merge the commits of another ref into this branch, as one merge commit.

        Args:
            strategy: "source-wins" or "dest-wins" for all conflicts, or a map of path prefixes to them; of a partition
                that both sides replaced, the rows of one side stay. "serializable" leaves conflicts, and makes one of
                rows that this branch added to an Iceberg table where the source changed rows, which had not seen them.
            take: by path of an object, a folder, a table or a partition, the side whose content replaces everything
                there, conflict or not: "source", or "dest" for this branch. The longest path counts.
            appended: where one side replaced the rows of a partition and the other one added some: "fail", or "keep"
                both.
            squash: make a commit with one parent, as if its changes had been made here.
            allow_empty: commit even if the source has nothing new; the commit then has one parent.
            spark: a session whose executors compare and merge ranges, for millions of differences.

        Raises:
            MergeConflict: both sides changed the same objects, columns of a table or rows of a partition.
            UncommittedChanges: this branch has staged changes.
            NothingToMerge: the source has nothing new, and `allow_empty` is not set.
        """
        other = self._other(source)
        text = message if message is not None else f"Merge {other.expression} into {self.name}"
        draft = make_draft(self._core, text, metadata, committer, date, allow_empty=allow_empty)
        decisions = check_decisions(strategy, take, appended)
        workers = None if spark is None else engine("spark").tree_workers(spark, self._core, progress)
        make = self._make_object
        return merge_into(self._core, self._at, other, draft, decisions, make, squash=squash, workers=workers)

    def preview_merge(
        self,
        source: Ref | str,
        *,
        strategy: MergeStrategy = None,
        take: Mapping[str, Side] | None = None,
        appended: Appended = "fail",
    ) -> MergePreview:
        """What `merge` would do now: the changes of this branch, or the conflicts. Nothing is committed.

        Raises:
            NothingToMerge: the source has nothing new.
        """
        decisions = check_decisions(strategy, take, appended)
        return preview_merge(self._core, self._at, self._other(source), decisions, self._make_object)

    def _make_object(self, path: str, data: bytes) -> Entry:
        return upload(self._core, self._new_key(path), path, data, "application/json", None)

    @logged("revert")
    def revert(
        self,
        commit: Ref | str,
        message: str | None = None,
        *,
        parent: int | None = None,
        strategy: MergeStrategy = None,
        take: Mapping[str, Side] | None = None,
        appended: Appended = "fail",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        date: datetime | None = None,
        allow_empty: bool = False,
    ) -> Commit:
        """Commit the opposite of what a commit did.

        Args:
            parent: of a merge commit, the parent (from 1) whose side stays.
            strategy, take, appended: as for `merge`; the source is what was before the commit.
            allow_empty: commit even if nothing changes.

        Raises:
            NothingToMerge: nothing would change, and `allow_empty` is not set.
        """
        target = self._other(commit)
        text = message if message is not None else f"Revert {target.get_commit().message!r} ({target.commit_id[:12]})"
        draft = make_draft(self._core, text, metadata, committer, date, allow_empty=allow_empty)
        decisions = check_decisions(strategy, take, appended)
        make = self._make_object
        return replay(self._core, self._at, target, draft, decisions, make, parent=parent, undoes=True)

    @logged("cherry-pick")
    def cherry_pick(
        self,
        commit: Ref | str,
        message: str | None = None,
        *,
        parent: int | None = None,
        strategy: MergeStrategy = None,
        take: Mapping[str, Side] | None = None,
        appended: Appended = "fail",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        date: datetime | None = None,
        allow_empty: bool = False,
    ) -> Commit:
        """Commit again, here, what a commit did elsewhere.

        Args:
            parent: of a merge commit, the parent (from 1) that it is compared with.
            strategy, take, appended: as for `merge`; the source is the commit.
            allow_empty: commit even if nothing changes.

        Raises:
            NothingToMerge: nothing would change, and `allow_empty` is not set.
        """
        target = self._other(commit)
        found = target.get_commit()
        text = message if message is not None else found.message
        draft = make_draft(
            self._core,
            text,
            metadata,
            committer,
            date,
            allow_empty=allow_empty,
            allow_empty_message=text == found.message,
        )
        decisions = check_decisions(strategy, take, appended)
        make = self._make_object
        return replay(self._core, self._at, target, draft, decisions, make, parent=parent, undoes=False)

    @logged("hard reset")
    def hard_reset(self, ref: Ref | str, *, force: bool = False) -> None:
        """Move the head to any commit. Staged changes forbid it, unless `force` throws them away."""
        target = self._other(ref).commit_id
        with pinned(self._core.stores, [target], f"hard reset of {self.name}"):
            reset_head(self._at, target, force=force)

    # --- transactions -------------------------------------------------------------------------------------------------

    def transaction(
        self,
        writer: str,
        message: str | None = None,
        *,
        token: str = "",
        node: str | None = None,
        expect_unchanged: Sequence[str] = (),
        on_staged: OnStaged = "fail",
        position: str | None = None,
        max_uncommitted_bytes: int | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        locks: str | Collection[str] = (),
        shared: bool = False,
        lock_patience_s: float = LOCK_PATIENCE_S,
    ) -> Transaction:
        """A fenced transaction: all of it becomes visible in one commit, or nothing. Use it with `with`, or `begin()`.

        Args:
            writer: the job's name. Beginning dooms every open transaction of the same name, wherever it runs: a job
                that was declared dead and comes back finds itself fenced.
            token: makes a repetition recognisable: if a transaction of this writer with the same token was published
                before, this one does nothing. `f"{query}:{batch}"` makes `foreachBatch` exactly once.
            node: where it runs; by default the environment's STRANDLINE_NODE, or the host's name.
            expect_unchanged: prefixes that the job also reads: it is refused if others changed something there.
            on_staged: what to do if others have staged changes in the ranges it overwrites: "fail", or "keep" them
                staged over it.
            position: how far the job has consumed its source; may be set later, or given to `commit`.
            max_uncommitted_bytes: publish, and go on in a new transaction, whenever this much has come together.
            locks: ids of locks that are held: what they cover may be changed. They stay.
            shared: other processes can `join` it, such as a server, which serves it to Iceberg's engines. Each change
                of it is then a write to the key-value store.
            lock_patience_s: how long `commit` waits for locks of others before it fails with `RangeLocked`.
        """
        options = TransactionOptions(
            writer=writer,
            message=message if message is not None else f"Transaction of {writer}",
            token=token,
            node=node,
            expect_unchanged=(expect_unchanged,) if isinstance(expect_unchanged, str) else tuple(expect_unchanged),
            on_staged=on_staged,
            position=position,
            max_uncommitted_bytes=max_uncommitted_bytes,
            metadata=metadata,
            committer=committer,
            locks=check_ids(locks),
            shared=shared,
            lock_patience_s=lock_patience_s,
        )
        return Transaction(self._core, self._at, options, self._target.commit)

    def join(self, writer: str, *, id: int | None = None) -> JoinedTransaction:
        """Work in a shared transaction of another process, which alone commits or aborts it.

        Args:
            writer: the name under which it was begun.
            id: which one; by default the open one, or else the last one that was published, to read.

        Raises:
            RefNotFound: the writer has no such transaction, or it was begun without `shared=True`.
            Fenced: it was replaced or aborted.
        """
        return join(self._core, self._at, writer, id)

    def lock(
        self,
        what: Ranges,
        *,
        owner: str,
        mode: LockMode = "exclusive",
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        message: str | None = None,
        writer: str | None = None,
        token: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> LockedTransaction:
        """Freeze ranges while everyone else goes on, and change them in one swap. Use it with `with`.

        The block gets the one handle through which the ranges can be changed. Nobody sees its changes until the block
        ends: then they land as one commit, and the lock ends in the same swap. If it raises, nothing has happened.

        Args:
            what: a prefix, a pair of paths (start, end), or several of these.
            owner: registered in `repository.lock_owners`; others read its description in the errors that they get.
            mode: "exclusive"; "shared", so that nobody changes anything; "quarantine", so that nobody else reads it.
            timeout_s: how long to wait for locks of others; first come, first served.
            on_dirty: what to do about uncommitted changes in the ranges: "fail", "commit" everything, "discard" them.
            writer: a job's name: a later run under the same name takes the lock over from a dead one.
            token: makes a repetition recognisable: if the same was published before, nothing is locked or written.

        Raises:
            LockInvalid, LockRejected, LockTimeout, UncommittedChanges: when the block is entered.
        """
        options = LockOptions(owner, mode, timeout_s, on_dirty, message, writer, token, metadata)
        return LockedTransaction(self._core, self._at, as_ranges(what), options, self._target.commit)

    def lock_branch(
        self,
        *,
        owner: str,
        mode: LockMode = "exclusive",
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        message: str | None = None,
        writer: str | None = None,
    ) -> LockedTransaction:
        """Freeze the whole branch; arguments are those of `lock`.

        Existing range locks stay on record but have no effect until this lock ends.
        """
        options = LockOptions(owner, mode, timeout_s, on_dirty, message, writer)
        return LockedTransaction(self._core, self._at, None, options, self._target.commit)

    @property
    def range_jobs(self) -> RangeJobs:
        """Jobs on ranges that are frozen while they run: load, restore, move, export."""
        return RangeJobs(self._core, self._at)

    @property
    def locks(self) -> Locks:
        """The locks on ranges of this branch: to look at, take, extend, and release by their ids."""
        return Locks(self._core, self._at)

    def resume(self, path: str | Path) -> Transaction:
        """Go on with an open transaction of a driver that was restarted, from what its `save` wrote.

        Raises:
            UsageError: it is of another branch, or the file cannot be read.
        """
        try:
            body = check_local(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}.", next="Begin anew.") from error
        return resume(self._core, self._at, body, str(path))

    @property
    def transactions(self) -> Transactions:
        """The transactions on record, and what an operator can do to them."""
        return Transactions(self._core, self._at)

    def _published(self, writer: str | None, message: str) -> Transaction:
        return self.transaction(writer or this_thread(), message)

    @property
    def feed(self) -> Feed:
        """The branch's changes, move by move, as a shard that queries follow."""
        from strandline.repository.feed import Feed  # noqa: PLC0415 - loads all of shards

        return Feed(self._core, self._at)

    @property
    def writers(self) -> Writers:
        """The names under which transactions are made: what they committed last, and which node may use them."""
        return Writers(self._core, self._at)

    @logged("create branch")
    def create_branch(self, name: str, *, exist_ok: bool = False) -> Branch:
        """Make a branch at this one's head; staged changes stay here."""
        made = create_branch(self._core, name, self, exist_ok=exist_ok)
        return Branch(self._core, name, made)
