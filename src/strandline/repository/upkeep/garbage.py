"""Collecting garbage while everyone works: what nothing refers to, and nobody is about to refer to, is deleted.

Order of a run, each step before the next for a reason (`promises`): transactions, files, staged changes, history,
what is condemned, link records, deletion. Whatever is read too early is young, linked or pinned; whatever is decided
too early is decided again by the next run. A run that dies leaves its list of condemned files, and the next one goes on
with it. Memory: the keys, sizes and times of all files, as columns; on an engine, descriptions of ranges alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from strandline.blob import BlobNotFound
from strandline.branch import repeats, shared_changes, transactions
from strandline.branch.at import BranchAt
from strandline.branch.attempts import update
from strandline.branch.reflog import read_moves
from strandline.branch.rules.lock_rules import locks_of
from strandline.branch.rules.record import BranchRecord, RefRecord, TagRecord, seal
from strandline.branch.staged import scan_staged
from strandline.branch.transactions import TransactionRecord
from strandline.clock import Microseconds
from strandline.core import promises, staged_tables
from strandline.core.namespace import Ownership
from strandline.core.promises import Condemned, Expired
from strandline.core.repository_core import RepositoryCore
from strandline.core.retention import DAY_US, GRACE_DAYS, Retention, retained
from strandline.envelope import decode, encode
from strandline.errors import BranchGone, Contention, Corrupted, ObjectMissing, RefNotFound, StorageError, UsageError
from strandline.ids import BranchId, CommitId, StagingToken, new_id
from strandline.kv.store import PredicateFailed
from strandline.parallel import in_parallel
from strandline.progress import Progress, no_progress
from strandline.repository.upkeep.judging import DELETE_KEYS, GarbagePlace, Round, Rule, Survey, Surveyor, SurveyorHere
from strandline.repository.upkeep.owners import KnownTransactions
from strandline.tree.files import TreeFiles
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.store import EMPTY, METARANGES_FOLDER, TreeRef, TreeStore

CACHE_MAX_BYTES = 16 << 20
SEAL_ATTEMPTS = 100
MAX_GRACE_DAYS = 36_500.0
REQUEST_US = 240_000_000
"""A client sends a request that fails again for three minutes, and waits half a minute for the answer to the last."""
ROUND_PARTS = 1_000
"""More would have their attempts only see that a round is over."""
ROUND_US = 300_000_000
"""For how long executors delete before the record is written again: less than it takes to call a run dead."""
EMPTY_ROUNDS = 3
"""A cluster may take some minutes to begin."""
RECORDS_KEPT_DAYS = 30.0
"""How long the record of a transaction outlives its files: a repeated commit, or a token, is recognised by it. The days
count from when a collector first saw the end, by the object store's clock: those of collectors and publishers may be
wrong by any amount, and a token that is forgotten too early lets a job be published twice."""


class GarbagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would delete, or has deleted.

    Attributes:
        files, bytes: of everything that goes.
        orphans: files that nothing refers to and that are older than the grace.
        dead: files on the deadlists of committed transactions.
        rejected: files of acknowledged rejected transactions.
        young: files that nothing refers to and that are too young to go.
        unknown: files that are not strandline's.
        linked: files that nothing refers to and that lie behind a link to another place: they stay.
        half_written: what puts that died have left.
        expiring: commits that no rule keeps any more; their files go in a later run.
        expired: commits that an earlier run has found so: their files go now.
        kept: commits that are kept.
        examples: some of the files that go.
        resumed: files that an earlier run had condemned and this one deleted.
        places: what goes and why, the most bytes first, at most `MAX_PLACES` of them.
    """

    files: int = 0
    bytes: int = 0
    orphans: int = 0
    dead: int = 0
    rejected: int = 0
    young: int = 0
    young_bytes: int = 0
    unknown: int = 0
    expiring: int = 0
    expired: int = 0
    kept: int = 0
    total_files: int = 0
    examples: tuple[str, ...] = ()
    resumed: int = 0
    linked: int = 0
    half_written: int = 0
    places: tuple[GarbagePlace, ...] = ()


@dataclass(frozen=True, slots=True)
class _History:
    """What is to become of the commits.

    Attributes:
        kept: by a rule, a branch, a tag or a pin.
        seen: nothing leads to them, now for the first time.
        expiring: nothing keeps them any more; their files stay for this run.
        recalled: had expired, and are wanted again.
        gone: expired so long ago that their files go now.
        trees: of all commits whose files stay.
    """

    kept: set[CommitId]
    seen: list[CommitId]
    expiring: list[CommitId]
    recalled: list[CommitId]
    gone: list[CommitId]
    trees: set[TreeRef]


@dataclass
class _Findings:
    """A plan with what is needed to carry it out."""

    plan: GarbagePlan
    files: Survey
    history: _History
    finished: list[TransactionRecord] = field(default_factory=list)
    swept: list[TransactionRecord] = field(default_factory=list)
    ended: list[TransactionRecord] = field(default_factory=list)
    forgotten: list[TransactionRecord] = field(default_factory=list)
    over: list[tuple[BranchId, int]] = field(default_factory=list)


class Collector:
    """One run.

    Args:
        grace_days: files younger than this stay although nothing refers to them.
        before_us: instead of a grace: files that were modified later stay.
        links_before_us: instead of two graces: link records that were seen later stay.
        despite_readers: collect although a lake that was restored without its bytes reads this namespace.

    Raises:
        NotAllowed: nobody can be sure that the namespace is this repository's alone.
    """

    def __init__(
        self,
        core: RepositoryCore,
        rules: Retention,
        *,
        grace_days: float = GRACE_DAYS,
        before_us: Microseconds | None = None,
        links_before_us: Microseconds | None = None,
        despite_readers: bool = False,
        progress: Progress = no_progress,
        surveyor: Surveyor | None = None,
    ) -> None:
        if not 0 <= grace_days <= MAX_GRACE_DAYS:
            raise UsageError(
                f"grace_days must be between 0 and {MAX_GRACE_DAYS:,}; got {grace_days:g}.",
                next="Use a number of days, such as 7.",
            )
        self._core = core
        self._stores = core.stores
        self._rules = rules
        self._owner = Ownership(self._stores, self._stores.repository_id, core.name)
        self._owner.check(despite_readers=despite_readers)
        self._grace_us = round(grace_days * DAY_US)
        self._run = new_id()
        self._now = self._store_time()
        self._before = self._now - self._grace_us if before_us is None else before_us
        # another run that began before the link was staged may not have come to read the link records yet
        self._links_before = self._before - self._grace_us if links_before_us is None else links_before_us
        self._progress = progress
        self._surveyor: Surveyor = SurveyorHere() if surveyor is None else surveyor
        self._open = ExitStack()

    def _store_time(self) -> Microseconds:
        """The time by the clock of the object store, which also dates the files: that of this machine may be wrong."""
        blobs = self._stores.trees.blobs
        # a folder of its own: another collector that brings this run to an end empties the run's folder
        key = f"{promises.GC_FOLDER}/{new_id()}/started"
        blobs.put(key, b"")
        try:
            return blobs.head(key).modified_at_us
        finally:
            blobs.delete_many([key])

    def plan(self) -> GarbagePlan:
        """What a run would do now. Changes nothing but what is sealed."""
        with self._open:
            return self._find().plan

    def run(self) -> GarbagePlan:
        """Collect. A repetition after an interruption goes on where it was interrupted."""
        for record in promises.condemned(self._stores):
            if not record.is_over:
                promises.refuse_running(self._stores, record)
        self._owner.begin()
        resumed = sum(self._finish(record.run) for record in promises.condemned(self._stores))
        with self._open:
            found = self._find()
            self._expire(found.history)
            promises.put_expired(self._stores, found.history.gone, Expired(self._run, self._now, swept=True))
            if found.plan.files:
                found.files.condemn(
                    Condemned(self._run, found.plan.files, found.plan.bytes, self._stores.clock.now_us())
                )
        self._finish(self._run)
        blobs = self._stores.trees.blobs.own
        blobs.drop_half_written(blobs.half_written(self._before))
        for transaction in found.swept:
            self._swept(transaction)
        for transaction in found.finished:
            transactions.advance(self._stores, transaction, "collected", seen_ended_at=self._now)
        for transaction in found.ended:
            self._see_the_end(transaction)
        for transaction in found.forgotten:
            transactions.forget(self._stores, transaction)
        for branch_id, id in found.over:
            shared_changes.drop(self._stores, branch_id, id)
        repeats.sweep(self._stores, self._now)
        staged_tables.sweep(self._stores, self._now)
        promises.drop_links(self._stores, self._store_time(), self._links_before)
        return msgspec.structs.replace(found.plan, resumed=resumed)

    # --- what goes ----------------------------------------------------------------------------------------------------

    def _find(self) -> _Findings:
        shared = list(shared_changes.shared_ids(self._stores))  # before the states: what is over then, is for good
        owners = KnownTransactions(self._core)
        open_now = {(owner.branch_id, owner.id) for owner in owners.all() if owner.state == "open"}
        self._progress("listing files", 0, 0)
        files = self._open.enter_context(closing(self._surveyor.survey(self._core, self._run, self._progress)))
        trees, branches, tags = self._staged(files)
        bases = [owner.record.base for owner in owners.all() if owner.state == "open" and owner.record is not None]
        tags += [base for base in bases if base]
        history = self._history(branches, tags)
        trees |= dict.fromkeys(history.trees)
        ranges = self._ranges(trees, files)
        files.mark_ranges(ranges)
        self._mark_iceberg(files)
        found = self._judge(files, owners, history)
        found.over = [one for one in shared if one not in open_now]
        return found

    def _mark_iceberg(self, files: Survey) -> None:
        """Mark what the tables refer to whose metadata is referred to by now; a transaction's own files are judged with
        it.
        """
        try:
            files.mark_iceberg()
        except Corrupted as error:
            error.now_safe("Nothing was deleted.")
            raise

    def _staged(self, files: Survey) -> tuple[dict[TreeRef, None], dict[str, BranchRecord], list[CommitId]]:
        """Mark what is staged; the trees that branches fold it into, the branches, and the commits of tags."""
        trees: dict[TreeRef, None] = {}
        branches: dict[str, BranchRecord] = {}
        tags: list[CommitId] = []
        for key, value in list(self._stores.kv.scan(self._stores.refs)):
            record = decode(RefRecord, value, f"ref {key.decode()!r}")
            if isinstance(record, TagRecord):
                tags.append(record.commit)
            elif isinstance(record, BranchRecord):
                try:
                    branches[key.decode()] = now = self._mark_staged(key.decode(), record.branch_id, files)
                except (BranchGone, RefNotFound):
                    continue
                tags += [lock.base for lock in locks_of(now) if lock.base]  # a refused writer looks there
                if now.compacted is not None:
                    trees[now.compacted] = None
        return trees, branches, tags

    def _mark_staged(self, name: str, branch_id: BranchId, files: Survey) -> BranchRecord:
        """Seal, and read what was sealed. It counts if all of it is on record still when it has been read, so that
        nobody was deleting from it. What has been committed since is in the head that is read at the end.
        """
        at = BranchAt.of(self._stores, name, branch_id)
        for _ in range(SEAL_ATTEMPTS):
            branch = at.read().branch
            if self._stores.kv.scan_page(self._stores.staging(branch.staging_token), limit=1).keys:
                branch = update(at, lambda now: seal(now, StagingToken(new_id()))).branch
            for batch in scan_staged(self._stores, branch.sealed_tokens):
                files.mark(column(batch.rows, "physical_address").drop_null())
            now = at.read().branch
            if set(branch.sealed_tokens) <= set(now.tokens):
                return now
        raise Contention(
            f"What is staged on branch {name!r} was committed faster than it could be read, {SEAL_ATTEMPTS} times.",
            safe="Nothing was deleted.",
            next="Collect when there is less going on.",
        )

    def _history(self, branches: dict[str, BranchRecord], tags: list[CommitId]) -> _History:
        commits = self._core.commits
        before = promises.expired(self._stores)
        pinned = [pin.commit for pin in promises.pins(self._stores, self._store_time())]
        known = {name: (branch, self._moved(name, branch)) for name, branch in branches.items()}
        found = retained(commits, known, [*tags, *pinned], self._rules, self._now)
        seen, expiring, gone = [], [], []
        trees: set[TreeRef] = set()
        for commit in commits.all():
            mark = before.get(commit.id)
            if mark is not None and mark.swept:
                continue  # its files are gone for good, whatever the rules say by now
            is_old = mark is not None and mark.at < self._before
            if mark is not None and is_old and not mark.is_only_seen and commit.id not in found.keep:
                gone.append(commit.id)  # for longer than any operation lasts that may have begun with it as its base
                continue
            # its files stay for this run, so that a process that is about to use it can say so
            trees.add(commit.tree_ref)
            if commit.id in found.keep or (mark is not None and not mark.is_only_seen):
                continue
            if commit.id in found.reached or is_old:
                expiring.append(commit.id)
            elif mark is None:
                seen.append(commit.id)
        recalled = [id for id in before if id in found.keep and not before[id].swept]
        return _History(found.keep, seen, expiring, recalled, gone, trees)

    def _moved(self, name: str, branch: BranchRecord) -> list[CommitId]:
        """The commits that the reflog names, within the days of the branch's rule."""
        days = self._rules.days_of(name)
        cutoff = 0 if days is None else self._now - round(days * DAY_US)
        found: list[CommitId] = []
        for move in read_moves(self._stores, branch):
            if move.at_us < cutoff:
                continue  # not the end: each is dated by the clock of the process that moved the head
            found += [move.after, *([CommitId(move.before)] if move.before else [])]
        return found

    def _ranges(self, refs: Iterable[TreeRef], files: Survey) -> list[RangeInfo]:
        trees = TreeStore(self._stores.trees.blobs, CACHE_MAX_BYTES)
        found = TreeFiles(trees)
        wanted = [ref for ref in refs if ref != EMPTY.ref]
        names = [f"{METARANGES_FOLDER}/{ref}.parquet" for ref in wanted]
        try:
            for tree in in_parallel(trees.tree, wanted) if trees.blobs.is_remote else map(trees.tree, wanted):
                found.add(tree)
        except (ObjectMissing, Corrupted) as error:
            raise Corrupted(
                f"{error.what} Without it, the collector does not know what else is needed.",
                safe="Nothing was deleted.",
                next="Run `strandline fsck`; restore the file, or delete the branch or tag that needs it.",
            ) from error
        files.mark(pa.array([*names, *found.addresses], pa.string()))
        return list(found.ranges.values())

    def _judge(self, files: Survey, owners: KnownTransactions, history: _History) -> _Findings:
        known = list(owners.all())
        left = promises.condemned(self._stores)  # the lists of runs that have not ended
        verdict = files.judge(Rule(self._before, known, [record.folder for record in left]))
        half_written = self._stores.trees.blobs.own.half_written(self._before)
        plan = GarbagePlan(
            files=verdict.files,
            bytes=verdict.bytes,
            orphans=verdict.files - verdict.dead - verdict.rejected,
            dead=verdict.dead,
            rejected=verdict.rejected,
            young=verdict.young,
            young_bytes=verdict.young_bytes,
            unknown=verdict.unknown,
            expiring=len(history.expiring),
            expired=len(history.gone),
            kept=len(history.kept),
            total_files=verdict.total_files,
            examples=verdict.examples,
            linked=verdict.linked,
            half_written=len(half_written),
            places=verdict.places,
        )
        found = _Findings(plan, files, history)
        until = self._now - round(RECORDS_KEPT_DAYS * DAY_US)
        for owner in known:
            record = owner.record
            if record is None:
                continue
            if owner.state == "rejected-acknowledged":
                if record.swept_at is None:
                    found.swept.append(record)
                elif record.swept_at < self._before:
                    found.finished.append(record)
            elif owner.state == "committed" and record.state == "committed":  # else somebody has yet to write that down
                found.finished.append(record)
            elif owner.state == "collected":
                if record.seen_ended_at is None:
                    found.ended.append(record)
                elif record.seen_ended_at < until:
                    found.forgotten.append(record)
        return found

    # --- doing it -----------------------------------------------------------------------------------------------------

    def _expire(self, found: _History) -> None:
        """Say which commits expire, then look again whether anybody has come to use one."""
        stores = self._stores
        promises.drop_expired(stores, found.recalled)
        promises.put_expired(stores, found.seen, Expired(self._run, self._now, is_only_seen=True))
        promises.put_expired(stores, found.expiring, Expired(self._run, self._now))
        wanted = {pin.commit for pin in promises.pins(stores, self._store_time())}
        for key, value in stores.kv.scan(stores.refs):
            record = decode(RefRecord, value, f"ref {key.decode()!r}")
            if isinstance(record, TagRecord):
                wanted.add(record.commit)
            elif isinstance(record, BranchRecord):
                wanted.add(record.head)
                wanted.update(self._moved(key.decode(), record))
        promises.drop_expired(stores, [id for id in found.expiring if id in wanted])

    def _finish(self, run: str) -> int:
        """Delete what a run has decided on; returns the number of files.

        Invariant: what goes is on a list that never changes (`promises.decide`), and the record is ended only when all
        of it is gone. So a process that deletes late, after another run has gone on with the work, meets only keys that
        are gone. The marker is looked at before each batch: a namespace that another lake has taken is not deleted
        from.
        """
        stores = self._stores
        found = promises.find_condemned(stores, run)
        try:
            found = None if found is None else promises.decide(stores, *found, self._surveyor.settle)
            if found is None:
                return 0  # somebody else has ended it
            if found[1].in_parts:
                return self._finish_parts(*found)
            keys = promises.condemned_keys(stores, found[1])
        except BlobNotFound:
            if (left := promises.find_condemned(stores, run)) is not None and self._is_past(left[1]):
                promises.end_condemned(stores, left[1])
            return 0
        deleted = 0
        while found is not None and found[1].done < len(keys):
            raw, record = found
            self._progress("deleting", record.done, len(keys))
            self._owner.refuse_foreign()
            gone: list[str] = keys.slice(record.done, DELETE_KEYS).to_pylist()
            stores.trees.blobs.own.delete_many(gone)
            deleted += len(gone)
            done = record.done + len(gone)
            found = promises.advance_condemned(
                stores, raw, msgspec.structs.replace(record, done=done, at=stores.clock.now_us())
            )
        if found is not None:
            promises.end_condemned(stores, found[1])
        return deleted

    def _finish_parts(self, raw: bytes, record: Condemned) -> int:
        """The same of lists in parts, some of them at once, in rounds.

        Invariant: `until` is on record before an attempt of a round begins, and no attempt deletes after it. So when
        the record goes, nobody deletes by it any more; that may be in a later run.

        Raises:
            BlobNotFound: the lists are gone, and so the run has ended.
        """
        stores = self._stores
        parts = promises.condemned_parts(stores, record)
        deleted = empty = 0
        found: tuple[bytes, Condemned] | None = (raw, record)
        while found is not None and not found[1].is_over:
            raw, record = found
            self._owner.refuse_foreign()
            until = self._store_time() + ROUND_US
            now = stores.clock.now_us()
            found = promises.advance_condemned(stores, raw, msgspec.structs.replace(record, at=now, until=until))
            if found is None or found[1].until != until:
                continue  # somebody else goes on with it
            self._progress("deleting", deleted, record.count)
            round = Round(record.run, self._owner.stamp, until)
            ended = self._surveyor.delete(self._core, round, parts[:ROUND_PARTS])
            empty = 0 if ended else empty + 1
            if empty == EMPTY_ROUNDS:
                self._owner.refuse_foreign()
                minutes = EMPTY_ROUNDS * ROUND_US // 60_000_000
                raise StorageError(
                    f"None of {len(parts)} lists of garbage could be deleted in {minutes} minutes.",
                    safe="Nothing refers to what was deleted.",
                    next="Look whether the store answers, then collect again.",
                )
            deleted += sum(part.count for part in ended)
            gone = set(ended)
            parts = [part for part in parts if part not in gone]
            done = max(record.done, record.count - sum(part.count for part in parts))
            raw, record = found
            now = stores.clock.now_us()
            found = promises.advance_condemned(stores, raw, msgspec.structs.replace(record, done=done, at=now))
        if found is not None and self._is_past(found[1]):
            promises.end_condemned(stores, found[1])
        return deleted

    def _is_past(self, record: Condemned) -> bool:
        """Whether no attempt of any round deletes any more: a request that began in time may be sent again for a while.

        Of a run that has had no round, nobody deletes in tasks.
        """
        return not record.until or record.until + REQUEST_US < self._store_time()

    def _see_the_end(self, record: TransactionRecord) -> None:
        """Note when a collector first saw that a transaction has ended: from then on its record is kept for so long."""
        raw, held = transactions.find_record(self._stores, record.branch_id, record.id)
        if raw is None or held is None or held.seen_ended_at is not None:
            return
        seen = encode(msgspec.structs.replace(held, seen_ended_at=self._now))
        with suppress(PredicateFailed):
            self._stores.kv.set_if(self._stores.records, transactions.key_of(record.branch_id, record.id), seen, raw)

    def _swept(self, record: TransactionRecord) -> None:
        """Note the first sweep; a zombie may still be uploading, so there is a second one after a grace."""
        raw, held = transactions.find_record(self._stores, record.branch_id, record.id)
        if raw is None or held is None or held.state != "rejected-acknowledged" or held.swept_at is not None:
            return
        swept = encode(msgspec.structs.replace(held, swept_at=self._now))
        with suppress(PredicateFailed):
            self._stores.kv.set_if(self._stores.records, transactions.key_of(record.branch_id, record.id), swept, raw)
