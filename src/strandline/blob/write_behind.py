"""Writes what is read while more is being read: a hash in the reader's thread and the disk work at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType

DIRECT_CHUNKS = 4
"""Of a small file no thread is worth its start."""
WAITING_CHUNKS = 2


class WriteBehind:
    """Calls a function with chunks, in their order, from a thread of its own once there are some.

    When the `with` block ends, all is written, or the first error of the function is raised. If the block fails, what
    waits is left out.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._direct = DIRECT_CHUNKS
        self._chunks: queue.Queue[bytes] = queue.Queue(WAITING_CHUNKS)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def write(self, chunk: bytes) -> None:
        """Take a chunk; raises what an earlier one met."""
        if self._direct:
            self._direct -= 1
            self._write(chunk)
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="strandline-write", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends: then one after the other
                self._write(chunk)
                return
            self._thread = thread
        self._chunks.put(chunk)
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._thread is None:
            return
        if error is not None and self._error is None:
            self._error = error  # what waits is taken and forgotten
        self._chunks.put(b"")
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        while chunk := self._chunks.get():
            if self._error is None:
                try:
                    self._write(chunk)
                except BaseException as error:  # raised by the thread that reads
                    self._error = error
