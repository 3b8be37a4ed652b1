"""The state of one shard as one process knows it, and the one loop that changes it.

A command is a pure transition. Those that threads ask for at the same time are decided together: one of them, the
leader, runs them one after the other and writes what comes out as one record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

from strandline.blob.store import BlobNotFound, BlobStore
from strandline.clock import Clock, Event, Microseconds, backoff_s
from strandline.envelope import decode, encode
from strandline.errors import (
    Contention,
    Corrupted,
    FormatError,
    OutcomeUnknown,
    ShardNotFound,
    StoreUnavailable,
    StrandlineError,
)
from strandline.forks import survives_forks
from strandline.ids import new_id
from strandline.operations import debug
from strandline.shards.deciding.commands import Route, Routed, decided
from strandline.shards.deciding.recent import Recent
from strandline.shards.log.consensus import Consensus, Versioned
from strandline.shards.state.diff import Diff, apply, difference
from strandline.shards.state.state import ShardId, State
from strandline.shards.state.transitions import INLINE_MAX_BYTES, INLINE_TOTAL_BYTES, Step, sealed

DEFAULT_TIMEOUT_S = 60.0
"""How long a call tries before it gives up."""
MAX_COMMANDS_TOGETHER = 64

Outcome = TypeVar("Outcome")
Command = Callable[[State, Microseconds], Step[Outcome]]


@dataclass(slots=True, eq=False)
class _Request(Generic[Outcome]):
    """A command on its way."""

    command: Command[Outcome]
    until_us: Microseconds
    timeout_s: float
    wake: Event
    is_done: bool = False
    leads: bool = False
    step: Step[Outcome] | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Place:
    """Where a shard is.

    Attributes:
        folder: of its blobs, without a trailing slash.
        host: the name on the states that this process makes.
        inline_max_bytes: parts that are smaller lie in the state; 0 for none.
        inline_total_bytes: how many bytes of parts may lie in the state (exclusive).
    """

    shard: ShardId
    consensus: Consensus
    blobs: BlobStore
    folder: str
    clock: Clock
    host: str
    inline_max_bytes: int = INLINE_MAX_BYTES
    inline_total_bytes: int = INLINE_TOTAL_BYTES

    def blob_key(self, key: str) -> str:
        return f"{self.folder}/{key}"


class Machine:
    """One shard in one process; shared by all its handles. Safe to share between threads.

    Attributes:
        changed: called after each state that this process made, by the thread that made it; must not fail or wait.
        route: where commands that may travel are decided; None for here.
        recent: keeps the newest records, for others; None for none.
    """

    def __init__(self, place: Place, changed: Callable[[State], None] = lambda state: None) -> None:
        self.place = place
        self.changed = changed
        self.route: Route | None = None
        self._state: State | None = None
        self.recent: Recent | None = None
        self.changed_at_us: Microseconds = 0
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[_Request[Any]] = deque()
        self._has_leader = False
        self._waiting: set[Event] = set()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state as last known here: it was right once, and may be old."""
        return self._state if self._state is not None else self.refreshed()

    def refreshed(self) -> State:
        """The state in a read that begins after the call.

        Raises:
            ShardNotFound: it was never made.
        """
        found = self._read(self._state)
        if found is None:
            raise ShardNotFound(
                f"There is no shard {self.place.shard!r}.", next="`strandline shard list REPOSITORY` shows the shards."
            )
        return self._learn(found)

    def find(self) -> State | None:
        """Like `refreshed`; None if the shard does not exist."""
        found = self._read(self._state)
        return None if found is None else self._learn(found)

    def _read(self, known: State | None) -> State | None:
        """The newest state: from what is known and the records since, or from a rollup if those are truncated."""
        consensus, key = self.place.consensus, self.place.shard
        state = known
        while True:
            if state is None:
                state = self._loaded()
                if state is None:
                    return None
            records = consensus.scan(key, state.seqno + 1)
            if not records:
                return state
            if records[0].seqno != state.seqno + 1:
                state = None  # it was asleep: the records that it needs are gone
                continue
            for record in records:
                state = apply(state, self.decoded(record))
                if self.recent is not None:
                    self.recent.add(record)

    def hear(self, records: Sequence[Versioned]) -> None:
        """Take up what others say was decided, as a hint: lost, repeated, reordered and unreadable records change no
        answer."""
        state = self._state
        try:
            for record in sorted(records):
                if state is not None and record.seqno == state.seqno + 1:
                    state = apply(state, self.decoded(record))
        except FormatError as error:
            debug("shard %s: a record that was told cannot be read: %s", self.place.shard, error)
        if state is not None:
            self._learn(state)

    def _loaded(self) -> State | None:
        """The state of a rollup that the newest record names, or the first one."""
        while True:
            head = self.place.consensus.head(self.place.shard)
            if head is None:
                return None
            seqno, key = self.decoded(head).rollup
            if seqno == 0:
                records = self.place.consensus.scan(self.place.shard, 1, 1)
                if not records or records[0].seqno != 1:
                    continue  # truncated meanwhile, so a newer record names a rollup
                return apply(None, self.decoded(records[0]))
            try:
                return self.rollup(key)
            except BlobNotFound:
                newer = self.place.consensus.head(self.place.shard)
                if newer is not None and newer.seqno == head.seqno:
                    raise Corrupted(
                        f"The rollup {key!r} of shard {self.place.shard!r} is missing.",
                        next="Restore the object store from a backup.",
                    ) from None

    def rollup(self, key: str) -> State:
        """The state in a rollup; raises `BlobNotFound`."""
        raw = self.place.blobs.get(self.place.blob_key(key))
        state: State = decode(State, raw, f"rollup {key!r}")
        return state

    def decoded(self, record: Versioned) -> Diff:
        diff: Diff = decode(Diff, record.data, f"change {record.seqno} of shard {self.place.shard!r}")
        return diff

    def _learn(self, state: State) -> State:
        """Remember a state unless a newer one is known; wakes the waiters for news."""
        with self._mutex:
            if self._state is not None and self._state.seqno >= state.seqno:
                return self._state
            self._state = state
            self.changed_at_us = self.place.clock.now_us()
            waiting, self._waiting = self._waiting, set()
        for event in waiting:
            event.set()
        return state

    def wait_for_news(self, after: int, timeout_s: float) -> None:
        """Wait until this process knows a state beyond the sequence number `after`, but not longer."""
        event = self.place.clock.event()
        with self._mutex:
            if self._state is not None and self._state.seqno > after:
                return
            self._waiting.add(event)
        event.wait(timeout_s)
        with self._mutex:
            self._waiting.discard(event)

    # --- changing -----------------------------------------------------------------------------------------------------

    def create(self, first: State) -> State:
        """Make the shard, unless somebody did; returns its state."""
        found = self.find()
        while found is None:
            made = sealed(None, first, self.place.clock.now_us(), self.place.host)
            try:
                if self.place.consensus.compare_and_set(
                    self.place.shard, made.seqno, encode(difference(None, made, new_id()))
                ):
                    return self._learn(made)
            except StoreUnavailable as error:
                if error.happened == "no":
                    raise
            found = self.find()
        return found

    def apply(
        self,
        command: Command[Outcome] | Routed,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        lost: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Decide a command that means the same when it is repeated; see `decide`.

        One that may travel is decided where `route` leads, or here if nobody can be asked there.

        Args:
            lost: called when an attempt may have taken effect, before the command is decided again.

        Raises:
            OutcomeUnknown: an attempt may have taken effect, and it cannot be told.
        """
        until_us = self.place.clock.now_us() + int(timeout_s * 1_000_000)
        unknown: OutcomeUnknown | None = None
        while True:
            left_s = max(0.0, (until_us - self.place.clock.now_us()) / 1_000_000)
            try:
                wait_s = left_s if unknown is not None else timeout_s
                if callable(command):
                    return self.decide(command, wait_s)
                found: Outcome = self.ask(command, wait_s)
                return found
            except OutcomeUnknown as error:
                if self.place.clock.now_us() >= until_us:
                    raise
                unknown = error
                lost()
            except StrandlineError as error:
                if unknown is None:
                    raise
                raise unknown from error  # that nothing happened is true of the last attempt only

    def ask(self, command: Routed, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Have a command decided where `route` leads, or here if nobody can be asked there.

        Raises:
            OutcomeUnknown: somebody was asked and did not answer; it may be decided yet.
        """
        answer = None
        if self.route is not None:
            answer = self.route.decide(self.place.shard, command, self.state.seqno, timeout_s)
        if answer is None:
            limit = self.place.inline_total_bytes
            return self.decide(lambda state, now_us: decided(command, state, now_us, limit), timeout_s)
        self.hear(answer.records)
        return answer.outcome

    def decide(self, command: Command[Outcome], timeout_s: float = DEFAULT_TIMEOUT_S) -> Outcome:
        """Decide a command on the newest state.

        An answer that changes nothing was given on a state that was read after the call began.

        Raises:
            Contention: others changed the shard again and again until the time was up. Nothing was changed.
            StoreUnavailable: a store failed until the time was up. If `happened` is "unknown", the command may have
                taken effect, or may yet; otherwise it surely did not.
        """
        clock = self.place.clock
        request = _Request(command, clock.now_us() + int(timeout_s * 1_000_000), timeout_s, clock.event())
        with self._mutex:
            self._queue.append(request)
            request.leads, self._has_leader = not self._has_leader, True
        if not request.leads:
            self._wait_for_turn(request)
        if request.leads:
            self._lead()
        if request.error is not None:
            raise request.error
        assert request.step is not None
        return request.step.outcome

    def _wait_for_turn(self, request: _Request[Any]) -> None:
        """Wait until a leader has decided the request, or until it is to lead.

        Raises:
            Contention: its time is over, and no leader has taken it.
        """
        try:
            if not request.wake.wait(request.timeout_s) and self._withdrawn(request):
                raise Contention(
                    f"Others of this process changed the shard {self.place.shard!r} for {request.timeout_s:g} s.",
                    next="Repeat the call, with a larger timeout_s.",
                )
            while not request.is_done and not request.leads:
                request.wake.wait(request.timeout_s)  # it is being decided
        except BaseException:
            if not self._withdrawn(request) and request.leads and not request.is_done:
                self._pass_on()  # nobody else would lead
            raise

    def _withdrawn(self, request: _Request[Any]) -> bool:
        """Take a request off the queue, if no leader has it."""
        with self._mutex:
            if request.leads or request not in self._queue:
                return False
            self._queue.remove(request)
            return True

    def _pass_on(self) -> None:
        """Let the next request lead, if there is one."""
        with self._mutex:
            while self._queue and self._queue[0].leads:
                self._queue.popleft()  # the one that was to lead is interrupted
            self._has_leader = bool(self._queue)
            if self._has_leader:
                self._queue[0].leads = True
                self._queue[0].wake.set()

    def _lead(self) -> None:
        with self._mutex:
            taken = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_COMMANDS_TOGETHER))]
        try:
            self._decide(taken)
        except BaseException as error:
            for request in taken:
                request.error = _copied(error)
            raise
        finally:
            self._pass_on()
            for request in taken:
                request.is_done = True
                if not request.leads:
                    request.wake.set()

    def _decide(self, requests: list[_Request[Any]]) -> None:
        """Run commands on the newest state and write what comes out, again and again until that is the next record.

        Invariant: the record `seqno` is written only as the next one after the state that the commands were run on, so
        they were run on the state that was the newest until then.
        """
        is_fresh, attempt = False, 0
        last: StrandlineError | None = None
        while True:
            now_us = self.place.clock.now_us()
            requests = [request for request in requests if not self._is_over(request, now_us, attempt, last)]
            if not requests:
                return
            try:
                state = self.state if attempt == 0 else self.refreshed()
                is_fresh = is_fresh or attempt > 0
                after = self._run(state, requests, now_us)
                if after is state:
                    if is_fresh:
                        return
                    attempt += 1
                    continue
                if self._write(state, after, now_us, max(request.until_us for request in requests)):
                    return
                last = None
            except StoreUnavailable as error:
                if error.happened == "unknown":
                    for request in requests:
                        request.error = _copied(error)
                    return
                last = error
            attempt += 1
            if attempt > 2:
                self.place.clock.sleep(backoff_s(attempt - 2))

    def _run(self, state: State, requests: list[_Request[Any]], now_us: Microseconds) -> State:
        after = state
        for request in requests:
            try:
                request.step = request.command(after, now_us)
                request.error = None
            except StrandlineError as error:
                request.error = error
                continue
            if request.step.state is not None:
                after = request.step.state
        return after

    def _is_over(
        self, request: _Request[Any], now_us: Microseconds, attempt: int, last: StrandlineError | None
    ) -> bool:
        if attempt == 0 or now_us <= request.until_us:
            return False
        request.error = last or Contention(
            f"Others changed the shard {self.place.shard!r} again and again for {request.timeout_s:g} s.",
            next="Repeat the call, with a larger timeout_s; or let fewer processes write to this shard.",
        )
        return True

    def _write(self, before: State, after: State, now_us: Microseconds, until_us: Microseconds) -> bool:
        """Append the record that leads to a state; whether it is the newest now.

        Raises:
            OutcomeUnknown: the reply was lost, and the records that could tell are truncated, or cannot be read in
                time.
        """
        made = sealed(before, after, now_us, self.place.host)
        id = new_id()
        data = encode(difference(before, made, id))
        try:
            written = self.place.consensus.compare_and_set(self.place.shard, made.seqno, data)
            if not written and self.place.consensus.may_refuse_its_own:
                written = self._settled(made.seqno, id, data, until_us)
        except StoreUnavailable as error:
            if error.happened == "no":
                raise
            written = self._settled(made.seqno, id, data, until_us, error)
        if not written:
            debug("shard %s: somebody else made state %d", self.place.shard, made.seqno)
            return False
        if self.recent is not None:
            self.recent.add(Versioned(made.seqno, data))
        self._learn(made)
        self.changed(made)
        return True

    def _settled(
        self, seqno: int, id: str, data: bytes, until_us: Microseconds, first: StoreUnavailable | None = None
    ) -> bool:
        """Find out what became of a record whose reply was lost: whether it is in the log.

        Writing the very same record again is safe: its number is given only once.
        """
        for attempt in count():
            if attempt >= SETTLE_ATTEMPTS and self.place.clock.now_us() >= until_us:
                break
            try:
                known = self._is_mine(seqno, id)
                if known is not None:
                    return known
                if self.place.consensus.compare_and_set(self.place.shard, seqno, data):
                    return True
            except _Truncated:
                break
            except StoreUnavailable:
                self.place.clock.sleep(backoff_s(attempt + 3))
        raise OutcomeUnknown(
            f"The reply to a change of shard {self.place.shard!r} was lost: it cannot be told whether it took effect.",
            next="Repeat the call with the same token: it is not done twice.",
        ) from first

    def _is_mine(self, seqno: int, id: str) -> bool | None:
        """Whether a record has the id; None if there is no such record yet."""
        found = self.place.consensus.scan(self.place.shard, seqno, 1)
        if not found:
            return None
        if found[0].seqno != seqno:
            raise _Truncated
        return self.decoded(found[0]).id == id


SETTLE_ATTEMPTS = 6
"""How often a change with a lost reply is looked for at least, even if the time of the call is over."""


def _copied(error: BaseException) -> BaseException:
    """The error of a leader for one of those that it led."""
    if isinstance(error, StrandlineError):
        return copy(error)
    return OutcomeUnknown("The thread that made this change for others was interrupted.", next="Repeat the call.")


class _Truncated(Exception):
    """The record that was asked for is not in the log any more."""
