"""What all handles of one repository share in one process."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from strandline import forks, metrics
from strandline.background import Background
from strandline.blob import Resolver
from strandline.branch.at import BranchAt
from strandline.branch.cell import BranchCell
from strandline.branch.commits import CommitLog
from strandline.branch.compaction import compact
from strandline.branch.rules.record import ETAG_FORMAT, BranchRecord
from strandline.branch.sensor import Sensor
from strandline.branch.stores import Stores
from strandline.branch.token_queue import sweep
from strandline.envelope import NEWEST_FORMAT
from strandline.ids import BranchId

if TYPE_CHECKING:
    from strandline.shards.catalog import ShardCatalog
    from strandline.shards.deciding.service import ShardService
    from strandline.shards.shard import Shard

SWEEP_EVERY_COMMITS = 100
"""One commit of this many, by chance, sweeps dropped tokens; so many short processes sweep as often as a long one."""
COMPACT_AFTER_S = 1.0
"""How long a compaction waits before it begins: a commit, which does the same work, often follows deletions."""


@dataclass
class RepositoryCore:
    """Stores, commits, branch records and addresses of one repository. Safe to share between threads.

    Attributes:
        reopen: makes the same repository in another process, from nothing secret: (callable, arguments).
        open_ref: makes the handle of a ref. It is given from outside, since handles are made of all the rooms that
            share a core.
        compacts: whether a branch that needs it is compacted in the background.
        max_format: the newest format of records that may be written for a feature that needs it.
        shard_service: where shards are changed; None for here. `shard_upkeep` likewise.
        transactions: those that this process has begun and not ended, by branch and writer.
    """

    name: str
    stores: Stores
    commits: CommitLog
    resolver: Resolver
    reopen: tuple[Callable[..., Any], tuple[Any, ...]]
    open_ref: Callable[[RepositoryCore, str, Any], Any]
    upkeep: Background
    compacts: bool = True
    max_format: int = NEWEST_FORMAT
    shard_service: ShardService | None = None
    shard_upkeep: ShardService | None = None
    cells: dict[str, BranchCell] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=forks.lock)
    transactions: WeakValueDictionary[tuple[str, str], Any] = field(default_factory=WeakValueDictionary)

    @cached_property
    def shards(self) -> ShardCatalog:
        from strandline.shards.catalog import Services, ShardCatalog  # noqa: PLC0415 - most programs open no shard

        stores = self.stores
        return ShardCatalog(
            stores.kv,
            stores.shards,
            stores.trees.blobs,
            stores.clock,
            socket.gethostname(),
            self.upkeep,
            lambda name: (_reopen_shard, (self.reopen, name)),
            Services(self.name, self.shard_service, self.shard_upkeep, runs_upkeep=self.compacts),
        )

    @property
    def keeps_etags(self) -> bool:
        """Whether the lake's settings allow the format that entries with ETags need."""
        return self.max_format >= ETAG_FORMAT

    def cell(self, name: str) -> BranchCell:
        cell = self.cells.get(name)
        if cell is None:
            sensor = Sensor(self._worth_compacting, self.stores.clock) if self.compacts else None
            with self.lock:
                cell = self.cells.setdefault(name, BranchCell(self.stores, name, sensor))
        return cell

    def at(self, name: str, branch_id: BranchId, *, is_forced: bool = False) -> BranchAt:
        return BranchAt(self.cell(name), self.commits, branch_id, is_forced)

    def open(self, expression: str, target: Any = None) -> Any:
        """The handle of a ref expression, a `Branch` if it names one as it stands.

        Args:
            target: what the expression was resolved to; by default it is resolved now.
        """
        return self.open_ref(self, expression, target)

    def committed(self) -> None:
        """Now and then, after a commit, clean up after earlier ones: beside the caller, who waits for nothing."""
        if random.random() * SWEEP_EVERY_COMMITS < 1:
            self.upkeep.start(("sweep", self.name), lambda: sweep(self.stores))

    def _worth_compacting(self, name: str, seen: BranchRecord) -> None:
        self.upkeep.start(("compaction", self.name, name), lambda: self._compact(name, seen))

    def _compact(self, name: str, seen: BranchRecord) -> None:
        """Compact a branch that is as far as it was when that seemed worth it; this thread may begin much later."""
        at = self.at(name, seen.branch_id)
        self.upkeep.pause(COMPACT_AFTER_S)
        if _progress(at.read().branch) == _progress(seen):
            try:
                compact(at)
            except Exception:
                metrics.compactions("failed").inc()
                raise


def _progress(branch: BranchRecord) -> tuple[str, int]:
    """What a commit, a reset or a compaction changes."""
    return branch.head, branch.content_epoch


def _reopen_shard(repository: tuple[Callable[..., Any], tuple[Any, ...]], name: str) -> Shard:
    make, arguments = repository
    shard: Shard = make(*arguments).shard(name)
    return shard
