"""A file of SQLite for those who may only read it, and when the disk is full.

A file in write-ahead mode is read through two more files, its log and the index of that, which SQLite makes if they are
missing. Where it cannot make them, it can still read a file as one that nobody changes; whether that is so is for the
caller to see to. It is so as long as there is nothing in the log and the file stays what it was: each read looks at
both again when it is done, and is repeated if they changed.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from strandline.errors import StoreUnavailable

NOT_WRITABLE = (
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
LOOK = "SELECT count(*) FROM (SELECT k FROM kv LIMIT 1)"
"""Makes SQLite open what it needs for reading."""


def is_not_writable(error: Exception) -> bool:
    """Whether SQLite failed since it cannot write, be it the file, the files beside it, or anything on the disk."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in NOT_WRITABLE


@dataclass(frozen=True, slots=True)
class Unchanged:
    """What a file was like when it was opened as one that nobody changes."""

    path: Path
    seen: tuple[int, int, int, int]

    @classmethod
    def now(cls, path: Path) -> Unchanged | None:
        """None if there is something in the log."""
        try:
            if os.stat(f"{path}-wal").st_size:
                return None
        except FileNotFoundError:
            pass
        found = os.stat(path)
        return cls(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))

    def holds(self) -> bool:
        """Whether nobody has written since: a writer fills the log first, and empties it into the file."""
        try:
            return Unchanged.now(self.path) == self
        except OSError:
            return False


def connect_reading(path: Path, timeout_s: float) -> tuple[sqlite3.Connection, Unchanged | None]:
    """A connection that only reads, and what it relies on: nothing if others keep the log and its index open.

    Raises:
        StoreUnavailable: the log holds writes, and its index cannot be made.
        sqlite3.Error, OSError: the file cannot be read.
    """
    try:
        return _open(path, "mode=ro", timeout_s), None
    except sqlite3.Error as error:
        if not is_not_writable(error):
            raise
        unchanged = Unchanged.now(path)
        if unchanged is None:
            raise StoreUnavailable(
                f"The last writes to {path} lie in its log ({path.name}-wal), which cannot be read without writing "
                "beside it.",
                happened="no",
                next="Free some space on the disk if it is full; else give this user the right to write the folder, or "
                "let a user with that right open the lake once.",
            ) from error
    return _open(path, "mode=ro&immutable=1", timeout_s), unchanged


def _open(path: Path, options: str, timeout_s: float) -> sqlite3.Connection:
    place = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(place, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(LOOK).fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
