"""What a fork copies and a child cannot use: locks that another thread held, and threads that stayed behind."""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def _forked(self) -> None:
        """Make new locks, and forget the threads; called in the child, before anything else."""


_known: WeakSet[Forkable] = WeakSet()
_locks: WeakSet[Any] = WeakSet()


def survives_forks(thing: Forkable) -> None:
    """Have `thing._forked()` called in the child of every fork, as long as somebody holds the thing."""
    _known.add(thing)


def lock() -> threading.Lock:
    """A lock that is free in the child of a fork, whichever thread of the parent held it.

    What it guards must be usable at any moment of its changes, since the child may find it half changed: a dictionary
    that only grows is, two fields that belong together are not. Those take `survives_forks`, and make themselves anew.
    """
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> Any:
    """Like `lock`, for a thread that may take it again."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _in_child() -> None:
    for held in list(_locks):
        held._at_fork_reinit()  # as the standard library does for its own
    for thing in list(_known):
        thing._forked()


os.register_at_fork(after_in_child=_in_child)
