"""Writing: a branch, its staged changes, its commits, and merges into it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.blob import BlobNotFound
from strandline.branch.attach import Computed, attach_changes, attach_pairs
from strandline.branch.commit import commit as commit_branch
from strandline.branch.commits import Commit
from strandline.branch.compaction import Compaction, compact
from strandline.branch.conditional import stage_if
from strandline.branch.heads import reset_head
from strandline.branch.locking import LOCK_PATIENCE_S, OnDirty
from strandline.branch.reflog import read_moves
from strandline.branch.reset import reset_all, reset_range
from strandline.branch.rules.lock_rules import quarantined, refuse_locked_keys, refuse_quarantined
from strandline.branch.rules.ranges import Range, as_ranges, single
from strandline.branch.rules.record import COOL_DOWN_S, BranchRecord, LockMode, refuse_blocked
from strandline.branch.staging import stage_many, stage_one
from strandline.branch.view import Layers, Result, consistently, consistently_seen, uncommitted
from strandline.errors import Conflict, NotAllowed, ObjectNotFound, RangeLocked, UsageError, some_paths
from strandline.ids import CommitId, check_path, check_paths, check_prefix, encoded, new_id
from strandline.operations import logged
from strandline.parallel import in_parallel
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.importing import Imported, import_objects
from strandline.repository.commits.merging import MergeStrategy, cherry_pick, merge_into, revert
from strandline.repository.core.physical import new_key, write_folder
from strandline.repository.core.promises import announce_links, pinned
from strandline.repository.core.texts import check_metadata
from strandline.repository.feed import Feed
from strandline.repository.jobs.range_jobs import RangeJobs
from strandline.repository.locks.held import Held, LockOptions
from strandline.repository.locks.locks import Locks, Ranges, check_ids
from strandline.repository.names.branches import create_branch
from strandline.repository.objects.upload import Content, ObjectWriter, upload
from strandline.repository.objects.writable import Overwrite, Writable
from strandline.repository.refs.differences import Diff
from strandline.repository.refs.exporting import checked_path
from strandline.repository.refs.ref import Ref, key_range
from strandline.repository.refs.reflog import Reflog
from strandline.repository.refs.results import ObjectInfo, as_info
from strandline.repository.transactions.operators import Transactions, Writers
from strandline.repository.transactions.options import OnStaged, TransactionOptions
from strandline.repository.transactions.transaction import Transaction, resume
from strandline.tree.rows import TOMBSTONE, Entry, checked_staged, column, encode_staged, entries_of

READ_WINDOW_ROWS = 50_000


@checked(
    but=(
        "stage",
        "delete",
    )
)
class Branch(Writable):
    """A branch: what is committed on it, with what is staged over it.

    The handle belongs to one creation of the name. If the branch is deleted, and even if another one is made under its
    name, calls raise `BranchGone`.
    """

    @property
    def id(self) -> CommitId:
        return self._at.read().branch.head

    def _find(self, path: str, key: bytes) -> Entry | None:
        def find(record: BranchRecord) -> Entry | None:
            refuse_quarantined(record, self.name, single(path))
            return Layers(self._cell, self._core.commits, record).find(path, key)

        return self._consistently(find)

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        def window(record: BranchRecord) -> tuple[pa.Table, bytes | None]:
            rows, reach = Layers(self._cell, self._core.commits, record).window(start, end, limit)
            return self._outside_quarantine(record, rows, reach)

        return self._consistently(window)

    def _consistently(self, read: Callable[[BranchRecord], Result]) -> Result:
        """A consistent read; what a cached record forbids may be allowed by now, and is tried once more."""
        try:
            return consistently(self._at, read)
        except RangeLocked:
            self._at.read()
            return consistently(self._at, read)

    def _outside_quarantine(
        self, record: BranchRecord, rows: pa.Table, reach: bytes | None
    ) -> tuple[pa.Table, bytes | None]:
        """The rows before the first one that others may not read; raises if that comes first."""
        for lock in quarantined(record):
            for one in lock.ranges:
                paths = column(rows, "path")
                first = pc.search_sorted(paths, one.start).as_py()
                if first == len(paths) or not one.has(paths[first].as_py()):
                    continue
                if not first:
                    refuse_quarantined(record, self.name, one)
                rows = rows.slice(0, first)
                reach = paths[first - 1].as_py().encode()
        return rows, reach

    def _refuse_early(self, path: str | None = None) -> None:
        seen, is_fresh = self._cell.cached(self.branch_id)
        keys = [] if path is None else [path.encode()]

        def judge(record: BranchRecord) -> None:
            refuse_blocked(record, "stage", self.name)
            refuse_locked_keys(record, self.name, keys)

        try:
            judge(seen.branch)
        except (NotAllowed, RangeLocked):
            if is_fresh:
                raise
            judge(self._at.read().branch)

    def _new_key(self, path: str) -> str:
        return new_key(self.branch_id, path)

    def _new_folder(self) -> str:
        return write_folder(self.branch_id, new_id())

    # --- staging ------------------------------------------------------------------------------------------------------

    def put(
        self,
        path: str,
        content: Content,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        create: bool = False,
        if_match: str | None = None,
    ) -> ObjectInfo:
        """Write an object; it is staged, and part of the next commit.

        Args:
            content: bytes, text, a `Path` of a local file, or a binary file.
            create: demand that there is no object at the path.
            if_match: demand that the object at the path has this checksum.

        Raises:
            PreconditionFailed: `create` or `if_match` does not hold.
        """
        check_path(path)
        if create and if_match is not None:
            raise UsageError("An object cannot be both absent and matched.", next="Give create or if_match.")
        self._refuse_early(path)
        entry = upload(self._core, self._new_key(path), path, content, content_type, metadata)
        if create or if_match is not None:
            expected = if_match
            stage_if(
                self._at,
                path,
                entry,
                lambda found: found is None if expected is None else found is not None and found.checksum == expected,
            )
        else:
            self.stage(path, entry)
        return as_info(path, entry)

    def upload(self, path: str, file: str | Path, **options: Any) -> ObjectInfo:
        """Write a local file; options are those of `put`."""
        return self.put(path, checked_path(file), **options)

    @logged("put many")
    def put_many(self, contents: Mapping[str, Content] | Iterable[tuple[str, Content]], *, atomic: bool = True) -> int:
        """Write several objects; with `atomic` they appear at one instant. Returns their number.

        Raises:
            UsageError: a path occurs twice.
        """
        pairs = list(contents.items() if isinstance(contents, Mapping) else contents)
        distinct_keys([path for path, _ in pairs])
        self._refuse_early()

        def one(pair: tuple[str, Content]) -> tuple[str, Entry]:
            path, content = pair
            return path, upload(self._core, self._new_key(path), path, content, None, None)

        uploaded = list(in_parallel(one, pairs))
        return self.stage_atomically(uploaded) if atomic else self.stage_each(uploaded)

    def link_many(self, entries: Iterable[tuple[str, Entry]], *, atomic: bool = False) -> int:
        """Stage many objects whose bytes are elsewhere already, where their entries say; returns their number.

        One check of the branch however many there are. Without `atomic` a failed call may have staged some of them.

        Raises:
            ObjectMissing: some of the bytes are being collected as garbage.
            UsageError: a path occurs twice.
        """
        listed = entries if isinstance(entries, list) else list(entries)
        announce_links(self._core.stores, [entry.physical_address for _, entry in listed])
        return self.stage_atomically(listed) if atomic else self.stage_each(listed)

    def stage(self, path: str, entry: Entry) -> None:
        """Stage an object whose bytes the caller has just written."""
        stage_one(self._at, check_path(path), checked_staged([entry])[0])

    def stage_each(self, entries: Sequence[tuple[str, Entry]]) -> int:
        """Stage objects whose bytes the caller has just written; not atomic. Returns their number."""
        pairs = staged_pairs(entries)
        if pairs:
            stage_many(self._at, pairs)
        return len(pairs)

    def link(
        self,
        path: str,
        physical_address: str,
        *,
        size: int,
        checksum: str,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Stage an object whose bytes are elsewhere already.

        Raises:
            ObjectMissing: there are no bytes at the address, or they are being collected as garbage.
        """
        entry = Entry(
            physical_address, size, checksum, self._core.stores.clock.now_us(), content_type, check_metadata(metadata)
        )
        announce_links(self._core.stores, [physical_address])
        blobs, key = self._core.resolver.resolve(physical_address)
        try:
            found = blobs.head(key)
        except BlobNotFound:
            raise self._missing(as_info(path, entry)) from None
        if found.size != size:
            raise UsageError(
                f"{physical_address!r} has {found.size:,} bytes, not {size:,}.", next="Give the size that it has."
            )
        self.stage(path, entry)
        return as_info(path, entry)

    def open(self, path: str, mode: str = "rb") -> IO[Any]:
        """A file over an object: "rb" or "r" to read, "wb" or "w" to write; a written one is staged when closed."""
        if mode not in ("wb", "w"):
            return super().open(path, mode)
        check_path(path)
        self._refuse_early(path)
        writer = cast("IO[bytes]", ObjectWriter(lambda spool: self.put(path, spool)))
        return writer if mode == "wb" else _TextWriter(writer, "utf-8")

    def delete(self, path: str) -> bool:
        """Delete an object; whether there was one. Deleting what is not there is fine."""
        key = check_path(path)
        self._refuse_early(path)

        def is_known(record: BranchRecord) -> bool:
            layers = Layers(self._cell, self._core.commits, record)
            return layers.find_staged(key) is not None or layers.find(path, key) is not None

        # the only case without a tombstone: no layer holds the path, and a fresh read shows the same layers
        known, seen = consistently_seen(self._at, is_known)
        if not known:
            return False
        stage_one(self._at, key, encode_staged(TOMBSTONE), seen)
        self._staged_tombstones(1)
        return True

    def _staged_tombstones(self, count: int) -> None:
        record = self._cell.remembered
        if self._cell.sensor is not None and record is not None and record.branch_id == self.branch_id:
            self._cell.sensor.saw_tombstones(self.name, record, count)

    @logged("delete many")
    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete several objects with one check of the branch, whether they are there or not; returns their number."""
        value = encode_staged(TOMBSTONE)
        pairs = [(key, value) for key in distinct_keys(list(paths))]
        if pairs:
            stage_many(self._at, pairs)
            self._staged_tombstones(len(pairs))
        return len(pairs)

    @logged("delete prefix")
    def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix at one instant; returns the number of objects."""
        value = encode_staged(TOMBSTONE)
        check_prefix(prefix)

        def compute(record: BranchRecord) -> Computed:
            return Computed([(key, value) for rows in self._sealed_rows(record, prefix) for key in keys_of(rows)])

        count = attach_changes(self._at, compute, [Range(*key_range(prefix))])
        self._staged_tombstones(count)
        return count

    @logged("copy")
    def copy(self, source: str, target: str, *, ref: Ref | str | None = None) -> int:
        """Copy an object, or with a trailing "/" everything below a prefix, without copying bytes.

        All copies appear at one instant. Returns their number.

        Args:
            ref: where the source is; this branch by default.
        """
        return self._move(source, target, self if ref is None else self._other(ref), is_rename=False)

    @logged("rename")
    def rename(self, source: str, target: str) -> int:
        """Rename an object, or with a trailing "/" everything below a prefix, at one instant; returns the number."""
        return self._move(source, target, self, is_rename=True)

    def _move(self, source: str, target: str, ref: Ref, *, is_rename: bool) -> int:
        check_path(source)
        check_path(target)
        is_prefix = source.endswith("/")
        if is_prefix != target.endswith("/"):
            raise UsageError(f"{source!r} and {target!r} must both end with '/', or neither.")
        if is_prefix and is_rename and (target.startswith(source) or source.startswith(target)):
            raise UsageError(f"{source!r} cannot be renamed into {target!r}: one lies in the other.")
        if source == target and ref is self:
            raise UsageError(f"{source!r} cannot be copied onto itself.")

        def compute(record: BranchRecord) -> Computed:
            if ref is self:
                found = self._sealed(record, source, exactly=not is_prefix)
            else:
                found = _entries_of(ref, source, exactly=not is_prefix)
            # bytes that are there already: say so, then look whether the source still has them
            announce_links(self._core.stores, [entry.physical_address for _, entry in found])
            if ref is not self and _entries_of(ref, source, exactly=not is_prefix) != found:
                raise Conflict(
                    f"{source!r} in {ref!r} was changed while it was being copied.",
                    paths=[source],
                    next="Repeat the call.",
                )
            if not found:
                raise ObjectNotFound(
                    f"There is {'nothing below' if is_prefix else 'no object'} {source!r} in {ref!r}.",
                    next="`strandline ls` lists what there is.",
                )
            pairs = {path.encode(): encode_staged(TOMBSTONE) for path, _ in found} if is_rename else {}
            for path, entry in found:
                pairs[check_path(target + path[len(source) :])] = encode_staged(entry)
            return Computed(list(pairs.items()))

        with pinned(self._core.stores, [ref.id] if ref is not self else [], f"copy to {self.name}"):
            gone = [Range(*key_range(source)) if is_prefix else single(source)] if is_rename else []
            staged = attach_changes(self._at, compute, gone)
        return staged // 2 if is_rename else staged

    def _sealed(self, record: BranchRecord, prefix: str, *, exactly: bool = False) -> list[tuple[str, Entry]]:
        """What the sealed layers and the tree of a record hold; the staging token above them is left out."""
        refuse_quarantined(record, self.name, single(prefix) if exactly else Range(*key_range(prefix)))
        layers = Layers(self._cell, self._core.commits, without_staging(record))
        if exactly:
            entry = layers.find(prefix, prefix.encode())
            return [] if entry is None else [(prefix, entry)]
        return [pair for rows in self._sealed_rows(record, prefix) for pair in entries_of(rows)]

    def _sealed_rows(self, record: BranchRecord, prefix: str) -> Iterator[pa.Table]:
        layers = Layers(self._cell, self._core.commits, without_staging(record))
        start, end = key_range(prefix)
        low: bytes | None = start.encode()
        while low is not None:
            rows, reach = layers.window(low, encoded(end), READ_WINDOW_ROWS)
            yield rows
            low = None if reach is None else reach + b"\0"

    def stage_atomically(
        self,
        entries: Sequence[tuple[str, Entry]],
        overwrite: Overwrite | None = None,
        expect: Mapping[str, str | None] | None = None,
    ) -> int:
        """Stage entries, and perhaps delete what else is below a prefix, at one instant; see `Writable`."""
        new = staged_pairs(entries)
        if overwrite is None and not expect:
            return attach_pairs(self._at, new) if new else 0
        written = {key for key, _ in new}
        value = encode_staged(TOMBSTONE)

        def compute(record: BranchRecord) -> Computed:
            for path, checksum in (expect or {}).items():
                found = self._sealed(record, path, exactly=True)
                if (found[0][1].checksum if found else None) != checksum:
                    raise Conflict(
                        f"{path!r} on branch {self.name!r} was changed by somebody else meanwhile.",
                        paths=[path],
                        next="Look at the change, then repeat the call.",
                    )
            gone: list[tuple[bytes, bytes]] = []
            if overwrite is not None:
                missing = set(overwrite.present)
                for rows in self._sealed_rows(record, overwrite.below):
                    for path, entry in entries_of(rows):
                        missing.discard(path)
                        key = path.encode()
                        if key not in written and not overwrite.keep(path, entry):
                            gone.append((key, value))
                if missing:
                    told = some_paths(sorted(missing))
                    raise Conflict(
                        f"{told} on branch {self.name!r} was deleted by somebody else meanwhile.",
                        paths=sorted(missing),
                        next="Look at the change, then repeat the call.",
                    )
            return Computed(new + gone)

        return attach_changes(self._at, compute)

    def uncommitted(self, prefix: str = "") -> Diff:
        """The changes that a commit would make."""
        low, high = key_range(prefix)
        return Diff(lambda: iter([uncommitted(self._at, low, high)]))

    @logged("reset")
    def reset(self, path: str | None = None, *, prefix: str | None = None) -> None:
        """Throw staged changes away: all, those of a path, or those below a prefix."""
        if path is not None and prefix is not None:
            raise UsageError("A reset takes a path or a prefix, not both.")
        if path is not None:
            check_path(path)
            reset_range(self._at, path, path + "\0")
        elif prefix:
            check_prefix(prefix)
            reset_range(self._at, *key_range(prefix))
        else:
            reset_all(self._at)

    @logged("compact")
    def compact(self, *, force: bool = False) -> Compaction:
        """Fold what is staged into a tree, so that listings and look-ups need not go through it entry by entry.

        It changes nothing that anybody sees, and stops nobody. It happens in the background when it is worth it.

        Args:
            force: even if another compaction of the branch began less than a minute ago.
        """
        cool_down_s = 0 if force else COOL_DOWN_S
        return compact(self._at, cool_down_s=cool_down_s)

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
    ) -> Commit:
        """Commit everything staged; writers go on meanwhile.

        Raises:
            NothingToCommit: nothing is staged in effect and `allow_empty` is not set.
        """
        draft = make_draft(self._core, message, metadata, committer, date, allow_empty=allow_empty)
        record = commit_branch(self._at, draft)
        self._core.committed()
        return record

    @logged("merge")
    def merge(
        self,
        source: Ref | str,
        message: str | None = None,
        *,
        strategy: MergeStrategy = None,
        squash: bool = False,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        date: datetime | None = None,
    ) -> Commit:
        """Merge the commits of another ref into this branch, as one merge commit.

        Args:
            strategy: "source-wins" or "dest-wins" for all conflicts, or a map of path prefixes to them.
            squash: make a commit with one parent, as if its changes had been made here.

        Raises:
            MergeConflict: both sides changed the same paths in different ways.
            UncommittedChanges: this branch has staged changes.
            NothingToMerge: the source has nothing new.
        """
        other = self._other(source)
        text = message if message is not None else f"Merge {other.expression} into {self.name}"
        draft = make_draft(self._core, text, metadata, committer, date)
        return merge_into(self._core, self._at, other, draft, strategy, squash)

    @logged("revert")
    def revert(
        self, commit: Ref | str, message: str | None = None, *, parent: int | None = None, committer: str | None = None
    ) -> Commit:
        """Commit the opposite of what a commit did.

        Args:
            parent: of a merge commit, the parent (from 1) whose side stays.
        """
        target = self._other(commit)
        text = message if message is not None else f"Revert {target.commit_info.message!r} ({target.id[:12]})"
        return revert(self._core, self._at, target, make_draft(self._core, text, None, committer, None), parent)

    @logged("cherry-pick")
    def cherry_pick(
        self, commit: Ref | str, message: str | None = None, *, parent: int | None = None, committer: str | None = None
    ) -> Commit:
        """Commit again, here, what a commit did elsewhere."""
        target = self._other(commit)
        text = message if message is not None else target.commit_info.message
        return cherry_pick(self._core, self._at, target, make_draft(self._core, text, None, committer, None), parent)

    @logged("hard reset")
    def hard_reset(self, ref: Ref | str, *, force: bool = False) -> None:
        """Move the head to any commit. Staged changes forbid it, unless `force` throws them away."""
        target = self._other(ref).id
        with pinned(self._core.stores, [target], f"hard reset of {self.name}"):
            reset_head(self._at, target, force=force)

    @logged("import")
    def import_objects(
        self,
        source: str | Path,
        destination: str = "",
        message: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> Imported:
        """Commit references to objects that exist already, in a local folder or below a URL such as s3://bucket/prefix.

        No bytes are copied. What is at the same paths already is replaced; the rest stays.

        Args:
            progress: called after each page of the source's listing.
        """
        text = message if message is not None else f"Import {source} as {destination or '/'}"
        draft = make_draft(self._core, text, metadata, committer, None)
        return import_objects(self._core, self._at, str(source), destination, draft, progress)

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
            max_uncommitted_bytes: publish, and go on in a new transaction, whenever so much has come together.
            locks: ids of locks that are held: what they cover may be changed. They stay.
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
            lock_patience_s=lock_patience_s,
        )
        return Transaction(self._core, self._at, options, self._target.commit)

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
    ) -> Held:
        """Freeze ranges while everyone else goes on, and change them in one swap. Use it with `with`.

        The block gets the one handle through which the ranges can be changed. Nobody sees its changes until the block
        ends: then they land as one commit, and the lock ends in the same swap. If it raises, nothing has happened.

        Args:
            what: a prefix, a pair of paths (start, end), or several of these.
            owner: registered in `repository.lock_owners`; others read its description in the errors that they get.
            mode: "exclusive"; "shared", so that nobody changes anything; "quarantine", so that nobody else reads it.
            timeout_s: wait so long for locks of others; first come, first served.
            on_dirty: what to do about uncommitted changes in the ranges: "fail", "commit" everything, "discard" them.
            writer: a job's name: a later run under the same name takes the lock over from a dead one.
            token: makes a repetition recognisable: if the same was published before, nothing is locked or written.

        Raises:
            LockInvalid, LockRejected, LockTimeout, UncommittedChanges: when the block is entered.
        """
        options = LockOptions(owner, mode, timeout_s, on_dirty, message, writer, token, metadata)
        return Held(self._core, self._at, as_ranges(what), options, self._target.commit)

    def lock_all(
        self,
        *,
        owner: str,
        mode: LockMode = "exclusive",
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        message: str | None = None,
        writer: str | None = None,
    ) -> Held:
        """Freeze the whole branch; arguments are those of `lock`. Locks on ranges keep their records, and rest."""
        options = LockOptions(owner, mode, timeout_s, on_dirty, message, writer)
        return Held(self._core, self._at, None, options, self._target.commit)

    @property
    def ranges(self) -> RangeJobs:
        """Jobs on ranges that are frozen meanwhile: load, restore, move, export."""
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
            body = checked_path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}.", next="Begin anew.") from error
        return resume(self._core, self._at, body, str(path))

    @property
    def transactions(self) -> Transactions:
        """The transactions on record, and what an operator can do to them."""
        return Transactions(self._core, self._at)

    @property
    def feed(self) -> Feed:
        """The branch's changes, move by move, as a shard that queries follow."""
        return Feed(self._core, self._at)

    @property
    def writers(self) -> Writers:
        """The names under which transactions are made: what they committed last, and who may use them."""
        return Writers(self._core, self._at)

    @logged("create branch")
    def create_branch(self, name: str, *, exist_ok: bool = False) -> Branch:
        """Make a branch at this one's head; staged changes stay here."""
        made = create_branch(self._core, name, self, exist_ok=exist_ok)
        return Branch(self._core, name, made)


class _TextWriter(io.TextIOWrapper):
    """Text over an `ObjectWriter`: a failing `with` block leaves no object."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            cast("ObjectWriter", self.detach()).discard()
        else:
            self.close()


def keys_of(rows: pa.Table) -> list[bytes]:
    keys: list[bytes] = column(rows, "path").cast(pa.binary()).to_pylist()
    return keys


def without_staging(record: BranchRecord) -> BranchRecord:
    from msgspec.structs import replace

    sealed = record.sealed_tokens
    return replace(record, staging_token=sealed[0], sealed_tokens=sealed[1:])


def _entries_of(ref: Ref, prefix: str, *, exactly: bool) -> list[tuple[str, Entry]]:
    if exactly:
        entry = ref._find(prefix, check_path(prefix))
        return [] if entry is None else [(prefix, entry)]
    return [pair for rows in ref.list(prefix).tables() for pair in entries_of(rows)]


def staged_pairs(entries: Sequence[tuple[str, Entry]]) -> list[tuple[bytes, bytes]]:
    keys = distinct_keys([path for path, _ in entries])
    return list(zip(keys, checked_staged([entry for _, entry in entries]), strict=True))


def distinct_keys(paths: Sequence[str]) -> list[bytes]:
    """The keys of paths; refuses a path that occurs twice."""
    keys = check_paths(paths)
    if len(set(keys)) != len(keys):
        twice = [path for path, count in Counter(paths).items() if count > 1]
        raise UsageError(f"A path occurs twice in one call: {twice[0]!r}.", next="Give each path once.")
    return keys
