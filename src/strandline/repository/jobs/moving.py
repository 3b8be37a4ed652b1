"""The job that moves ranges to another repository or lake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.arguments import checked
from strandline.branch.locking import OnDirty
from strandline.branch.rules.ranges import as_ranges, told
from strandline.errors import (
    Advice,
    Conflict,
    Corrupted,
    NotFound,
    UsageError,
)
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.jobs.checkpoints import SOURCE
from strandline.repository.jobs.copying import CHECKED
from strandline.repository.jobs.range_job import RangeJob, RangeResult, digest, each_of, objects_of, tasks_of
from strandline.repository.locks.locks import Ranges
from strandline.repository.objects.writable import Writable
from strandline.tree.rows import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@checked()
class Moving(RangeJob):
    """The job that moves ranges."""

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
                next=Advice(
                    "Use target.range_jobs.restore(what, source), then delete at the source.",
                    command="Use `strandline range restore`, then `strandline rm` at the source.",
                ),
            )
        there = Moving(target._core, target._at)
        self._end_dead(f"{job} at the source")
        with self._shared(ranges, job, owner, timeout_s, on_dirty) as shared:
            text = f"Move {told(ranges)} from {self.place}"
            found = objects_of(shared._beneath, ranges)
            known = there._done(job, ranges)
            if known is None and not found:
                raise NotFound(f"There is nothing in {told(ranges)} on {self.place}.", next="Check the range.")
            if known is None and not replace and (present := next(each_of(target, ranges), None)) is not None:
                raise Conflict(
                    f"{told(ranges)} on {target.place} is not empty: it holds {present[0]!r}.",
                    paths=[present[0]],
                    next=Advice(
                        "Move to a branch that has nothing there, or replace it: replace=True (--replace).",
                        command="Move to a branch that has nothing there, or add --replace.",
                    ),
                )
            held = there._held(ranges, job, owner, timeout_s, on_dirty, text, digest(found))
            done = there._replace(held, job, ranges, tasks_of(self._core, found), [], progress, spark)
            if done.is_repeat:
                if not found:
                    return done  # an earlier run has come to its end
                if target._other(done.commit).get_commit().metadata.get(SOURCE) != digest(found):
                    raise Conflict(
                        f"{told(ranges)} on {self.place} was changed since job {job!r} copied it.",
                        safe="Nothing was deleted at the source; the target holds what was copied.",
                        next="Move it again as another job.",
                    )
            _compare(found, objects_of(target._other(done.commit), ranges), target.place)
            if delete_source:
                name = f"{job} at the source"
                gone = self._held(ranges, name, owner, timeout_s, "fail", f"Moved to {target.place}", "")
                gone._instead_of = (shared.lock_id,)
                self._replace(gone, name, ranges, [], [], progress, None)
        return done


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
