"""What is on record about users, groups, policies and keys, and the rules for their names."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from strandline.clock import Microseconds
from strandline.errors import InvalidName

NAME_MAX_BYTES = 127
"""Names stand in keys beside each other: the longest key of an index holds two."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Effect = Literal["allow", "deny"]
Condition = dict[str, dict[str, tuple[str, ...]]]
"""By operator, such as IpAddress, and by field, such as SourceIp: the texts of which one has to match."""


class Statement(msgspec.Struct, frozen=True):
    """Part of a policy: what it does to some actions on some resources.

    Attributes:
        action: patterns such as `fs:Read*`; `*` stands for any text and `?` for a character.
        resource: a pattern such as `arn:lakefs:fs:::repository/nyc/object/*`, `*` for everything, or a JSON array of
            patterns. `${user}` stands for the name of the caller.
        condition: what must hold besides.
    """

    effect: Effect
    action: tuple[str, ...]
    resource: str
    condition: Condition = {}


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A person or a program.

    Attributes:
        sessions_from: tokens that were issued before are void.
        is_leaving: being deleted; nothing can be attached to it any more.
    """

    name: str
    created_at: Microseconds
    friendly_name: str = ""
    email: str = ""
    sessions_from: Microseconds = 0
    is_leaving: bool = False


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Users who may do the same."""

    name: str
    created_at: Microseconds
    description: str = ""
    is_leaving: bool = False


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Statements under a name, which users and groups are given."""

    name: str
    created_at: Microseconds
    statements: tuple[Statement, ...]
    is_leaving: bool = False


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """An access key of a user.

    Attributes:
        id: the access key id, which is public.
        sealed: the secret, encrypted: signatures can only be checked with the secret itself.
        sealed_with: the id of the key that it is encrypted with.
    """

    id: str
    user: str
    sealed: bytes
    sealed_with: str
    created_at: Microseconds


def check_name(name: object, kind: str) -> str:
    """Refuse what cannot name a user, a group or a policy."""
    is_fine = (
        isinstance(name, str)
        and name == name.strip()
        and not _CONTROL.search(name)
        and not set(name) & {"/", "%"}
        and _is_short(name)
    )
    if not is_fine:
        raise InvalidName(
            f"{str(name)[:80]!r} is not the name of a {kind}.",
            next=f"Use 1 to {NAME_MAX_BYTES} bytes without '/', '%', control characters and spaces at the ends.",
        )
    return str(name)


def _is_short(name: str) -> bool:
    try:
        return 1 <= len(name.encode()) <= NAME_MAX_BYTES
    except UnicodeEncodeError:
        return False
