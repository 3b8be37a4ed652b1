"""`branch.range_jobs`: loading, restoring, moving and exporting a range while the rest of the branch is served.

Each job holds a lock for as long as it lasts, and its changes land in the swap that ends it. It has a name: the same
again does nothing, and a run that died is gone on with by the next one, from the checkpoints that it has left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from strandline.arguments import checked
from strandline.blob import open_store
from strandline.branch import transactions
from strandline.branch.locking import OnDirty
from strandline.branch.rules.ranges import Range, as_ranges, told
from strandline.engines import engine
from strandline.errors import (
    Conflict,
    Corrupted,
    InvalidName,
    NotFound,
    StrandlineError,
    TransactionClosed,
    UsageError,
)
from strandline.ids import CommitId, check_path
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.commits.importing import split_source
from strandline.repository.core.of_branch import OfBranch
from strandline.repository.core.promises import announce_links, pinned
from strandline.repository.core.repository_core import RepositoryCore
from strandline.repository.jobs.checkpoints import SOURCE, Checkpoints
from strandline.repository.jobs.copying import CHECKED, Copied, Copier, CopyTask, copy_here
from strandline.repository.locks.held import LockedTransaction, LockOptions
from strandline.repository.locks.locks import Ranges
from strandline.repository.objects.writable import Writable
from strandline.repository.refs.exporting import local_only
from strandline.repository.refs.listing import objects_in
from strandline.repository.refs.ref import Ref, as_ref
from strandline.repository.transactions.operators import Transactions
from strandline.tree.rows import TOMBSTONE, Entry, encode_staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_OBJECTS = 32
"""How many objects are copied between two checkpoints: a run that dies has at most so many to copy again."""
SPARK_OBJECTS = 4_096
"""The same where Spark copies: each batch is a job."""
_JOB = re.compile(r"[A-Za-z0-9 ._:@/+-]{1,80}", re.ASCII)
EXPORT_MARK = ".strandline-export"


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


@checked()
class RangeJobs(OfBranch):
    """Jobs on ranges of a branch."""

    @logged("bulk load")
    def load(
        self,
        what: Ranges,
        source: str | Path,
        *,
        job: str,
        owner: str,
        destination: str = "",
        lock: str = "",
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        message: str | None = None,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> RangeResult:
        """Replace the content of ranges by files: copy them, publish, and let go, in one swap.

        Args:
            source: a folder, or a URL such as s3://bucket/prefix.
            job: names the work. Once it is done, the same job does nothing; one that died is gone on with.
            destination: prefix to put before each file's path; the results must lie in the ranges.
            lock: the id of a lock that is held there already: the job's takes its place, and ends with the job.
            spark: a session whose executors copy the bytes.

        Raises:
            UsageError: a file would lie outside the ranges.
            LockInvalid, LockRejected, LockTimeout, UncommittedChanges: the ranges cannot be locked.
        """
        ranges = as_ranges(what)
        if (done := self._done(job, ranges)) is not None:
            return done
        root, prefix = split_source(str(source))
        store = open_store(root)
        tasks = []
        listed = blake3()
        for info in store.list(prefix):
            path = destination + info.key[len(prefix) :]
            check_path(path)
            _refuse_outside(ranges, path)
            listed.update(f"{path}\0{info.size}\0{info.etag}\0{info.modified_at_us}\n".encode())
            tasks.append(CopyTask(path, store.url, info.key, "", info.size, ""))
        if not tasks:
            raise NotFound(f"There is no file at {str(source)!r}.", next="Check the folder or the URL.")
        text = message if message is not None else f"Load {told(ranges)} from {source}"
        held = self._held(ranges, job, owner, timeout_s, on_dirty, text, listed.hexdigest())
        held._instead_of = (lock,) if lock else ()
        return self._replace(held, job, ranges, tasks, [], progress, spark)

    @logged("restore range")
    def restore(
        self,
        what: Ranges,
        source: Ref | str,
        *,
        job: str,
        owner: str,
        lock: str = "",
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "discard",
        message: str | None = None,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> RangeResult:
        """Make ranges what they are in another ref: of this repository without copying bytes, or of any other one.

        What is restored takes effect at one instant; until then readers see what was there, corrupt as it may be
        (`branch.lock(mode="quarantine")` keeps them away from it). Arguments are those of `load`.
        """
        ranges = as_ranges(what)
        if not isinstance(source, Ref | str):
            raise UsageError(f"{source!r} is not a ref.", next="Give a ref expression such as 'v1.2', or a Ref.")
        ref = as_ref(self._core, source) if isinstance(source, str) else source
        text = message if message is not None else f"Restore {told(ranges)} from {ref.expression}"
        commit = ref.commit_id
        at = ref._other(commit)
        with pinned(ref._core.stores, [commit], f"restore to {self.place}"):
            found = _objects(at, ranges)
            held = self._held(ranges, job, owner, timeout_s, on_dirty, text, _digest(found))
            held._instead_of = (lock,) if lock else ()
            if ref._core.stores.repository_id == self._core.stores.repository_id:
                return self._replace(held, job, ranges, [], found, progress, None)
            return self._replace(held, job, ranges, _tasks(ref._core, found), [], progress, spark)

    @logged("move range")
    def move(
        self,
        what: Ranges,
        target: Writable,
        *,
        job: str,
        owner: str,
        delete_source: bool = True,
        replace: bool = False,
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> RangeResult:
        """Move ranges to a branch of another repository or lake; both go on being served.

        A shared lock keeps the source as it is while it is copied and compared; readers do not notice. Then the target
        appears in one swap, and in another the source is deleted, under a lock that took the place of the shared one
        without a gap. A run that dies between the two leaves both; the next run of the same job ends it.

        Args:
            replace: delete what the target holds in the ranges; without it, they have to be empty there.

        Raises:
            NotFound: there is nothing to move.
            Conflict: the target holds something, or the source was changed since an earlier run copied it.
            Corrupted: bytes are not what they should be. The target is as it was.
        """
        ranges = as_ranges(what)
        if not isinstance(target, Writable):
            raise UsageError(
                f"{target!r} is not a branch of another repository.", next="Give other_repository.branch(name)."
            )
        if target._core.stores.repository_id == self._core.stores.repository_id:
            raise UsageError(
                "Source and target are of one repository, where objects are renamed or merged without copying bytes.",
                next="Use target.range_jobs.restore(what, source), then delete at the source.",
            )
        there = RangeJobs(target._core, target._at)
        self._end_dead(f"{job} at the source")
        with self._shared(ranges, job, owner, timeout_s, on_dirty) as shared:
            text = f"Move {told(ranges)} from {self.place}"
            found = _objects(shared._beneath, ranges)
            known = there._done(job, ranges)
            if known is None and not found:
                raise NotFound(f"There is nothing in {told(ranges)} on {self.place}.", next="Check the range.")
            if known is None and not replace and (present := next(_each(target, ranges), None)) is not None:
                raise Conflict(
                    f"{told(ranges)} on {target.place} is not empty: it holds {present[0]!r}.",
                    paths=[present[0]],
                    next="Move to a branch that has nothing there, or replace it: replace=True (--replace).",
                )
            held = there._held(ranges, job, owner, timeout_s, on_dirty, text, _digest(found))
            done = there._replace(held, job, ranges, _tasks(self._core, found), [], progress, spark)
            if done.is_repeat:
                if not found:
                    return done  # an earlier run has come to its end
                if target._other(done.commit).get_commit().metadata.get(SOURCE) != _digest(found):
                    raise Conflict(
                        f"{told(ranges)} on {self.place} was changed since job {job!r} copied it.",
                        safe="Nothing was deleted at the source; the target holds what was copied.",
                        next="Move it again as another job.",
                    )
            _compare(found, _objects(target._other(done.commit), ranges), target.place)
            if delete_source:
                name = f"{job} at the source"
                gone = self._held(ranges, name, owner, timeout_s, "fail", f"Moved to {target.place}", "")
                gone._instead_of = (shared.lock_id,)
                self._replace(gone, name, ranges, [], [], progress, None)
        return done

    @logged("export range")
    def export(
        self,
        what: Ranges,
        folder: str | Path,
        *,
        job: str,
        owner: str,
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        progress: Progress = no_progress,
    ) -> RangeResult:
        """Copy ranges into a folder of plain files, as they are at one instant, with nobody changing them meanwhile.

        Raises:
            UsageError: the folder holds something else than an export by this job.
        """
        ranges = as_ranges(what)
        check_job(job)
        started = time.monotonic()
        root = local_only(folder, "A range export, which another process may go on with,")
        earlier = ExportMark.read(root)
        if earlier is None and root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UsageError(f"{str(root)!r} exists and is not an export.", next="Export into a new folder.")
        if earlier is not None and earlier.job != job:
            raise UsageError(
                f"{str(root)!r} is an export by job {earlier.job!r}.", next="Export into a new folder, or as that job."
            )
        if earlier is not None and earlier.is_done:
            return RangeResult(job=job, commit=earlier.commit, objects=earlier.objects, is_repeat=True)
        with self._shared(ranges, job, owner, timeout_s, on_dirty) as shared:
            at = as_ref(self._core, shared.commit_id)
            found = _objects(at, ranges)
            mark = ExportMark(job, at.commit_id, len(found))
            try:
                root.mkdir(parents=True, exist_ok=True)
                mark.write(root)
                copied, size = _copy_out(at, found, root, earlier == mark, progress)
                msgspec.structs.replace(mark, is_done=True).write(root)
            except OSError as error:
                raise UsageError(
                    f"The folder {str(root)!r} cannot be written: {error.strerror}.",
                    safe="The lake is as it was; the folder holds a part.",
                    next="Make room, then repeat the job.",
                ) from error
        took = time.monotonic() - started
        kept = len(found) - copied
        return RangeResult(
            job=job, commit=at.commit_id, objects=len(found), copied=copied, bytes=size, kept=kept, seconds=took
        )

    # --- what they share ----------------------------------------------------------------------------------------------

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
        done = transactions.published(self._at, writer, _token(job, ranges))
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
            token=_token(job, ranges),
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
        gone = {path.encode(): tombstone for path, _ in _objects(held._beneath, ranges) if path not in wanted}
        held._add(gone)
        return len(gone)


def _token(job: str, ranges: Sequence[Range]) -> str:
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


class ExportMark(msgspec.Struct, frozen=True):
    """What a folder of an export says of itself, in a file beside the exported ones.

    Attributes:
        commit: that its files are of, and `objects` how many of them there will be.
    """

    job: str
    commit: CommitId
    objects: int
    is_done: bool = False

    @staticmethod
    def read(root: Path) -> ExportMark | None:
        try:
            return msgspec.json.decode((root / EXPORT_MARK).read_bytes(), type=ExportMark)
        except (OSError, msgspec.MsgspecError):
            return None

    def write(self, root: Path) -> None:
        partial = root / f"{EXPORT_MARK}.part"
        partial.write_bytes(msgspec.json.encode(self))
        partial.replace(root / EXPORT_MARK)


def _each(ref: Ref, ranges: Sequence[Range]) -> Iterator[tuple[str, Entry]]:
    return (pair for one in ranges for pair in objects_in(ref, one))


def _objects(ref: Ref, ranges: Sequence[Range]) -> list[tuple[str, Entry]]:
    return list(_each(ref, ranges))


def _digest(found: Iterable[tuple[str, Entry]]) -> str:
    """What tells one content of ranges from another."""
    digest = blake3()
    for path, entry in found:
        told = (path, entry.size, entry.checksum, entry.content_type, entry.user_metadata)
        digest.update(msgspec.msgpack.encode(told))
    return digest.hexdigest()


def _copy_out(
    at: Ref, found: Sequence[tuple[str, Entry]], root: Path, goes_on: bool, progress: Progress
) -> tuple[int, int]:
    """Make a folder hold some objects and nothing else; returns how many were copied, and their bytes.

    Args:
        goes_on: an earlier run copied from the very same commit: files that are there are right, since they appear
            whole.
    """
    copied = size = 0
    for done, (path, entry) in enumerate(found):
        progress("exporting", done, len(found))
        place = _place(root, path)
        if goes_on and place.exists() and place.stat().st_size == entry.size:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        at.download(path, place)
        copied, size = copied + 1, size + entry.size
    wanted = {_place(root, path) for path, _ in found} | {root / EXPORT_MARK}
    for left in [one for one in root.rglob("*") if one.is_file() and one not in wanted]:
        left.unlink()  # of an earlier run, and not there any more
    return copied, size


def _entry(task: CopyTask, copied: Copied, now: int) -> Entry:
    return Entry(task.target_key, copied.size, copied.checksum, now, task.content_type, task.user_metadata)


def _tasks(core: RepositoryCore, found: Iterable[tuple[str, Entry]]) -> list[CopyTask]:
    tasks = []
    for path, entry in found:
        store, key = core.resolver.resolve(entry.physical_address)
        tasks.append(
            CopyTask(path, store.url, key, "", entry.size, entry.checksum, entry.content_type, entry.user_metadata)
        )
    return tasks


def _batches(tasks: Sequence[CopyTask], count: int) -> Iterator[Sequence[CopyTask]]:
    return (tasks[at : at + count] for at in range(0, len(tasks), count))


def _refuse_outside(ranges: Sequence[Range], path: str) -> None:
    if not any(one.has(path) for one in ranges):
        raise UsageError(
            f"{path!r} would lie outside {told(ranges)}, which is what is locked.",
            next="Name a range that has all files, or put them behind another destination.",
        )


def _compare(source: list[tuple[str, Entry]], target: list[tuple[str, Entry]], place: str) -> None:
    """Raise unless two listings have the same objects."""

    # what was imported by reference has checksums of another kind, and got one of its bytes when it was copied
    known = {path for path, entry in source if entry.checksum.startswith(CHECKED)}

    def identities(found: list[tuple[str, Entry]]) -> Mapping[str, tuple[object, ...]]:
        checked = {path: entry.checksum for path, entry in found if path in known}
        return {
            path: (entry.size, checked.get(path, ""), entry.content_type, entry.user_metadata) for path, entry in found
        }

    if identities(source) != identities(target):
        raise Corrupted(
            f"{len(target):,} objects on {place} are not the {len(source):,} that were copied.",
            safe="The source is as it was.",
            next="Look at what changed the target, then repeat the job under another name.",
        )


def _place(root: Path, path: str) -> Path:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(f"{path!r} cannot be a file: it has empty, '.' or '..' parts.", next="Export another range.")
    return root / path
