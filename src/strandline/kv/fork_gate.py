"""Sees to it that no connection of SQLite is open when this process forks.

SQLite keeps a list of open files for the whole process and thinks that it holds the locks of the operating system that
are on it. A fork copies the list, and not the locks: a child that opens the same file takes none, and the last process
to close the file by the system's reckoning removes the write-ahead log under the others. Acknowledged writes vanish.

So every call of a store passes a gate. A hook before the fork shuts it, waits until all calls have left, and closes the
connections; parent and child open new ones when they need them. A hook cannot stop a fork: if a call does not end in
time, or belongs to the thread that forks, the file is lost to the child, which refuses every use of it at once.

A call is let in by two plain assignments, which Python's lock puts into one order for all threads: it says that it is
inside and then looks whether the gate is shut; the hook shuts the gate and then looks which calls are inside.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakSet

PATIENCE_S = 2.0
"""How long a fork waits for the calls under way."""
POLL_S = 0.0002

FileId = tuple[int, int]
"""Device and inode: SQLite's own list goes by these, whatever a file is called."""


class Session:
    """A thread's place in a store.

    Attributes:
        connection: its own, opened when it is needed; before it is closed, nobody is inside.
        depth: how many calls of the thread are inside; more than one if a signal handler or a finalizer calls.
        unchanged: what the connection relies on if it reads the file as one that nobody changes.
        has_ended: its thread does nothing any more but close the connection.
        is_lost: this is the copy that a fork made of a session in use: not one more statement may run on it.
    """

    __slots__ = ("connection", "depth", "has_ended", "is_lost", "thread", "unchanged")

    def __init__(self) -> None:
        self.connection: Any = None
        self.unchanged: Any = None
        self.depth = 0
        self.has_ended = False
        self.is_lost = False
        self.thread = threading.get_ident()


class GatedStore(Protocol):
    def _sessions_now(self) -> Iterable[Session]: ...

    def _close_connections(self) -> None:
        """Close all of them; nobody is inside, and nobody comes in."""

    def _open_file(self) -> FileId | None:
        """The file that connections are open to, or are just being opened to; None if no connection is open."""

    def _forked(self) -> None:
        """In the child: forget the connections without closing them, and the calls of other threads."""


class Gate:
    """One for the whole process.

    Attributes:
        pid: of the process that the state here is true of; another one means that C code forked, without hooks.
        is_shut: no call may begin.
        connections: all that are open, and their files; what is left of them at a fork is lost to the child. They are
            kept here, since a store that is being collected as garbage has left the set of stores.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._stores: WeakSet[GatedStore] = WeakSet()
        self._lost: set[FileId] = set()
        self._unsettled: list[GatedStore] | None = []
        self.connections: dict[object, FileId] = {}
        self._reset()

    def _reset(self) -> None:
        self.is_shut = False
        self._guests: set[Session] = set()
        self._forking = threading.RLock()  # a signal handler may fork in the middle of a hook of this very thread
        self._forker: int | None = None
        self._depth = 0

    def register(self, store: GatedStore) -> None:
        """A store does so before its first connection."""
        self._stores.add(store)

    def is_lost(self, file: FileId) -> bool:
        """Whether connections to a file were open when this process was forked."""
        return file in self._lost

    @property
    def is_forking(self) -> bool:
        """Whether this very thread is about to fork: what it calls now could not be closed any more."""
        return self.is_shut and self._forker == threading.get_ident()

    def wait(self, session: Session) -> bool:
        """The gate is shut, and the session has just said that it is inside: step back until it opens.

        Returns:
            False if this thread is the one that forks: what it calls now could not be closed any more.
        """
        if session.depth > 1:
            return True  # it is inside already, and the fork waits for it
        if self.is_forking:
            return False
        while self.is_shut:
            session.depth -= 1
            try:
                time.sleep(POLL_S)  # no event, whose own lock a signal handler could find taken by its own thread
            finally:  # a thread that is interrupted here steps out again
                session.depth += 1
        return True

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Close connections outside of a store's calls, such as in a finalizer."""
        guest = Session()
        self._guests.add(guest)
        guest.depth += 1
        try:
            if self.is_shut:
                self.wait(guest)  # or this thread is about to fork, and what it closes is closed by then
            yield
        finally:
            guest.depth -= 1
            self._guests.discard(guest)

    def found_in_child(self) -> None:
        """Called when the process has another id than it had: it was forked by code that runs no hooks."""
        self._unsettled = None
        self._after_in_child()

    def _all(self) -> list[GatedStore]:
        while True:
            try:
                return list(self._stores)
            except RuntimeError:  # another thread opened a store meanwhile
                continue

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _before(self) -> None:
        if self.pid != os.getpid():
            self.found_in_child()
        if self._forker == threading.get_ident():
            # a signal handler forks while this very thread is about to: the gate is shut, and what is not closed yet
            # counts as unsettled
            self._depth += 1
            return
        self._forking.acquire()
        self._unsettled = None  # all of them, until the opposite is known, whatever interrupts this
        self._forker = threading.get_ident()
        self.is_shut = True
        stores = self._all()
        until = time.monotonic() + PATIENCE_S
        while any(guest.depth and guest.thread != self._forker for guest in list(self._guests)):
            if time.monotonic() > until:
                return
            time.sleep(POLL_S)
        self._unsettled = [store for store in stores if not self._is_settled(store, until)]

    def _is_settled(self, store: GatedStore, until: float) -> bool:
        """Wait until nobody is inside, and close the connections; False if that does not come."""
        while inside := [session for session in store._sessions_now() if session.depth]:
            if time.monotonic() > until or any(session.thread == self._forker for session in inside):
                return False
            time.sleep(POLL_S)
        store._close_connections()
        return True

    def _after_in_parent(self) -> None:
        if self._depth:
            self._depth -= 1
            return
        # Invariant: a signal handler that forks between two of these lines is either a part of this fork, to which the
        # gate is shut still and what is unsettled is known, or begins its own, for which the lock lets it in.
        self._forker = None
        self.is_shut = False
        self._unsettled = []
        with suppress(RuntimeError):  # the child of such a handler goes on here, with a lock of its own
            self._forking.release()

    def _after_in_child(self) -> None:
        self.pid = os.getpid()
        try:
            stores = self._all()
            unsettled = stores if self._unsettled is None else self._unsettled
            self._lost |= {file for store in unsettled if (file := store._open_file()) is not None}
            self._lost |= set(self.connections.values())
            keep_for_ever(self.connections)
            self.connections = {}
            self._unsettled = []
            for store in stores:
                store._forked()
        finally:
            self._reset()


def keep_for_ever(connections: Iterable[object]) -> None:
    """Never close what a fork copied, not even when the interpreter ends: it belongs to the parent."""
    import ctypes  # noqa: PLC0415 - needed by hardly any process

    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


gate = Gate()
os.register_at_fork(before=gate._before, after_in_parent=gate._after_in_parent, after_in_child=gate._after_in_child)
