"""A write on its way to SQLite, perhaps in one transaction with those of other threads."""

from __future__ import annotations

import threading
from itertools import chain


class Write:
    """A write on its way: its statement, its outcome, and a lock on which its thread sleeps.

    Attributes:
        arguments: of the statement; a list of them if it is done with each.
        is_swap: it has to change exactly one row.
        guard: a key and the value that it must hold, if the list of arguments is to be done.
        waits: for another process that writes, if there is one.
        was_locked: there was one, and it was not waited for, or for too long.
    """

    __slots__ = (
        "arguments",
        "done",
        "error",
        "guard",
        "is_swap",
        "leads",
        "statement",
        "waits",
        "wake",
        "was_locked",
    )

    def __init__(
        self,
        statement: str,
        arguments: tuple[bytes, ...] | list[tuple[bytes, ...]],
        is_swap: bool,
        guard: tuple[bytes, bytes] | None,
    ) -> None:
        self.statement = statement
        self.arguments = arguments
        self.is_swap = is_swap
        self.guard = guard
        self.wake = threading.Lock()
        self.wake.acquire()
        self.done = False
        self.leads = False
        self.error: Exception | None = None
        self.waits = True
        self.was_locked = False

    @property
    def size_bytes(self) -> int:
        """What it brings, keys and values together."""
        if isinstance(self.arguments, tuple):
            return sum(map(len, self.arguments))
        return sum(map(len, chain.from_iterable(self.arguments)))
