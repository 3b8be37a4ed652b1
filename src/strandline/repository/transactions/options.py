"""What a job says of its transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from strandline.branch.locking import LOCK_PATIENCE_S

OnStaged = Literal["fail", "keep"]
"""What publishing does about changes that others have staged, uncommitted, in the ranges that it overwrites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """The arguments of `branch.transaction(…)`, which says what each of them is for."""

    writer: str
    message: str
    token: str = ""
    node: str | None = None
    expect_unchanged: tuple[str, ...] = ()
    on_staged: OnStaged = "fail"
    position: str | None = None
    max_uncommitted_bytes: int | None = None
    metadata: Mapping[str, str] | None = None
    committer: str | None = None
    locks: tuple[str, ...] = ()
    shared: bool = False
    lock_patience_s: float = LOCK_PATIENCE_S
