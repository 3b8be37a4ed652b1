"""Jobs that replace ranges: by files, or by what another ref holds there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from strandline.arguments import checked
from strandline.blob import open_store
from strandline.branch.locking import OnDirty
from strandline.branch.rules.ranges import Range, as_ranges, told
from strandline.core.promises import pinned
from strandline.errors import (
    NotFound,
    UsageError,
)
from strandline.ids import check_path
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.commits.listing import split_source
from strandline.repository.jobs.copying import CopyTask
from strandline.repository.jobs.range_job import RangeJob, RangeResult, digest, objects_of, tasks_of
from strandline.repository.locks.locks import Ranges
from strandline.repository.refs.ref import Ref, as_ref

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@checked()
class Loading(RangeJob):
    """Jobs that replace ranges."""

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
            found = objects_of(at, ranges)
            held = self._held(ranges, job, owner, timeout_s, on_dirty, text, digest(found))
            held._instead_of = (lock,) if lock else ()
            if ref._core.stores.repository_id == self._core.stores.repository_id:
                return self._replace(held, job, ranges, [], found, progress, None)
            return self._replace(held, job, ranges, tasks_of(ref._core, found), [], progress, spark)


def _refuse_outside(ranges: Sequence[Range], path: str) -> None:
    if not any(one.has(path) for one in ranges):
        raise UsageError(
            f"{path!r} would lie outside {told(ranges)}, which is what is locked.",
            next="Name a range that has all files, or put them behind another destination.",
        )
