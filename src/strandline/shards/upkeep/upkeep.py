"""What a process does for its shards beside the callers: rollups, collection, compaction, heartbeats."""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakKeyDictionary

from strandline.background import Background
from strandline.clock import Clock, Microseconds
from strandline.errors import StrandlineError
from strandline.forks import survives_forks
from strandline.shards.deciding.machine import Machine
from strandline.shards.state.state import State
from strandline.shards.state.trace import Merged, worth_merging
from strandline.shards.upkeep.collection import ROLLUP_EVERY, bury_shard, collect, write_rollup
from strandline.shards.upkeep.compaction import compact_once

HEARTBEATS_A_LEASE = 4
LOOKS_EVERY_S = 0.2
"""How often leases are checked for renewal; a reader with a short lease can be added at any time."""
PASSES_MAX = 16
"""Merges in one go; what is left is found after the next append."""


def is_due(state: State) -> bool:
    """Whether a shard wants upkeep; cheap enough to ask after each change."""
    if state.is_tombstone:
        return True
    return _rollup_is_due(state) or bool(worth_merging(state.batches))


def _rollup_is_due(state: State) -> bool:
    return state.seqno - max(state.rollups, default=0) >= ROLLUP_EVERY


def maintain(machine: Machine) -> None:
    """All upkeep that is due. Anybody may run it, and stop anywhere."""
    state = machine.refreshed()
    if state.is_tombstone:
        bury_shard(machine)
        return
    try:
        for _ in range(PASSES_MAX):
            done = compact_once(machine)
            if done is None or done.outcome is not Merged.DONE:
                break
    finally:  # a merge that fails must not let the log grow
        if _rollup_is_due(machine.refreshed()):
            write_rollup(machine)
            collect(machine)


class Renewable(Protocol):
    """Something with a lease."""

    lease_s: int

    def heartbeat(self, *, timeout_s: float) -> bool: ...


class Heartbeats:
    """Renews the leases of all readers of one repository in this process, from one thread that ends with the last."""

    def __init__(self, background: Background, name: str, clock: Clock) -> None:
        self.background = background
        self._name = name
        self._clock = clock
        self._runs = 0
        self._due_us: WeakKeyDictionary[Renewable, Microseconds] = WeakKeyDictionary()
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, reader: Renewable) -> None:
        with self._lock:
            self._due_us[reader] = self._next_us(reader)
            if self._is_running:
                return
            self._is_running = True
            self._runs += 1
            key = ("heartbeats", self._name, str(self._runs))
        self.background.start(key, self._run)

    def discard(self, reader: Renewable) -> None:
        with self._lock:
            self._due_us.pop(reader, None)

    def _next_us(self, reader: Renewable) -> Microseconds:
        return self._clock.now_us() + reader.lease_s * 1_000_000 // HEARTBEATS_A_LEASE

    def _run(self) -> None:
        try:
            while (readers := self._due()) is not None:
                for reader in readers:
                    try:
                        reader.heartbeat(timeout_s=reader.lease_s / HEARTBEATS_A_LEASE)
                    except StrandlineError:
                        continue  # tried again; three of four may fail
                del readers
                if self.background.pause(LOOKS_EVERY_S):
                    return
        finally:
            with self._lock:
                self._is_running = False

    def _due(self) -> list[Renewable] | None:
        """The readers a quarter of whose lease has passed; None if there are no readers any more."""
        now_us = self._clock.now_us()
        with self._lock:
            if not self._due_us:
                self._is_running = False  # under the lock: the next one starts another thread
                return None
            due = [reader for reader, at_us in self._due_us.items() if at_us <= now_us]
            for reader in due:
                self._due_us[reader] = self._next_us(reader)
            return due
