"""Runs a function over many things in threads, with a bounded number of them under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 8
AHEAD = 4 * THREADS
"""How many are begun before the first result is taken."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Like `map`, in threads; results in order. The first error ends it; what is under way then is finished."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(THREADS, "strandline") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
