"""The interface to what orders the changes of a shard: for each key a log of records with consecutive numbers.

`strandline.testing.consensus_conformance.ConsensusTests` has one test for each sentence of these docstrings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from strandline.errors import UsageError

SCAN_RECORDS = 1_000
"""How many records a scan returns unless told otherwise."""
SEQNO_MAX = 2**63 - 1


class Versioned(NamedTuple):
    """A record and its sequence number."""

    seqno: int
    data: bytes


class Consensus(ABC):
    """Logs of bytes, appended to by compare-and-set. Linearizable per key; keys are independent.

    A log begins with sequence number 1 and has no gaps; what is truncated is its beginning. Safe to share between
    threads; usable after a fork. Any call may raise `StoreUnavailable`; of a `compare_and_set`, its `happened` says
    "no", or "unknown" if it may have happened or may yet.

    Attributes:
        may_refuse_its_own: a `compare_and_set` that answers False may have been done by an attempt of the same call, as
            with object stores whose client repeats a request. A caller that gets False looks whether the record is its
            own.
    """

    may_refuse_its_own: bool = False

    @abstractmethod
    def head(self, key: str) -> Versioned | None:
        """The newest record, or None if the log does not exist."""

    @abstractmethod
    def compare_and_set(self, key: str, seqno: int, data: bytes) -> bool:
        """Append a record if it is the next one: if the newest has number `seqno - 1`, or none exists and it is 1.

        Returns:
            Whether it was appended.

        Raises:
            UsageError: `seqno` is not a sequence number.
        """

    @abstractmethod
    def scan(self, key: str, start: int, limit: int = SCAN_RECORDS) -> list[Versioned]:
        """The first `limit` records with numbers from `start` on, ascending; what was truncated is not among them."""

    @abstractmethod
    def truncate(self, key: str, seqno: int) -> int:
        """Remove the records before `seqno`; the newest one stays. Repeating it does nothing.

        Returns:
            How many this call removed.

        Raises:
            UsageError: the log does not exist, or ends before `seqno`.
        """


def check_seqno(seqno: int) -> int:
    if isinstance(seqno, bool) or not isinstance(seqno, int) or not 1 <= seqno <= SEQNO_MAX:
        raise UsageError(f"{seqno!r} is not a sequence number.", next=f"They are 1 to {SEQNO_MAX}.")
    return seqno


def beyond_end(key: str, seqno: int, head: Versioned | None) -> UsageError:
    end = "does not exist" if head is None else f"ends at {head.seqno}"
    return UsageError(f"The log {key!r} {end}; it cannot be truncated to {seqno}.", next="Truncate to what it has.")
