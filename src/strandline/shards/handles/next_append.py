"""Appends at whatever time comes next: decided here, or elsewhere in a session that tells what became of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from msgspec.structs import replace

from strandline.errors import (
    Contention,
    OutcomeUnknown,
    StrandlineError,
)
from strandline.ids import new_id
from strandline.shards.handles.open_shard import OpenShard
from strandline.shards.state.state import NEVER, State, WriterId
from strandline.shards.state.transitions import (
    AppendedAt,
    AppendNext,
    Step,
    TooMuchInline,
    UpperIs,
    WriterUnknown,
    append_next,
    register_writer,
    rename_writer,
)

SESSION_ATTEMPTS = 5


@dataclass(slots=True)
class _Session:
    """Appends at the next time that are decided elsewhere.

    Attributes:
        token: of its last append that was acknowledged, or the one that it was registered with.
    """

    id: WriterId
    token: str


class NextAppends:
    """Has appends at the next time decided, for one writer. Safe to share between threads."""

    def __init__(self, shard: OpenShard, lease_s: int) -> None:
        self._shard = shard
        self._machine = shard.machine
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def end(self) -> WriterId | None:
        """End the session; its id on record, if there was one."""
        with self._lock:
            session, self._session = self._session, None
        return None if session is None else session.id

    def decide(self, append: AppendNext, timeout_s: float) -> AppendedAt | UpperIs | TooMuchInline:
        """Have an append decided."""
        if append.epoch is not None:  # may be repeated, by anybody and at any time
            done: AppendedAt | UpperIs | TooMuchInline = self._machine.apply(append, timeout_s)
            return done
        if self._machine.route is None or self._lease_s == NEVER:
            return self._next_here(append, timeout_s)
        return self._next_routed(append, timeout_s)

    def _next_here(
        self, append: AppendNext, timeout_s: float, before: set[str | None] | None = None
    ) -> AppendedAt | UpperIs | TooMuchInline:
        """Decide an append in this process.

        Invariant: as in `_compare_and_append`. Which append of the writer was the last one before the last attempt is
        noted: as long as it still is, no attempt was done.

        Args:
            before: one of these was the writer's last append before an attempt elsewhere whose reply was lost.
        """
        limit = self._machine.place.inline_total_bytes
        noted: set[str | None] = before or set()
        has_lost_a_reply = before is not None

        def command(state: State, now_us: int) -> Step[AppendedAt | UpperIs | TooMuchInline | WriterUnknown | None]:
            nonlocal noted
            writer = state.writers.get(append.writer)
            last = None if writer is None else writer.token
            if has_lost_a_reply and last != append.token and (last is None or last not in noted):
                return Step(None)
            noted = {last}
            step = append_next(state, append, now_us, limit)
            return Step(step.outcome, step.state)

        def lost() -> None:
            nonlocal has_lost_a_reply
            has_lost_a_reply = True

        done = self._machine.apply(command, timeout_s, lost=lost)
        if done is None:
            raise undecidable()
        assert not isinstance(done, WriterUnknown)
        return done

    def _next_routed(self, append: AppendNext, timeout_s: float) -> AppendedAt | UpperIs | TooMuchInline:
        """Have an append decided elsewhere, or here if there is no answer.

        Invariant: an append that is decided elsewhere is of a session, and demands that this is on record. If there was
        no answer, the session's record first gets another id, under which it tells whether that was done. A session's
        id is put on record once and never again, so the append does nothing if it is decided elsewhere after that.
        """
        clock = self._machine.place.clock
        until_us = clock.now_us() + int(timeout_s * 1_000_000)

        def left_s() -> float:
            return max(0.0, (until_us - clock.now_us()) / 1_000_000)

        for _ in range(SESSION_ATTEMPTS):
            session = self._in_session(left_s())
            known = self._machine.state.writers.get(session.id)
            before: set[str | None] = {session.token, session.token if known is None else known.token}
            append = replace(append, writer=session.id, must_be_known=True)
            try:
                done: AppendedAt | UpperIs | TooMuchInline | WriterUnknown = self._machine.ask(append, left_s())
            except OutcomeUnknown:
                return self._next_after_silence(session, append, before, left_s())
            if not isinstance(done, WriterUnknown):
                session.token = append.token
                return done
            self._leave(session)  # its lease is over, or another thread had no answer
        raise Contention(f"The shard {self._shard.name!r} forgot a writer again and again.", next="Repeat the call.")

    def _in_session(self, timeout_s: float) -> _Session:
        with self._lock:
            if self._session is None:
                session = _Session(WriterId(new_id()), new_id())
                self._machine.apply(
                    lambda state, now_us: register_writer(state, session.id, self._lease_s, session.token, now_us),
                    timeout_s,
                )
                self._session = session
            return self._session

    def _leave(self, session: _Session) -> None:
        with self._lock:
            if self._session is session:
                self._session = None

    def _next_after_silence(
        self, session: _Session, append: AppendNext, before: set[str | None], timeout_s: float
    ) -> AppendedAt | UpperIs | TooMuchInline:
        """Find out what became of an append that had no answer, and decide it if it was not done.

        Raises:
            OutcomeUnknown: it cannot be told.
        """
        try:
            with self._lock:  # of several threads without an answer, one renames the session
                if self._session is session:
                    other = _Session(WriterId(new_id()), session.token)
                    self._machine.apply(lambda state, _: rename_writer(state, session.id, other.id), timeout_s)
                    self._session = other
                current = self._session
            if current is None:
                raise undecidable()
            return self._next_here(replace(append, writer=current.id, must_be_known=False), timeout_s, before)
        except OutcomeUnknown:
            raise
        except StrandlineError as error:  # that nothing was done is true of the last attempt only
            raise undecidable() from error


def undecidable() -> OutcomeUnknown:
    return OutcomeUnknown(
        "The reply to an append was lost, and this writer appended something else since, or was forgotten: "
        "it cannot be told whether the first one took effect.",
        next="Read the shard. Threads and processes that append at once take a writer each.",
    )
