"""Processes that kill themselves at a call of a store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.blob.local import LocalBlobStore
from strandline.kv.sqlite import SqliteStore

ALL = os.environ.get("STRANDLINE_TEST_KILLS") == "all"
"""Whether to kill at every call and at 200 random moments (`make kills KILLS=all`); else at some of them."""
RANDOM_MOMENTS = 200 if ALL else 6
WRITES: Mapping[type, Sequence[str]] = {
    SqliteStore: ("get", "set", "set_if", "set_many", "scan_page", "delete"),
    LocalBlobStore: ("put", "list_pages", "sync", "head"),
}
CALLS: Mapping[type, Sequence[str]] = {
    **WRITES,
    LocalBlobStore: (*WRITES[LocalBlobStore], "get", "open_read", "local_path"),
}
"""With the calls of reads."""


def watch(seen: Callable[[str], None], calls: Mapping[type, Sequence[str]] = CALLS) -> None:
    """Have a function called "before" and "after" each call of a store of this process."""

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            seen("before")
            answer = method(*arguments, **options)
            seen("after")
            return answer

        return call

    for kind, names in calls.items():
        for name in names:
            setattr(kind, name, watched(getattr(kind, name)))


def sent_at(at: int, when: str, what: int = signal.SIGKILL) -> Callable[[], int]:
    """Send this process a signal before or after the n-th call of a store; returns how many there were."""
    counts = {"before": 0, "after": 0}

    def seen(moment: str) -> None:
        counts[moment] += 1
        if moment == when and counts[moment] == at:
            os.kill(os.getpid(), what)

    watch(seen, WRITES)
    return lambda: counts["before"]


def some_of(every: Sequence[Any], samples: int) -> Sequence[Any]:
    """All of them if asked for, else a few from all over."""
    return every if ALL else every[:: max(1, len(every) // samples)]
