"""What all handles of one repository share in one process."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.blob import Resolver
from strandline.branch.cell import BranchCell
from strandline.branch.commits import CommitLog
from strandline.branch.stores import Stores
from strandline.branch.token_queue import sweep

SWEEP_EVERY_COMMITS = 100
"""One commit in so many, by chance, sweeps dropped tokens: so do many short processes with a commit each."""
log = logging.getLogger("strandline")


@dataclass(slots=True)
class RepositoryCore:
    """Stores, commits, branch records and addresses of one repository. Safe to share between threads.

    Attributes:
        reopen: makes the same repository in another process, from nothing secret: (callable, arguments).
    """

    name: str
    stores: Stores
    commits: CommitLog
    resolver: Resolver
    reopen: tuple[Callable[..., Any], tuple[Any, ...]]
    cells: dict[str, BranchCell] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_sweeping: bool = False

    def cell(self, name: str) -> BranchCell:
        with self.lock:
            return self.cells.setdefault(name, BranchCell(self.stores, name))

    def committed(self) -> None:
        """Now and then, after a commit, clean up after earlier ones: beside the caller, who waits for nothing."""
        if random.random() * SWEEP_EVERY_COMMITS >= 1:
            return
        with self.lock:
            if self.is_sweeping:
                return
            self.is_sweeping = True
        threading.Thread(target=self._sweep, name="strandline-sweep", daemon=True).start()

    def _sweep(self) -> None:
        try:
            sweep(self.stores)
        except Exception as error:  # the next sweep goes on where this one stopped
            log.info("sweep of %s stopped: %s", self.name, error)
        finally:
            self.is_sweeping = False
