"""What a fork copies and a child cannot use: locks that another thread held, and threads that stayed behind."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def _forked(self) -> None:
        """Make new locks, and forget the threads; called in the child, before anything else."""


_known: WeakSet[Forkable] = WeakSet()


def survives_forks(thing: Forkable) -> None:
    _known.add(thing)


def _in_child() -> None:
    for thing in list(_known):
        thing._forked()


os.register_at_fork(after_in_child=_in_child)
