"""Identifiers, and the rules for the names that people choose."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NewType

from strandline.errors import InvalidName

RepositoryId = NewType("RepositoryId", str)
BranchId = NewType("BranchId", str)
CommitId = NewType("CommitId", str)
StagingToken = NewType("StagingToken", str)
RangeId = NewType("RangeId", str)
"""Content hash of a range: equal rows give equal ids on any machine."""
MetaRangeId = NewType("MetaRangeId", str)
"""Content hash of a metarange."""

ID_BYTES = 10
PATH_MAX_BYTES = 1024
NAME_MAX_CHARS = 256

_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9-]{2,62}", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_COMMIT_LIKE = re.compile(r"[0-9a-f]{40}", re.ASCII)


random_bytes: Callable[[int], bytes] = os.urandom
"""Where identifiers come from; the simulator puts a seeded source here, so that a schedule replays exactly."""


def new_id() -> str:
    """A fresh random identifier: 20 hexadecimal digits, 80 bits."""
    return random_bytes(ID_BYTES).hex()


def check_repository_name(name: str) -> str:
    if not isinstance(name, str) or not _REPOSITORY.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a repository name.",
            next="Use 3 to 63 characters: lower-case letters, digits and '-', not starting with '-'.",
        )
    return name


def check_ref_name(name: str, kind: str = "branch") -> str:
    if (
        not isinstance(name, str)
        or not _REF.fullmatch(name)
        or len(name) > NAME_MAX_CHARS
        or _COMMIT_LIKE.fullmatch(name)
    ):
        raise InvalidName(
            f"{name!r} is not a {kind} name.",
            next=f"Use 1 to {NAME_MAX_CHARS} letters, digits, '-', '_' and '.', starting with a letter, a digit or "
            "'_'; no '/', and not the 40 hexadecimal digits of a commit id.",
        )
    return name


def check_committer(name: str) -> str:
    """The committer, as commits name it: a short text, since every record of a move of a head repeats it."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX_CHARS:
        raise InvalidName("A committer is not such a name.", next=f"Use a text of 1 to {NAME_MAX_CHARS} characters.")
    return name


def check_path(path: str) -> bytes:
    """The UTF-8 bytes of an object's path, the key under which it is staged and sorted."""
    rule = f"A path is 1 to {PATH_MAX_BYTES} bytes of UTF-8 without NUL."
    if not isinstance(path, str):
        raise InvalidName(f"A path must be a str, not {type(path).__name__}.", next=rule)
    try:
        key = path.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"{path!r} cannot be written as UTF-8.", next=rule) from None
    if not 1 <= len(key) <= PATH_MAX_BYTES or b"\0" in key:
        raise InvalidName(f"{path[:80]!r} ({len(key)} bytes) is not a path of an object.", next=rule)
    return key


def check_paths(paths: Sequence[str]) -> list[bytes]:
    """`check_path` of many, without a call for each of them: staging in bulk spends most of its own time here."""
    if not paths:
        return []
    if set(map(type, paths)) == {str} and "\0" not in "".join(paths):
        try:
            keys = list(map(str.encode, paths))
        except UnicodeEncodeError:
            keys = [b""]
        if all(keys) and max(map(len, keys)) <= PATH_MAX_BYTES:
            return keys
    return [check_path(path) for path in paths]  # says which of them is wrong


def check_prefix(prefix: str) -> bytes:
    """Like `check_path`, but the empty prefix is fine: it means everything."""
    return check_path(prefix) if prefix else b""


def keys_behind(prefix: str, after: str) -> tuple[bytes, bytes | None]:
    """Where names with a prefix begin that come behind another one, and where they end."""
    start = check_prefix(after) + b"\0" if after else b""
    return max(check_prefix(prefix), start), encoded(prefix_end(prefix))


def keys_below(prefix: bytes) -> tuple[bytes, bytes]:
    """The bounds of all keys that begin with a prefix, which is not empty, as scans of a key-value store take them."""
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])


def prefix_end(prefix: str) -> str | None:
    """The smallest path above all paths that start with `prefix`, or None if there is no such path.

    Counted in code points, whose order is that of their UTF-8 bytes; surrogates are none.
    """
    for at in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[at])
        if point < 0x10FFFF:
            return prefix[:at] + chr(0xE000 if point == 0xD7FF else point + 1)
    return None


def encoded(path: str | None) -> bytes | None:
    return None if path is None else path.encode()
