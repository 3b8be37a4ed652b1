"""Several workers of one server: processes that share a listening socket, and one that starts them anew.

The supervisor opens no store and starts no thread, so that it can fork at any time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from strandline.errors import StoreUnavailable, StrandlineError
from strandline.operations import warning

BACKOFF_S = 0.5
BACKOFF_MAX_S = 15.0
LIVED_LONG_S = 30.0
STOP_WITHIN_S = 30.0
LOOK_EACH_S = 0.05
START_ATTEMPTS = 3
"""How often each worker may fail before any of them has taken a request: then it is not for chance."""


class Outcome(msgspec.Struct):
    """What became of something that was done in another process.

    Attributes:
        value: what it returned.
        error: what it raised, as a text; "" if nothing.
    """

    value: Any = None
    error: str = ""


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do something in a process of its own, and return what it returns.

    Raises:
        RuntimeError: the process died.
        StrandlineError: with the sentences of what it raised.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        code = 1
        try:
            try:
                outcome = Outcome(work())
            except StrandlineError as error:
                outcome = Outcome(error=str(error))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(outcome))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    if not raw:
        raise RuntimeError("A process that was to prepare the server died.")
    found = msgspec.msgpack.decode(raw, type=Outcome)
    if found.error:
        raise StrandlineError(found.error, safe="")
    return found.value


class Supervisor:
    """Keeps workers running until it is told to stop.

    Args:
        work: what a worker does; it calls what it is given when it takes requests, and ends when its process gets
            SIGTERM.
    """

    def __init__(self, count: int, work: Callable[[Callable[[], None]], None]) -> None:
        self._count = count
        self._work = work
        self._workers: dict[int, float] = {}
        self._due: list[float] = []
        """When those that died are started anew."""
        self._wait_s = BACKOFF_S
        self._stops = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)

    def run(self, ready: Callable[[], None]) -> None:
        """Start the workers, and start those anew that die.

        Args:
            ready: called when the first one takes requests.

        Raises:
            StoreUnavailable: none ever did.
        """
        handlers: dict[signal.Signals, Callable[[int, Any], None]] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._pass_on,
        }
        before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
        try:
            for _ in range(self._count):
                self._start()
            self._watch(ready)
        finally:
            self._end()
            for one, handler in before.items():
                signal.signal(one, handler)

    def _stop(self, *_: object) -> None:
        self._stops = True

    def _pass_on(self, number: int, *_: object) -> None:
        for child in self._workers:
            os.kill(child, number)

    def _start(self) -> None:
        child = os.fork()
        if child:
            self._workers[child] = time.monotonic()
            return
        code = 1
        try:
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(one, signal.SIG_DFL)
            self._work(self._say_begun)
            code = 0
        except StrandlineError as error:
            print(f"worker: {error}", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _say_begun(self) -> None:
        os.write(self._writing, b"1")

    def _watch(self, ready: Callable[[], None]) -> None:
        is_ready, failed = False, 0
        while not self._stops:
            if not is_ready and self._has_begun():
                is_ready = True
                ready()
            child, status = os.waitpid(-1, os.WNOHANG) if self._workers else (0, 0)
            now = time.monotonic()
            if child:
                self._ended(child, status, now)
                failed += 1
                if not is_ready and failed >= START_ATTEMPTS * self._count:
                    raise StoreUnavailable(
                        "No worker could be started.", happened="no", next="Read above why; `--check` may say more."
                    )
                continue
            while self._due and self._due[0] <= now:
                self._due.pop(0)
                self._start()
            time.sleep(LOOK_EACH_S)

    def _has_begun(self) -> bool:
        try:
            return bool(os.read(self._reading, 1))
        except BlockingIOError:
            return False

    def _ended(self, child: int, status: int, now: float) -> None:
        lived_s = now - self._workers.pop(child, 0.0)
        warning("worker %d ended with status %d after %.0f s; it is started anew", child, status, lived_s)
        self._wait_s = BACKOFF_S if lived_s > LIVED_LONG_S else min(BACKOFF_MAX_S, self._wait_s * 2)
        self._due = sorted([*self._due, now + self._wait_s])

    def _end(self) -> None:
        for child in self._workers:
            os.kill(child, signal.SIGTERM)
        until = time.monotonic() + STOP_WITHIN_S
        while self._workers:
            child, _ = os.waitpid(-1, os.WNOHANG)
            self._workers.pop(child, None)
            if not child:
                if time.monotonic() > until:
                    for left in self._workers:
                        os.kill(left, signal.SIGKILL)
                time.sleep(0.05)
        for one in (self._reading, self._writing):
            os.close(one)
