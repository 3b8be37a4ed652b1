"""What jobs on ranges share: their locks, what came of an earlier run, and the replacement of ranges in one swap."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from strandline.branch import transactions
from strandline.branch.locking import OnDirty
from strandline.branch.rules.ranges import Range, told
from strandline.core.of_branch import OfBranch
from strandline.core.promises import announce_links
from strandline.core.repository_core import RepositoryCore
from strandline.engines import engine
from strandline.errors import (
    InvalidName,
    StrandlineError,
    TransactionClosed,
)
from strandline.ids import CommitId
from strandline.progress import Progress
from strandline.repository.jobs.checkpoints import SOURCE, Checkpoints
from strandline.repository.jobs.copying import Copied, Copier, CopyTask, copy_here
from strandline.repository.locks.held import LockedTransaction, LockOptions
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.operators import Transactions
from strandline.results.listing import objects_in
from strandline.tree.rows import TOMBSTONE, Entry, encode_staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_OBJECTS = 32
"""How many objects are copied between two checkpoints: a run that dies copies at most this many again."""
SPARK_OBJECTS = 4_096
"""The same where Spark copies: each batch is a job."""
_JOB = re.compile(r"[A-Za-z0-9 ._:@/+-]{1,80}", re.ASCII)


class RangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did.

    Attributes:
        commit: that published it, or that was exported.
        objects: in the ranges afterwards, or in the folder.
        copied, bytes: whose bytes this run has copied.
        kept: that an earlier run had copied, or that were there already.
        deleted: paths that are not there any more.
        is_repeat: an earlier run had done it all.
    """

    job: str
    commit: CommitId
    objects: int = 0
    copied: int = 0
    bytes: int = 0
    kept: int = 0
    deleted: int = 0
    seconds: float = 0.0
    is_repeat: bool = False


class RangeJob(OfBranch):
    """Steps of the jobs on ranges of a branch."""

    @contextmanager
    def _shared(
        self, ranges: tuple[Range, ...], job: str, owner: str, timeout_s: float, on_dirty: OnDirty
    ) -> Iterator[LockedTransaction]:
        """A shared lock for the length of a block; the next run of the job ends that of one that died."""
        options = LockOptions(
            owner,
            "shared",
            timeout_s,
            on_dirty,
            message=f"Read {told(ranges)}",
            writer=f"range job {check_job(job)} reads",
        )
        held = self._lock(ranges, options)
        held.begin()
        try:
            yield held
        except BaseException:
            with suppress(StrandlineError):
                held.abort()
            raise
        held.abort()  # nothing is to be published: the lock ends

    def _end_dead(self, job: str) -> None:
        """Doom what an earlier run of a job has left open, and its lock with it; if it lives, it is fenced."""
        held = self._at.read().branch.writers.get(f"range job {check_job(job)}")
        if held is not None and held.is_open:
            with suppress(TransactionClosed):
                Transactions(self._core, self._at).abort(held.started)

    def _done(self, job: str, ranges: Sequence[Range]) -> RangeResult | None:
        """What came of a job that is done."""
        writer = f"range job {check_job(job)}"
        done = transactions.published(self._at, writer, token_of(job, ranges))
        return None if done is None else RangeResult(job=job, commit=done.commit, is_repeat=True)

    def _held(
        self,
        ranges: tuple[Range, ...],
        job: str,
        owner: str,
        timeout_s: float,
        on_dirty: OnDirty,
        message: str,
        source: str,
    ) -> LockedTransaction:
        options = LockOptions(
            owner,
            timeout_s=timeout_s,
            on_dirty=on_dirty,
            message=message,
            writer=f"range job {check_job(job)}",
            token=token_of(job, ranges),
            metadata={SOURCE: source},
        )
        return self._lock(ranges, options)

    def _lock(self, ranges: tuple[Range, ...], options: LockOptions) -> LockedTransaction:
        return LockedTransaction(
            self._core, self._at, ranges, options, CommitId("")
        )  # begins before anything is read through it

    def _replace(
        self,
        held: LockedTransaction,
        job: str,
        ranges: Sequence[Range],
        tasks: Sequence[CopyTask],
        links: Sequence[tuple[str, Entry]],
        progress: Progress,
        spark: SparkSession | None,
    ) -> RangeResult:
        """Make ranges hold copies of some objects and links to others, and nothing else."""
        started = time.monotonic()
        checkpoints = Checkpoints(held, held.metadata.get(SOURCE, ""), {task.path for task in tasks})
        with checkpoints.resumed_or_begun():
            if held.is_repeat:
                return RangeResult(job=job, commit=CommitId(held.result.commit), is_repeat=True)
            there = {path for path, _ in checkpoints.copied()}
            left = [task for task in tasks if task.path not in there]
            size = 0
            done = len(there)
            for some in _batches(left, CHECKPOINT_OBJECTS if spark is None else SPARK_OBJECTS):
                progress("copying", done, len(tasks))
                entries = list(_copy(held, some, spark))
                held._adopt(entries)
                checkpoints.write(entries)
                size += sum(entry.size for _, entry in entries)
                done += len(entries)
            announce_links(held._core.stores, [entry.physical_address for _, entry in links])
            held._adopt(links)
            gone = self._delete_others(held, ranges, {task.path for task in tasks} | {path for path, _ in links})
            progress("publishing", len(tasks), len(tasks))
        return RangeResult(
            job=job,
            commit=CommitId(held.result.commit),
            objects=len(tasks) + len(links),
            copied=len(left),
            bytes=size,
            kept=len(there) + len(links),
            deleted=gone,
            seconds=time.monotonic() - started,
        )

    def _delete_others(self, held: LockedTransaction, ranges: Sequence[Range], wanted: set[str]) -> int:
        tombstone = encode_staged(TOMBSTONE)
        gone = {path.encode(): tombstone for path, _ in objects_of(held._beneath, ranges) if path not in wanted}
        held._add(gone)
        return len(gone)


def token_of(job: str, ranges: Sequence[Range]) -> str:
    """A job is known by its name and by what it is about."""
    return f"{job} {blake3(msgspec.msgpack.encode(list(ranges))).hexdigest()[:32]}"


def check_job(job: str) -> str:
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise InvalidName(
            f"{job!r} is not the name of a job.",
            next="Use 1 to 80 letters, digits, spaces and . _ : @ / + -.",
        )
    return job


def _copy(
    held: LockedTransaction, tasks: Sequence[CopyTask], spark: SparkSession | None
) -> Iterator[tuple[str, Entry]]:
    copier: Copier = copy_here
    if spark is not None:
        copier = engine("spark").copier(spark)
    keyed = [msgspec.structs.replace(task, target_key=held._new_key(task.path)) for task in tasks]
    by_path = {task.path: task for task in keyed}
    now = held._core.stores.clock.now_us()
    for copied in copier(held._core.resolver.namespace, keyed):
        task = by_path[copied.path]
        yield copied.path, _entry(task, copied, now)


def each_of(ref: Ref, ranges: Sequence[Range]) -> Iterator[tuple[str, Entry]]:
    return (pair for one in ranges for pair in objects_in(ref, one))


def objects_of(ref: Ref, ranges: Sequence[Range]) -> list[tuple[str, Entry]]:
    return list(each_of(ref, ranges))


def digest(found: Iterable[tuple[str, Entry]]) -> str:
    """What tells one content of ranges from another."""
    hashed = blake3()
    for path, entry in found:
        told = (path, entry.size, entry.checksum, entry.content_type, entry.user_metadata)
        hashed.update(msgspec.msgpack.encode(told))
    return hashed.hexdigest()


def _entry(task: CopyTask, copied: Copied, now: int) -> Entry:
    return Entry(task.target_key, copied.size, copied.checksum, now, task.content_type, task.user_metadata)


def tasks_of(core: RepositoryCore, found: Iterable[tuple[str, Entry]]) -> list[CopyTask]:
    tasks = []
    for path, entry in found:
        store, key = core.resolver.resolve(entry.physical_address)
        tasks.append(
            CopyTask(path, store.url, key, "", entry.size, entry.checksum, entry.content_type, entry.user_metadata)
        )
    return tasks


def _batches(tasks: Sequence[CopyTask], count: int) -> Iterator[Sequence[CopyTask]]:
    return (tasks[at : at + count] for at in range(0, len(tasks), count))
