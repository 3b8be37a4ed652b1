"""How long work says how far it is: one shape for all of it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], object]
"""Called with what is being done, how much of it is done, and of how much; None if that is not known yet.

It may be called from several threads, never from two at once. An error that it raises ends the work.
"""


def no_progress(doing: str, done: int, total: int | None) -> None:
    """Shows nothing."""
