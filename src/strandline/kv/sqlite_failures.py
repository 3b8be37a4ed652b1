"""What went wrong with a file of SQLite, in words: what happened, whether anything was changed, and what to do next."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from strandline.errors import NOTHING_CHANGED, Corrupted, StorageError, StoreUnavailable
from strandline.kv.sqlite_reading import is_not_writable

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's transaction."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def failed(path: Path, error: sqlite3.Error | OSError, happened: str) -> StorageError:
    """The error of a call that SQLite, or the disk, did not do."""
    if getattr(error, "sqlite_errorcode", None) in DAMAGED:
        return Corrupted(
            f"{path} is damaged, or is not a database of SQLite: {error}.",
            safe=NOTHING_CHANGED if happened == "no" else "It is unknown whether the write took effect.",
            next="Restore a backup into a new lake (`strandline restore`); keep this file and what lies beside it.",
        )
    advice = "Look at the disk, then repeat the call."
    if "full" in str(error) or (is_not_writable(error) and _is_disk_full(path)):
        advice = "Free some space on the disk, then repeat the call."
    elif "locked" in str(error):
        advice = f"Another process held the write lock for {BUSY_TIMEOUT_S:.0f} s; repeat the call."
    elif isinstance(error, PermissionError) or "readonly" in str(error) or "unable to open" in str(error):
        advice = "Give this user the right to write the folder and its files."
    return StoreUnavailable(
        f"SQLite could not use {path}: {error}.",
        happened="no" if happened == "no" else "unknown",
        next=advice,
    )


def _is_disk_full(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False


def about_to_fork(path: Path) -> StoreUnavailable:
    """The error of a call that comes while the process forks."""
    return StoreUnavailable(
        f"{path} cannot be used by what runs right before a fork.",
        happened="no",
        next="Use the lake before or after the fork.",
    )


def lost(path: Path) -> StoreUnavailable:
    """The error of a write in whose middle the process forked, in the child."""
    return StoreUnavailable(
        f"A fork came while {path} was being written; this is the child, and the parent goes on with the write.",
        happened="unknown",
        next="Open the lake before the fork and use it after, or start processes with spawn.",
    )
