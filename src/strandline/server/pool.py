"""Threads for what would hold up the event loop, and no more of it than is served soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from strandline.server.refusals import Busy

Result = TypeVar("Result")
Done = Callable[[Any, BaseException | None], None]


class Pool:
    """Runs functions in threads, and gives what they return to the event loop.

    Args:
        threads: how many there are.
        waiting_max: how many functions may wait for a thread; more are refused.
        owner_max: how many of these may be one owner's, that others are served too; 0 for any number.
    """

    def __init__(self, name: str, threads: int, waiting_max: int, owner_max: int = 0) -> None:
        self.executor = ThreadPoolExecutor(threads, f"strandline-{name}")
        self._most = threads + waiting_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner_max = owner_max
        self._owners: Counter[str] = Counter()
        self.under_way = 0

    def run(self, function: Callable[[], Result], done: Done, owner: str = "") -> None:
        """Run a function; called from the event loop, which gets the result, or the error, by `done`.

        Raises:
            Busy: too many wait already.
        """
        if self.under_way >= self._most:
            raise Busy("The server has more to do than it can.")
        if owner and self._owner_max:
            if self._owners[owner] >= self._owner_max:
                raise Busy("Too much of this user is under way.")
            self._owners[owner] += 1
        self._loop = self._loop or asyncio.get_running_loop()
        loop = self._loop
        self.under_way += 1

        def finish(result: Any, error: BaseException | None) -> None:
            self.under_way -= 1
            if owner and self._owner_max:
                self._owners[owner] -= 1
                if not self._owners[owner]:
                    del self._owners[owner]
            done(result, error)

        def work() -> None:
            try:
                result, error = function(), None
            except BaseException as raised:
                result, error = None, raised
            loop.call_soon_threadsafe(finish, result, error)

        self.executor.submit(work)

    def close(self) -> None:
        """Wait for what is under way; what waits is not begun."""
        self.executor.shutdown(wait=True, cancel_futures=True)
