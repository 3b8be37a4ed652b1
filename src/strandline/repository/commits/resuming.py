"""What a job that works in slices has done already, for a run that goes on with it.

A worker writes the result of its slice to a file before it answers. A later run under the same name, over the same
content, has its workers list again, and takes the results of slices in which nothing has changed: their ranges are not
made again. Nothing refers to the ranges of a result that nobody has committed: so a run that takes them announces links
first (`promises`), and looks whether they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from blake3 import blake3

from strandline.blob import BlobNotFound, BlobStore
from strandline.core import promises
from strandline.core.physical import transaction_folder
from strandline.core.repository_core import RepositoryCore
from strandline.core.retention import DAY_US
from strandline.errors import ObjectMissing, StoreUnavailable
from strandline.ids import BranchId, new_id
from strandline.parallel import in_parallel
from strandline.tree.range_file import RangeInfo

RESUMABLE_DAYS = 1.0
"""How old a run may be that is gone on with."""
RESULTS = 1
"""Counts what results mean: those of another number are not taken."""
ID_CHARS = 20


class Cut(msgspec.Struct, frozen=True):
    """What a worker found in a slice, and made of it.

    Attributes:
        ranges: in order, all closed.
        rest: the rows behind the last of them, whose range is not at its end; None if there are none.
        objects: how many keys were listed.
        fields: the columns of new files of a table, as JSON, each with the path of one.
        listed: a digest of the listing.
        is_as_before: nothing was made, since the listing is the one of the result that the slice came with.
    """

    ranges: list[RangeInfo]
    rest: RangeInfo | None
    objects: int
    fields: dict[str, str] = {}
    listed: str = ""
    is_as_before: bool = False


class _Plan(msgspec.Struct, frozen=True):
    """How a run cuts a source.

    Attributes:
        run: names its results.
    """

    run: str
    cuts: list[str]


class Resumable:
    """A job of a branch under a name."""

    def __init__(self, core: RepositoryCore, branch_id: BranchId, job: str) -> None:
        self._core, self._job = core, job
        self._blobs: BlobStore = core.stores.trees.blobs
        self._folder = transaction_folder(branch_id, 0)
        self._plans: list[str] = []
        self._results: list[str] = []

    def plan(self, about: Sequence[object], cuts: Callable[[], list[str]]) -> tuple[list[str], list[str]]:
        """How a source is cut, and the keys of the results of its slices.

        Args:
            about: the source, and the content that it is laid over: another one makes another plan.
            cuts: cuts it, if no run of the job has.
        """
        key = self._key(msgspec.msgpack.encode((RESULTS, self._job, *about)))
        plan = self._held(key)
        if plan is None:
            plan = _Plan(new_id(), cuts())
            self._blobs.put(key, msgspec.msgpack.encode(plan))
        self._plans.append(key)
        keys = [self._key(f"{plan.run} {number}".encode()) for number in range(len(plan.cuts) + 1)]
        self._results += keys
        return plan.cuts, keys

    def _key(self, what: bytes) -> str:
        return f"{self._folder}slice-{blake3(what).hexdigest()[:ID_CHARS]}.msgpack"

    def _held(self, key: str) -> _Plan | None:
        """The plan of a run that was not long ago, by the clock of the object store."""
        clock = self._key(new_id().encode())
        try:
            made = self._blobs.head(key).modified_at_us
            self._blobs.put(clock, b"")
            if self._blobs.head(clock).modified_at_us - made > RESUMABLE_DAYS * DAY_US:
                return None
            return msgspec.msgpack.decode(self._blobs.get(key), type=_Plan)
        except (BlobNotFound, msgspec.MsgspecError):
            return None
        finally:
            self._blobs.delete_many([clock])

    def done(self, keys: Sequence[str]) -> dict[str, Cut]:
        """The results that there are, by their keys; all of what they refer to is there, and stays."""
        results = zip(keys, in_parallel(self._result, keys), strict=True)
        return {key: cut for key, cut in results if cut is not None}

    def _result(self, key: str) -> Cut | None:
        try:
            cut = msgspec.msgpack.decode(self._blobs.get(key), type=Cut)
            parts = [*cut.ranges, *([cut.rest] if cut.rest is not None else [])]
            addresses = [part.address for part in parts]
            promises.announce_links(self._core.stores, addresses)
        except (BlobNotFound, ObjectMissing, msgspec.MsgspecError):
            return None
        return cut if all(self._blobs.exists(address) for address in addresses) else None

    def forget(self) -> None:
        """The job is done: nobody has to go on with it."""
        with suppress(StoreUnavailable):  # the collector takes what is left
            self._blobs.delete_many([*self._plans, *self._results])
