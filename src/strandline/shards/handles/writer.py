"""Handles that append to a shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from strandline.arguments import checked
from strandline.closing import Closing
from strandline.errors import (
    InvalidBounds,
    StoreUnavailable,
    UpperMismatch,
    UsageError,
)
from strandline.forks import survives_forks
from strandline.ids import new_id
from strandline.shards.deciding.machine import DEFAULT_TIMEOUT_S
from strandline.shards.handles.next_append import NextAppends, undecidable
from strandline.shards.handles.open_shard import OpenShard
from strandline.shards.rows.batches import (
    PART_TARGET_BYTES,
    BatchBuilder,
    WrittenBatch,
    as_bounds,
    joined,
    with_blobs,
)
from strandline.shards.rows.parts import PartWriter
from strandline.shards.state.frontier import Antichain, Frontier, antichain, bound_of
from strandline.shards.state.state import NEVER, Batch, ShardId, WriterId
from strandline.shards.state.transitions import (
    Append,
    Appended,
    AppendedAt,
    AppendNext,
    TooMuchInline,
    UpperIs,
    expire_writer,
    finish,
    heartbeat_writer,
)

WRITER_LEASE_S = 3_600


QUERY = " of query "
"""Stands in the token of an epoch before the query whose epoch it is."""


@checked()
class Writer(Closing):
    """Appends to a shard. Safe to share between threads; a context manager, whose end lets the writer be forgotten.

    Args:
        name: of a durable writer, which is never forgotten; "" for one with a lease.
    """

    def __init__(self, shard: OpenShard, name: str = "") -> None:
        if not isinstance(name, str) or not name.isprintable():
            raise UsageError(f"The name of a writer is a str of one line, not {name!r}.")
        self._shard = shard
        self._machine = shard.machine
        self.id = WriterId(f"w-{name}" if name else new_id())
        self._lease_s = NEVER if name else WRITER_LEASE_S
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._next = NextAppends(self._shard, self._lease_s)  # the parent's session stays the parent's

    def __repr__(self) -> str:
        return f"<Writer {self.id} of {self._shard!r}>"

    def close(self) -> None:
        """Let the shard forget this writer, unless it is durable. A failure to say so does not matter."""
        state = self._machine.state
        session = self._next.end()
        ids = [self.id] if self._lease_s != NEVER and self.id in state.writers else []
        ids += [session] if session is not None else []
        try:
            for id in ids:
                self._forget(id)
        except StoreUnavailable:
            return

    def _forget(self, id: WriterId) -> None:
        self._machine.apply(lambda state, _: expire_writer(state, id))

    @property
    def upper(self) -> Antichain:
        """The shard's upper, as of now."""
        return antichain(self._machine.refreshed().upper)

    # --- appending ----------------------------------------------------------------------------------------------------

    def batch(self, lower: Frontier, upper: Frontier, *, part_bytes: int = PART_TARGET_BYTES) -> BatchBuilder:
        """Write updates before it is decided when they are appended: more than fit in memory, or by many processes.

        Args:
            lower, upper: that all times lie between.
            part_bytes: about how many bytes of Arrow data become one file.
        """
        if part_bytes < 1:
            raise UsageError("part_bytes must be positive.")
        return BatchBuilder(
            self._shard.id, self._parts(), self._shard.codec, bound_of(lower), bound_of(upper), part_bytes
        )

    def _parts(self) -> PartWriter:
        place = self._machine.place
        return PartWriter(place.blobs, place.folder, self.id, self._shard.schema_id, place.inline_max_bytes)

    def compare_and_append(
        self,
        updates: Any,
        expected_upper: Frontier,
        new_upper: Frontier,
        *,
        token: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Append updates, and move the upper, if the shard's upper is the expected one.

        Args:
            updates: an Arrow table or batches with the columns of the shard and perhaps `_time` (by default the
                expected upper) and `_diff` (by default 1); or tuples `((key, value), time, diff)`. None or [] only
                moves the upper.
            new_upper: times below it are complete from now on; `Antichain()` finishes the shard.
            token: names this append: if this writer's last one had the same, it was done, and is not done again.

        Raises:
            UpperMismatch: the upper is another one; the error holds it. Nothing was appended.
            InvalidBounds, SchemaMismatch: of the updates. Nothing was asked of a store.
            StoreUnavailable: a store failed; `happened` says whether it may have been appended all the same.
        """
        lower, upper = as_bounds(expected_upper, new_upper)
        self._compare_and_append(self._written(updates, lower, upper), lower, upper, token, timeout_s)

    def compare_and_append_batches(
        self,
        batches: Sequence[WrittenBatch],
        expected_upper: Frontier,
        new_upper: Frontier,
        *,
        token: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Like `compare_and_append`, of batches that were written before: all of them at one instant.

        Raises:
            InvalidBounds: a batch does not cover the bounds of the append.
        """
        lower, upper = as_bounds(expected_upper, new_upper)
        self._compare_and_append(joined(self._shard.id, batches, lower, upper), lower, upper, token, timeout_s)

    def append(
        self,
        updates: Any,
        lower: Frontier,
        upper: Frontier,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> bool:
        """Append what every other writer of the shard appends as well: the same updates at the same times.

        What others appended already is left out; if they have all of it, nothing is done.

        Args:
            lower: at or below the shard's upper, so that there is no gap.

        Returns:
            Whether anything was appended.

        Raises:
            UpperMismatch: the shard's upper is below `lower`.
        """
        begin, end = as_bounds(lower, upper)
        batch = self._written(updates, begin, end)
        while True:
            current = self._machine.refreshed().upper
            if current < begin:
                raise self._mismatch(current, begin)
            if current >= end:
                self._discard(batch)
                return False
            try:
                self._compare_and_append(_cut(batch, current, end), current, end, None, timeout_s)
                return True
            except UpperMismatch:
                continue

    def append_next(self, updates: Any, *, token: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Append updates at whatever time comes next.

        Args:
            updates: as in `compare_and_append`, without times; or a list of written batches.
            token: names this append, as there.

        Returns:
            The time of the updates.

        Raises:
            UpperMismatch: the shard is finished.
        """
        if updates is None:
            raise UsageError("The updates to append are None.", next="Give [] to move the upper alone.")
        time = self._append_next(updates, None, check_token(token), timeout_s)
        assert time is not None
        return time

    def append_epoch(
        self, updates: Any, epoch: int, *, query: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> int | None:
        """Like `append_next`, once for each epoch of this durable writer.

        For sinks: a sink that repeats an epoch, after a restart or beside a zombie, learns that it was done.

        Args:
            epoch: counts up.
            query: the one whose epochs are counted; another one under the same name is refused, as its first epochs
                would pass for repeats.

        Returns:
            The time of the updates, or None if the epoch was appended before.

        Raises:
            UsageError: this writer is not durable, or belongs to another query.
            UpperMismatch: the shard is finished.
        """
        if self._lease_s != NEVER:
            raise UsageError("Epochs are for durable writers.", next="shard.writer(name) is one.")
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"An epoch is an int from 0 on, not {epoch!r}.")
        known = self._machine.refreshed().writers.get(self.id)
        if known is not None:
            owner = known.token.partition(QUERY)[2]
            if query and owner and owner != query:
                raise UsageError(
                    f"The writer {self.id!r} of {self._shard.name!r} belongs to another query, {owner}, which has "
                    f"appended its epochs up to {known.epoch}; those of this one would pass for repeats.",
                    next="If its checkpoint was deleted, choose another writer.",
                )
            if epoch <= known.epoch:
                return None
        return self._append_next(updates, epoch, f"epoch {epoch}" + (QUERY + query if query else ""), timeout_s)

    def _append_next(self, updates: Any, epoch: int | None, token: str, timeout_s: float) -> int | None:
        """Append at the next time, and go on after lost replies until it is known what became of it."""
        whole = _timeless(self._shard.id, updates) if _are_batches(updates) else self._written(updates, 0, 1)
        append = AppendNext(self.id, self._lease_s, token, whole.parts if whole else (), new_id(), epoch)
        done = self._next.decide(append, timeout_s)
        if isinstance(done, TooMuchInline):
            writer = self._parts()
            done = self._next.decide(
                replace(append, parts=tuple(writer.flushed(part) for part in append.parts)), timeout_s
            )
        if isinstance(done, UpperIs):
            raise self._finished()
        assert isinstance(done, AppendedAt)
        return done.time

    def heartbeat(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Say that this writer is alive; every append does as well."""
        self._machine.apply(lambda state, now_us: heartbeat_writer(state, self.id, self._lease_s, now_us), timeout_s)

    def finish(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Promise that nothing more will be appended, by anybody."""
        self._machine.apply(lambda state, _: finish(state), timeout_s)

    # --- within -------------------------------------------------------------------------------------------------------

    def _written(self, updates: Any, lower: int, upper: int) -> Batch | None:
        if updates is None:
            return None
        with BatchBuilder(self._shard.id, self._parts(), self._shard.codec, lower, upper, PART_TARGET_BYTES) as builder:
            builder.add(updates)
            return joined(self._shard.id, [builder.finish()], lower, upper)

    def _compare_and_append(
        self, batch: Batch | None, lower: int, upper: int, token: str | None, timeout_s: float
    ) -> None:
        """Append, and go on after lost replies until it is known what became of it.

        Invariant: a token belongs to one append. If it is on record the append was done, by whichever attempt. If it is
        not and this writer's record leads to less than the append would have, then no attempt was done, since the
        writer is not forgotten within a call. Otherwise another append of this writer came in between, and nobody can
        tell.
        """
        append = Append(self.id, self._lease_s, check_token(token), lower, upper, batch)
        has_lost_a_reply = False

        def lost() -> None:
            nonlocal has_lost_a_reply
            has_lost_a_reply = True

        while True:
            outcome: Appended | UpperIs | TooMuchInline = self._machine.apply(append, timeout_s, lost=lost)
            if isinstance(outcome, TooMuchInline):
                assert append.batch is not None
                flushed = with_blobs(append.batch, self._parts())
                append = Append(self.id, self._lease_s, append.token, lower, upper, flushed)
                continue
            if isinstance(outcome, Appended):
                return
            if has_lost_a_reply and (outcome.writer_upper >= upper or outcome.writer_upper == 0):
                raise undecidable()
            raise self._mismatch(outcome.current, lower)

    def _mismatch(self, current: int, expected: int) -> UpperMismatch:
        if antichain(current).is_empty:
            return self._finished(expected)
        return UpperMismatch(
            f"The upper of {self._shard.name!r} is {antichain(current)}, not {antichain(expected)}.",
            current=antichain(current),
            expected=antichain(expected),
            safe="Nothing was appended.",
            next="Somebody else appended, or this was done before: read on from there, then append at its upper.",
        )

    def _finished(self, expected: int = 0) -> UpperMismatch:
        return UpperMismatch(
            f"The shard {self._shard.name!r} is finished: nothing can be appended any more.",
            current=Antichain(),
            expected=antichain(expected),
            safe="Nothing was appended.",
        )

    def _discard(self, batch: Batch | None) -> None:
        """Delete parts that were never part of any attempt."""
        if batch is not None:
            place = self._machine.place
            try:
                place.blobs.delete_many(place.blob_key(part.key) for part in batch.parts if part.key)
            except StoreUnavailable:
                return  # the sweeper finds them


def _timeless(shard: ShardId, batches: Sequence[WrittenBatch]) -> Batch | None:
    """Written batches whose updates have no time of their own.

    Raises:
        InvalidBounds: one was written for several times.
    """
    whole = joined(shard, batches, 0, 1)
    timeless = sum(part.rows for part in whole.parts if part.last == 0) if whole is not None else 0
    if timeless != sum(batch.rows for batch in batches):
        raise InvalidBounds(
            "A batch that is appended at the next time has updates with times of their own.",
            next="Write it with writer.batch(0, 1), or append it with compare_and_append_batches.",
        )
    return whole


def check_token(token: str | None) -> str:
    """A token that a caller gives, or a new one."""
    if token is not None and not isinstance(token, str):
        raise UsageError(f"A token is a str, not {token!r}.", next="Write str(…) around it.")
    return token or new_id()


def _are_batches(updates: Any) -> bool:
    return isinstance(updates, list | tuple) and bool(updates) and isinstance(updates[0], WrittenBatch)


def _cut(batch: Batch | None, lower: int, upper: int) -> Batch | None:
    """What of a batch is in [lower, upper). Readers leave out updates outside of a batch's description."""
    if batch is None:
        return None
    parts = tuple(part for part in batch.parts if part.last >= lower)
    return Batch(new_id(), lower, upper, 0, parts) if parts else None
