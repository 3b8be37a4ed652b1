"""Writes of one branch together: the one crossing between the event loop and the staging of the core.

Of each branch at most one batch is under way. What arrives meanwhile is the next batch, so a lone write waits for
nothing, and of 32 clients the writes share a transaction. Nothing here decides what may be written: `stage_each` does,
against the very record that it writes under.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy

from strandline.errors import NotAllowed, RangeLocked, StrandlineError
from strandline.kv.store import WouldWait
from strandline.operations import warning
from strandline.repository.branch import Branch
from strandline.server.pool import Pool
from strandline.server.refusals import Busy
from strandline.tree.rows import Entry

LANE_MAX_WRITES = 4_096
LANE_MAX_BYTES = 8 << 20

Outcome = Callable[[BaseException | None], None]


class Write:
    """A write on its way.

    Attributes:
        holds: whether what its caller may do is surely so still; asked when its batch is formed.
        again: what to do with the write if that is not known: it is not staged with this batch.
        done: gets None when the write is acknowledged, else the error.
    """

    __slots__ = ("again", "done", "entry", "holds", "path", "size_bytes")

    def __init__(
        self, path: str, entry: Entry, holds: Callable[[], bool], again: Callable[[], None], done: Outcome
    ) -> None:
        self.path = path
        self.entry = entry
        self.holds = holds
        self.again = again
        self.done = done
        self.size_bytes = len(path) + len(entry.physical_address) + len(entry.user_metadata or "") + 200


class _Lane:
    __slots__ = ("branch", "is_under_way", "size_bytes", "waiting")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.waiting: list[Write] = []
        self.size_bytes = 0
        self.is_under_way = False


class Lanes:
    """The lanes of a worker. Used by its event loop only.

    Args:
        at_once: makes writes of the calling thread raise `WouldWait` instead of waiting; None if they always wait.
    """

    def __init__(self, pool: Pool, at_once: Callable[[], AbstractContextManager[None]] | None) -> None:
        self._pool = pool
        self._at_once = at_once
        self._lanes: dict[tuple[str, str, bool], _Lane] = {}

    def stage(self, branch: Branch, write: Write) -> None:
        """Stage an object whose bytes are there.

        Raises:
            Busy: the lane is full.
        """
        key = (branch.place, branch.branch_id, branch._is_forced)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(branch)
        if len(lane.waiting) >= LANE_MAX_WRITES or lane.size_bytes > LANE_MAX_BYTES:
            raise Busy(f"Too many writes to branch {branch.name!r} wait.")
        lane.waiting.append(write)
        lane.size_bytes += write.size_bytes
        if not lane.is_under_way:
            lane.is_under_way = True
            asyncio.get_running_loop().call_soon(self._next, key, lane)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._lanes

    def _next(self, key: tuple[str, str, bool], lane: _Lane) -> None:
        batch, lane.waiting, lane.size_bytes = lane.waiting, [], 0
        if not batch:
            del self._lanes[key]
            return
        permitted: list[Write] = []
        for write in batch:
            if write.holds():
                permitted.append(write)
            else:
                _call(write.again)
        if not permitted:
            self._deliver(key, lane, [], [])
            return
        if self._at_once is not None:
            try:
                with self._at_once():
                    outcomes = stage_together(lane.branch, permitted)
            except WouldWait:
                pass  # somebody else writes to the file: this thread serves others meanwhile
            except Exception as error:
                self._deliver(key, lane, permitted, [error] * len(permitted))
                return
            else:
                self._deliver(key, lane, permitted, outcomes)
                return

        def done(outcomes: list[BaseException | None] | None, error: BaseException | None) -> None:
            self._deliver(key, lane, permitted, outcomes or [error] * len(permitted))

        try:
            self._pool.run(lambda: stage_together(lane.branch, permitted), done)
        except Busy as error:
            self._deliver(key, lane, permitted, [error] * len(permitted))

    def _deliver(
        self, key: tuple[str, str, bool], lane: _Lane, batch: list[Write], outcomes: list[BaseException | None]
    ) -> None:
        for write, outcome in zip(batch, outcomes, strict=True):
            _call(lambda write=write, outcome=outcome: write.done(outcome))  # type: ignore[misc]
        if lane.waiting:
            asyncio.get_running_loop().call_soon(self._next, key, lane)
        else:
            del self._lanes[key]


def _call(function: Callable[[], None]) -> None:
    """Tell a caller something; a fault of one must not keep the others from hearing."""
    try:
        function()
    except Exception as error:
        warning("a write could not be answered: %r", error)


def stage_together(branch: Branch, batch: list[Write]) -> list[BaseException | None]:
    """Stage a batch; what became of each write, in their order.

    Invariant: a write is acknowledged only after the call that staged it returned. Of several to one path the last one
    is staged and all are acknowledged: they were concurrent, so any order of them is right. A batch that a rule refuses
    is judged write by write, so that each gets its own answer; of every other error all of it gets to know.
    """
    newest = {write.path: write.entry for write in batch}
    try:
        branch.stage_each(list(newest.items()))
    except (NotAllowed, RangeLocked) as error:
        if len(newest) == 1:
            return [error] * len(batch)
        found = {path: _stage_one(branch, path, entry) for path, entry in newest.items()}
        return [copy(found[write.path]) for write in batch]
    except StrandlineError as error:
        return [copy(error) for _ in batch]
    return [None] * len(batch)


def _stage_one(branch: Branch, path: str, entry: Entry) -> BaseException | None:
    try:
        branch.stage(path, entry)
    except StrandlineError as error:
        return error
    return None
