"""What a process does beside its callers: sweeps of dropped tokens, compactions."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from strandline.redaction import redacted

EXIT_WAIT_S = 30
"""How long the end of a lake, or of the process, waits for work under way: enough to compact some million entries.
Otherwise a thousand short processes that each begin a compaction would never finish one."""
log = logging.getLogger("strandline")


class Background(Protocol):
    """Runs jobs beside the callers, of each key at most one at a time."""

    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None:
        """Run a job beside the callers, unless one of this key is running."""

    def pause(self, seconds: float) -> bool:
        """Wait within a job; at once over, and true, when the lake is being closed."""


class BackgroundThreads:
    """A daemon thread a job. A job that fails is told to the log: it is begun again when it is needed again.

    Jobs of a forked child that ends with `os._exit`, as those of `multiprocessing` do, end with it: close its lake.
    """

    def __init__(self) -> None:
        self._reset()
        _open.add(self)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._running: dict[tuple[str, ...], threading.Thread] = {}

    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None:
        if self._pid != os.getpid():
            self._reset()  # the threads stayed in the parent
        with self._lock:
            if key in self._running or self._closing.is_set():
                return
            thread = threading.Thread(target=self._run, args=(key, job), name=f"strandline-{key[0]}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter ends: callers must not notice
                log.info("%s could not begin: %s", " ".join(key), error)
                return
            self._running[key] = thread

    def _run(self, key: tuple[str, ...], job: Callable[[], object]) -> None:
        try:
            job()
        except Exception as error:
            log.warning("%s stopped: %s", " ".join(key), redacted(str(error)))
        finally:
            with self._lock:  # which `start` holds until the job is among the running ones
                self._running.pop(key, None)

    def pause(self, seconds: float) -> bool:
        return self._closing.wait(seconds)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._closing.set()
        until = time.monotonic() + EXIT_WAIT_S
        with self._lock:  # a job that was begun just before is among them by then
            running = list(self._running.values())
        for thread in running:
            thread.join(max(0.0, until - time.monotonic()))


_open: weakref.WeakSet[BackgroundThreads] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for background in list(_open):
        background.close()
