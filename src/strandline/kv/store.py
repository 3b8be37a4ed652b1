"""The interface that a key-value store has to fulfil, kept narrow on purpose.

`strandline.testing.kv_conformance.StoreTests` has one test for each sentence of these docstrings; a new backend passes
it and is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Self

from strandline.errors import StoreUnavailable

PAGE_KEYS = 10_000
"""How many pairs a scan fetches at a time unless told otherwise."""
PARTITION_MAX_BYTES = 256
KEY_MAX_BYTES = 1024
GUARDED_MAX_BYTES = 4 << 20
"""What one guarded write may hold: the change of its guard has to wait for it."""


class Absent(Enum):
    """The predicate of a `set_if` that demands that the key does not exist."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
Predicate = bytes | Absent


class PredicateFailed(Exception):
    """The key holds something else than the predicate says. Nothing was written.

    Not a `StrandlineError`: every caller decides what losing a swap means, none lets it out.
    """


class WouldWait(Exception):
    """A write that was asked not to wait would have had to. Nothing was written. See `Store.at_once`."""


class Guard(NamedTuple):
    """A key, and the value that it has to hold while others are written."""

    partition: bytes
    key: bytes
    value: bytes


class Guarded(Enum):
    """What became of a guarded write."""

    WRITTEN = "written"
    """At an instant at which the guard held."""
    REFUSED = "refused"
    """The guard holds something else. Nothing was written."""
    MAYBE = "maybe"
    """All was written. The store does not know whether the guard still held at that instant."""


class Page(NamedTuple):
    """Consecutive pairs of a partition, as two lists of equal length."""

    keys: list[bytes]
    values: list[bytes]


def page_keys_of(amount: int | None) -> int:
    """How many pairs to scan first for a caller that will look at so many, or at all if it is None."""
    return PAGE_KEYS if amount is None else min(PAGE_KEYS, amount + 1)


@contextmanager
def in_part(some_are_done: bool) -> Iterator[None]:
    """Let a failed part of a larger write say that the whole may have happened, if other parts did."""
    try:
        yield
    except StoreUnavailable as error:
        if not some_are_done or error.happened == "unknown":
            raise
        raise StoreUnavailable(
            error.what, happened="unknown", safe="A part of what was to be written was written.", next=error.next
        ) from error


class Store(ABC):
    """An ordered, partitioned map of bytes with compare-and-swap on single keys.

    Linearizable per key: a read that follows a successful write returns that write or a newer one. Partitions are
    namespaces made on first use; nothing drops a partition. Partition names are 1 to `PARTITION_MAX_BYTES` bytes
    without NUL, keys are 1 to `KEY_MAX_BYTES` bytes without NUL, values are any bytes. Safe to share between threads;
    usable after a fork.

    Any call may raise `StoreUnavailable`; of a write, its `happened` says "no" or "unknown".
    """

    @abstractmethod
    def get(self, partition: bytes, key: bytes) -> bytes | None:
        """The value of a key, or None if it does not exist."""

    @abstractmethod
    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """Store a value, whatever was there; when it returns, the value survives what the store promises to survive."""

    @abstractmethod
    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        """Store `value` if the key still holds `predicate`, which an earlier `get` returned, or still is `ABSENT`.

        Raises:
            PredicateFailed: it holds something else. Nothing was written.
        """

    @abstractmethod
    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key. Removing what is not there is fine."""

    @abstractmethod
    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        """The first `limit` pairs with `start <= key < end`, in byte order; fewer only if there are no more.

        A page begun after a set returned shows it. Pages are not a snapshot of each other.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and files. Closing twice is fine."""

    @property
    def writes_at_once(self) -> bool:
        """Whether writes take no longer than the processor needs for them, unless somebody else is in the way."""
        return False

    def at_once(self) -> AbstractContextManager[None]:
        """Within it, a write of the calling thread that would wait for somebody else raises `WouldWait` instead."""
        return nullcontext()

    # --- faster paths: the defaults mean the same as a loop -----------------------------------------------------------

    guarded_max_pairs = 1_000
    """How many pairs a guarded write may hold: as many as the store writes at once anyway."""

    def scan_pages(
        self, partition: bytes, start: bytes = b"", end: bytes | None = None, page_keys: int = PAGE_KEYS
    ) -> Iterator[Page]:
        """All pairs from `start` on, page by page; every key that is present throughout is returned once."""
        while True:
            page = self.scan_page(partition, start, end, page_keys)
            if page.keys:
                yield page
            if len(page.keys) < page_keys:
                return
            start = page.keys[-1] + b"\0"

    def scan(
        self, partition: bytes, start: bytes = b"", end: bytes | None = None, page_keys: int = PAGE_KEYS
    ) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan_pages`, pair by pair.

        Args:
            page_keys: what is fetched first; what follows grows, up to `PAGE_KEYS`.
        """
        while True:
            page = self.scan_page(partition, start, end, page_keys)
            yield from zip(page.keys, page.values, strict=True)
            if len(page.keys) < page_keys:
                return
            start = page.keys[-1] + b"\0"
            page_keys = max(page_keys, min(PAGE_KEYS, page_keys * 4))

    def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of several keys, in their order; not a snapshot."""
        return [self.get(partition, key) for key in keys]

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Several sets with distinct keys, in no promised order; a failed call may have done some of them.

        Raises:
            StoreUnavailable: `happened` is "no" only if none of them was done.
        """
        for at, (key, value) in enumerate(pairs):
            with in_part(at > 0):
                self.set(partition, key, value)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        """Several sets with distinct keys, all or none of them, at an instant at which the guard holds its value.

        This default, which is for stores that cannot compare and write in one step, looks at the guard before and
        after: only it answers `MAYBE`, and a failed call may have done some of the sets.

        Args:
            pairs: at most `guarded_max_pairs`, of `GUARDED_MAX_BYTES` together; one larger pair may go alone.
            guard: a key that never returns to an earlier value; that is up to those who change it.

        Raises:
            StoreUnavailable: if `happened` is "unknown", the sets may also come later, while the guard still holds.
        """
        if not self._holds(guard):
            return Guarded.REFUSED
        if len(pairs) == 1:
            self.set(partition, *pairs[0])
        else:
            self.set_many(partition, pairs)
        try:
            return Guarded.WRITTEN if self._holds(guard) else Guarded.MAYBE
        except StoreUnavailable:
            return Guarded.MAYBE

    def _holds(self, guard: Guard) -> bool:
        return self.get(guard.partition, guard.key) == guard.value

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        """Several deletes, in no promised order; a failed call may have done some of them, as in `set_many`."""
        for at, key in enumerate(keys):
            with in_part(at > 0):
                self.delete(partition, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
