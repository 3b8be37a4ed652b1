"""`branch.range_jobs`: loading, restoring, moving and exporting a range while the rest of the branch is served.

Each job holds a lock for as long as it lasts, and its changes land in the swap that ends it. It has a name: the same
again does nothing, and a run that died is gone on with by the next one, from the checkpoints that it has left.
"""

from __future__ import annotations

from strandline.repository.jobs.exporting import Exporting
from strandline.repository.jobs.loading import Loading
from strandline.repository.jobs.moving import Moving


class RangeJobs(Loading, Moving, Exporting):
    """Jobs on ranges of a branch."""
