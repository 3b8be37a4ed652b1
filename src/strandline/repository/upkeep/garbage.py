"""Collecting garbage while everyone works: what nothing refers to, and nobody is about to refer to, is deleted.

Order of a run, each step before the next for a reason (`promises`): transactions, files, staged changes, history,
what is condemned, link records, deletion. Whatever is read too early is young, linked or pinned; whatever is decided
too early is decided again by the next run. A run that dies leaves its list of condemned files, and the next one goes on
with it. Memory: the keys, sizes and times of all files, as columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
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
from strandline.core.iceberg_files import Reach
from strandline.core.manifest import decode_deadlist
from strandline.core.namespace import Ownership
from strandline.core.physical import transaction_folder, transaction_prefix
from strandline.core.promises import Condemned, Expired
from strandline.core.repository_core import RepositoryCore
from strandline.core.retention import DAY_US, GRACE_DAYS, Retention, retained
from strandline.core.shapes import are_own, place_of
from strandline.envelope import decode, encode
from strandline.errors import BranchGone, Contention, Corrupted, ObjectMissing, RefNotFound, UsageError
from strandline.ids import BranchId, CommitId, StagingToken, new_id, prefix_end
from strandline.kv.store import PredicateFailed
from strandline.progress import Progress, no_progress
from strandline.repository.upkeep.files import Files
from strandline.repository.upkeep.owners import KnownTransactions
from strandline.tree.files import TreeFiles
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column, search
from strandline.tree.store import EMPTY, METARANGES_FOLDER, TreeRef, TreeStore

CACHE_MAX_BYTES = 16 << 20
DELETE_KEYS = 1_000
SEAL_ATTEMPTS = 100
MAX_GRACE_DAYS = 36_500.0
MAX_PLACES = 100
RECORDS_KEPT_DAYS = 30.0
"""How long the record of a transaction outlives its files: a repeated commit, or a token, is recognised by it. The days
count from when a collector first saw the end, by the object store's clock: those of collectors and publishers may be
wrong by any amount, and a token that is forgotten too early lets a job be published twice."""


class GarbagePlace(msgspec.Struct, frozen=True):
    """What goes below a prefix, for one reason.

    Attributes:
        prefix: of a branch, a transaction, or a kind of metadata.
        why: in a few words.
    """

    prefix: str
    why: str
    files: int
    bytes: int


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


class Marker(Protocol):
    """Marks what is referred to: in this process, or on Spark."""

    def ranges(self, core: RepositoryCore, files: Files, ranges: list[RangeInfo], progress: Progress) -> None:
        """Mark the files that the rows of ranges refer to."""

    def iceberg(self, core: RepositoryCore, files: Files, metadata: list[str], progress: Progress) -> None:
        """Mark the files that metadata of Iceberg's tables refers to; raises `Corrupted` if one cannot be read."""


class MarkerHere:
    """Reads in this process: ranges one after the other, Iceberg's files in threads."""

    def ranges(self, core: RepositoryCore, files: Files, ranges: list[RangeInfo], progress: Progress) -> None:
        trees = TreeStore(core.stores.trees.blobs, CACHE_MAX_BYTES)
        for done, info in enumerate(ranges):
            progress("reading metadata", done, len(ranges))
            files.mark(column(trees.rows(info), "physical_address"))

    def iceberg(self, core: RepositoryCore, files: Files, metadata: list[str], progress: Progress) -> None:
        for keys in Reach(core.stores.trees.blobs, progress).from_metadata(metadata):
            files.mark(pa.array(keys, pa.string()))


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
    keys: pa.StringArray
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
        marker: Marker | None = None,
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
        self._marker: Marker = MarkerHere() if marker is None else marker

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
        return self._find().plan

    def run(self) -> GarbagePlan:
        """Collect. A repetition after an interruption goes on where it was interrupted."""
        for left in promises.condemned(self._stores):
            promises.refuse_running(self._stores, left)
        self._owner.begin()
        resumed = sum(self._finish(left.run) for left in promises.condemned(self._stores))
        found = self._find()
        self._expire(found.history)
        promises.put_expired(self._stores, found.history.gone, Expired(self._run, self._now, swept=True))
        if len(found.keys):
            record = Condemned(self._run, len(found.keys), found.plan.bytes, self._stores.clock.now_us())
            promises.write_condemned(self._stores, record, found.keys)
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
        files = Files(self._stores.trees.blobs.own)
        trees, branches, tags = self._staged(files)
        bases = [owner.record.base for owner in owners.all() if owner.state == "open" and owner.record is not None]
        tags += [base for base in bases if base]
        history = self._history(branches, tags)
        trees |= dict.fromkeys(history.trees)
        ranges = self._ranges(trees, files)
        self._marker.ranges(self._core, files, ranges, self._progress)
        self._mark_iceberg(files)
        found = self._judge(files, owners, history)
        found.over = [one for one in shared if one not in open_now]
        return found

    def _mark_iceberg(self, files: Files) -> None:
        """Mark what the tables refer to whose metadata is referred to by now; a transaction's own files are judged with
        it.
        """
        # a table may have changed after the listing; what its metadata refers to can be as old as the table
        metadata = files.referred_metadata() + files.late_metadata()
        if not metadata:
            return
        try:
            self._marker.iceberg(self._core, files, metadata, self._progress)
        except Corrupted as error:
            error.now_safe("Nothing was deleted.")
            raise

    def _staged(self, files: Files) -> tuple[dict[TreeRef, None], dict[str, BranchRecord], list[CommitId]]:
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

    def _mark_staged(self, name: str, branch_id: BranchId, files: Files) -> BranchRecord:
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

    def _ranges(self, refs: Iterable[TreeRef], files: Files) -> list[RangeInfo]:
        trees = TreeStore(self._stores.trees.blobs, CACHE_MAX_BYTES)
        found = TreeFiles(trees)
        names: list[str] = []
        for ref in refs:
            if ref != EMPTY.ref:
                names.append(f"{METARANGES_FOLDER}/{ref}.parquet")
                try:
                    found.add(trees.tree(ref))
                except (ObjectMissing, Corrupted) as error:
                    raise Corrupted(
                        f"{error.what} Without it, it cannot be told what else is needed.",
                        safe="Nothing was deleted.",
                        next="Run `strandline fsck`; restore the file, or delete the branch or tag that needs it.",
                    ) from error
        files.mark(pa.array([*names, *found.addresses], pa.string()))
        return list(found.ranges.values())

    def _judge(self, files: Files, owners: KnownTransactions, history: _History) -> _Findings:
        free = ~files.is_referred
        own = are_own(files.keys)
        for record in promises.condemned(self._stores):  # the lists of runs that have not ended
            own[files.below(record.folder, prefix_end(record.folder))] = False
        old = files.times < self._before
        goes = free & own & old
        young = free & own & ~old
        why = np.full(len(files), _ORPHAN, np.int8)
        dead = rejected = 0
        finished: list[TransactionRecord] = []
        swept: list[TransactionRecord] = []
        forgotten: list[TransactionRecord] = []
        ended: list[TransactionRecord] = []
        until = self._now - round(RECORDS_KEPT_DAYS * DAY_US)
        for owner in owners.all():
            places = owner.places(files)
            state = owner.state
            if state in ("open", "rejected-pending"):
                for place in places:
                    goes[place] = young[place] = False
            elif state == "rejected-acknowledged":
                for place in places:
                    rejected += int((free[place] & own[place]).sum())
                    goes[place] = free[place] & own[place]
                    why[place] = _REJECTED
                    young[place] = False
                if owner.record is not None:
                    if owner.record.swept_at is None:
                        swept.append(owner.record)
                    elif owner.record.swept_at < self._before:
                        finished.append(owner.record)
            elif state == "committed" and owner.record is not None:
                listed = self._deadlist(owner.record, files)
                goes[listed[free[listed] & own[listed]]] = True
                why[listed] = _DEAD
                young[listed] = False
                dead += int(free[listed].sum())
                if owner.record.state == "committed":  # else somebody has yet to write that down
                    finished.append(owner.record)
            elif state == "collected" and owner.record is not None:
                if owner.record.seen_ended_at is None:
                    ended.append(owner.record)
                elif owner.record.seen_ended_at < until:
                    forgotten.append(owner.record)
        at, linked = self._without_links(files, np.flatnonzero(goes))
        half_written = self._stores.trees.blobs.own.half_written(self._before)
        keys = files.keys.take(pa.array(at)).cast(pa.string())
        plan = GarbagePlan(
            files=len(at),
            bytes=int(files.sizes[at].sum()),
            orphans=len(at) - dead - rejected,
            dead=dead,
            rejected=rejected,
            young=int(young.sum()),
            young_bytes=int(files.sizes[young].sum()),
            unknown=int((free & ~own).sum()),
            expiring=len(history.expiring),
            expired=len(history.gone),
            kept=len(history.kept),
            total_files=len(files),
            examples=tuple(keys.slice(0, 10).to_pylist()),
            linked=linked,
            half_written=len(half_written),
            places=_places(keys, files.sizes[at], why[at]),
        )
        return _Findings(plan, keys, history, finished, swept, ended, forgotten)

    def _without_links(self, files: Files, at: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
        """Leave out what lies behind a link to another place; how many those are."""
        keys: list[str] = files.keys.take(pa.array(at)).to_pylist()
        away = self._stores.trees.blobs.own.through_links(keys)
        if not away:
            return at, 0
        return at[np.array([key not in away for key in keys], np.bool_)], len(away)

    def _deadlist(self, record: TransactionRecord, files: Files) -> npt.NDArray[np.int64]:
        """Where the files stand that a committed transaction wrote and did not publish."""
        folder = transaction_folder(record.branch_id, record.id)
        keys: list[str] = []
        place = files.below(folder, prefix_end(folder))
        for key in files.keys.slice(place.start, place.stop - place.start).to_pylist():
            if key[len(folder) :].startswith("deadlist-"):
                try:
                    keys += decode_deadlist(self._stores.trees.blobs.get(key), key)
                except (BlobNotFound, Corrupted):
                    continue  # what it named is an orphan, and goes when it is old enough
        prefix = transaction_prefix(record.branch_id, record.id)
        own = sorted(key for key in keys if key.startswith(prefix))  # never anybody else's
        positions, found = search(files.keys, pa.array(own, pa.large_string()))
        return positions[found]

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
            found = None if found is None else promises.decide(stores, *found)
            if found is None:
                return 0  # somebody else has ended it
            keys = promises.condemned_keys(stores, found[1])
        except BlobNotFound:
            if (left := promises.find_condemned(stores, run)) is not None:
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


_ORPHAN, _DEAD, _REJECTED = range(3)
_WHY = ("nothing refers to it", "left by a committed transaction", "of a rejected transaction")


def _places(keys: pa.StringArray, sizes: npt.NDArray[np.int64], why: npt.NDArray[np.int8]) -> tuple[GarbagePlace, ...]:
    """What goes by prefix and reason, the most bytes first."""
    counts: Counter[tuple[str, int]] = Counter()
    volumes: Counter[tuple[str, int]] = Counter()
    for key, size, reason in zip(keys.to_pylist(), sizes.tolist(), why.tolist(), strict=True):
        place = place_of(key), reason
        counts[place] += 1
        volumes[place] += size
    return tuple(
        GarbagePlace(prefix, _WHY[reason], counts[prefix, reason], size)
        for (prefix, reason), size in volumes.most_common(MAX_PLACES)
    )
