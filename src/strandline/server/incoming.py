"""A body on its way from a socket, which the event loop fills, to a thread that reads it as a file."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable

from strandline.server.refusals import BrokenBody

HIGH_BYTES = 1 << 20
"""More than this lies unread: the socket is not read any more."""
LOW_BYTES = 256 << 10


class Incoming(io.RawIOBase):
    """The event loop feeds it; one thread reads it.

    Args:
        pause, resume: of the socket; called in the loop's thread by `feed`, and by `call` from the reader's.
        call: runs something in the loop's thread.
    """

    def __init__(
        self, pause: Callable[[], None], resume: Callable[[], None], call: Callable[[Callable[[], None]], object]
    ) -> None:
        self._pause, self._resume, self._call = pause, resume, call
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._is_paused = False
        self._ended = False
        self._broken = ""
        self._changed = threading.Condition()

    def readable(self) -> bool:
        return True

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """More of the body has come."""
        with self._changed:
            self._parts.append(data)
            self._buffered += len(data)
            too_much = self._buffered > HIGH_BYTES and not self._is_paused
            self._is_paused = self._is_paused or too_much
            self._changed.notify()
        if too_much:
            self._pause()

    def end(self) -> None:
        """All of the body has come."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def abort(self, why: str) -> None:
        """No more will come: a reader gets an error, whatever lies here unread."""
        with self._changed:
            if not self._ended:
                self._broken = why
            self._changed.notify()

    # --- the reader's side --------------------------------------------------------------------------------------------

    def read(self, size: int = -1) -> bytes:
        """The next bytes, some at least; none at the end.

        Raises:
            BrokenBody: the client left, or was too slow.
        """
        with self._changed:
            while not (self._parts or self._ended or self._broken):
                self._changed.wait()
            if self._broken:
                raise BrokenBody(self._broken)
            taken: list[bytes] = []
            left = size if size >= 0 else 1 << 62
            while self._parts and left > 0:
                part = self._parts.popleft()
                if len(part) > left:
                    self._parts.appendleft(part[left:])
                    part = part[:left]
                taken.append(part)
                left -= len(part)
            found = taken[0] if len(taken) == 1 else b"".join(taken)
            self._buffered -= len(found)
            goes_on = self._is_paused and self._buffered < LOW_BYTES
            if goes_on:
                self._is_paused = False
        if goes_on:
            self._call(self._resume)
        return found
