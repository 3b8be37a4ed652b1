"""The job that copies ranges into a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from strandline.arguments import checked
from strandline.branch.locking import OnDirty
from strandline.branch.rules.ranges import as_ranges
from strandline.errors import (
    UsageError,
)
from strandline.ids import CommitId
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.jobs.range_job import RangeJob, RangeResult, check_job, objects_of
from strandline.repository.locks.locks import Ranges
from strandline.repository.refs.exporting import local_only
from strandline.repository.refs.ref import Ref, as_ref
from strandline.tree.rows import Entry

EXPORT_MARK = ".strandline-export"


@checked()
class Exporting(RangeJob):
    """The job that exports ranges."""

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
        """Copy ranges into a folder of plain files, as they are at one instant. Nobody can change them while it runs.

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
            found = objects_of(at, ranges)
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


def _place(root: Path, path: str) -> Path:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(f"{path!r} cannot be a file: it has empty, '.' or '..' parts.", next="Export another range.")
    return root / path
