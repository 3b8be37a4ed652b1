"""What all handles of one repository share in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.blob import Resolver
from strandline.branch.cell import BranchCell
from strandline.branch.commits import CommitLog
from strandline.branch.stores import Stores
from strandline.branch.token_queue import sweep

SWEEP_EVERY_COMMITS = 200
"""How many commits of this process go by until it sweeps dropped tokens."""


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
    commits_since_sweep: int = 0

    def cell(self, name: str) -> BranchCell:
        with self.lock:
            return self.cells.setdefault(name, BranchCell(self.stores, name))

    def committed(self) -> None:
        """Count a commit, and now and then clean up after the earlier ones."""
        with self.lock:
            self.commits_since_sweep += 1
            due = self.commits_since_sweep >= SWEEP_EVERY_COMMITS
            if due:
                self.commits_since_sweep = 0
        if due:
            sweep(self.stores)
