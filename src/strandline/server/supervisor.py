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

from strandline.errors import StrandlineError
from strandline.operations import warning

BACKOFF_S = 0.5
BACKOFF_MAX_S = 15.0
LIVED_LONG_S = 30.0
STOP_WITHIN_S = 30.0


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
        work: what a worker does; it ends when its process gets SIGTERM.
    """

    def __init__(self, count: int, work: Callable[[], None]) -> None:
        self._count = count
        self._work = work
        self._workers: dict[int, float] = {}
        self._stops = False

    def run(self, ready: Callable[[], None]) -> None:
        """Start the workers, and start those anew that die.

        Args:
            ready: called when all are started.
        """
        before = {one: signal.signal(one, self._stop) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            for _ in range(self._count):
                self._start()
            ready()
            self._watch()
        finally:
            self._end()
            for one, handler in before.items():
                signal.signal(one, handler)

    def _stop(self, *_: object) -> None:
        self._stops = True

    def _start(self) -> None:
        child = os.fork()
        if child:
            self._workers[child] = time.monotonic()
            return
        code = 1
        try:
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, signal.SIG_DFL)
            self._work()
            code = 0
        except StrandlineError as error:
            print(f"worker: {error}", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _watch(self) -> None:
        wait_s = BACKOFF_S
        while not self._stops:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                time.sleep(0.1)
                continue
            lived_s = time.monotonic() - self._workers.pop(child, 0.0)
            warning("worker %d ended with status %d after %.0f s; it is started anew", child, status, lived_s)
            wait_s = BACKOFF_S if lived_s > LIVED_LONG_S else min(BACKOFF_MAX_S, wait_s * 2)
            until = time.monotonic() + wait_s
            while time.monotonic() < until and not self._stops:
                time.sleep(0.1)
            if not self._stops:
                self._start()

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
