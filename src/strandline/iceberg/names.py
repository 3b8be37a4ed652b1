"""Where namespaces, tables and their files lie: paths on the branch, and keys in its storage namespace. Pure.

A table is one object on the branch, its pointer: the bytes are the newest metadata, the physical address is the
metadata's location. The files of a table lie below `ice/`, which collectors of older versions never list.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from strandline.core.iceberg_files import POINTER as POINTER
from strandline.core.physical import ICEBERG_ROOT as FILES
from strandline.errors import InvalidName
from strandline.ids import check_path, new_id

Identifier = tuple[str, ...]
"""The levels of a namespace, and for a table its name behind them."""
ROOT = "tables/"
VIEW = "_iceberg.view.json"
NAMESPACE = "_namespace.json"
METADATA_SUFFIX = ".metadata.json"
NATIVE = "_strandline_table.json"
LEVELS_MAX = 16
_RESERVED = "_strandline"
_CONTROL = re.compile("[\x00-\x1f\x7f/]")
_KEY = re.compile(FILES + r"/([0-9a-z]{20})/", re.ASCII)


def check_identifier(identifier: Sequence[str], what: str = "table") -> Identifier:
    """The levels of a name; raises `InvalidName` if one could not be a folder on a branch."""
    levels = tuple(identifier)
    if not 1 <= len(levels) <= LEVELS_MAX or (what != "namespace" and len(levels) == 1):
        raise InvalidName(f"{'.'.join(levels)[:80]!r} is not the name of a {what}.", next="Write namespace.table.")
    for level in levels:
        if not isinstance(level, str) or level in ("", ".", "..") or _CONTROL.search(level):
            raise InvalidName(
                f"{str(level)[:80]!r} cannot be a part of a {what}'s name.",
                next="Use names without slashes and control characters.",
            )
        if level.startswith(_RESERVED) or level in (POINTER, VIEW, NAMESPACE):
            raise InvalidName(f"{level[:80]!r} is a name of strandline's own.", next="Use another name.")
    check_path(ROOT + "/".join(levels) + "/" + POINTER)
    return levels


def folder_of(levels: Identifier) -> str:
    """The folder of a namespace or a table; of no levels, the root of all."""
    return ROOT + "".join(f"{level}/" for level in levels)


def pointer_of(table: Identifier) -> str:
    """The path of a table on a branch."""
    return folder_of(table) + POINTER


def view_of(view: Identifier) -> str:
    """The path of a view on a branch."""
    return folder_of(view) + VIEW


def marker_of(namespace: Identifier) -> str:
    """The path of a namespace's properties on a branch."""
    return folder_of(namespace) + NAMESPACE


def shown(identifier: Identifier) -> str:
    """A name for people."""
    return ".".join(identifier)


def new_table_key() -> str:
    """What the files of a new table lie below: drawn here, so that no client chooses another table's."""
    return new_id()


def table_key_of(physical_address: str) -> str | None:
    """The key of the table whose metadata lies at an address; None if it lies elsewhere."""
    found = _KEY.match(physical_address)
    return found[1] if found else None


def part_of(key: str) -> str:
    """What a file of a table lies below there: the part of the branch or the transaction that wrote it, or ""."""
    found = _KEY.match(key)
    return key[found.end() :].partition("/")[0] if found else ""


def new_uuid() -> str:
    """A random UUID."""
    return str(uuid.UUID(hex=(new_id() + new_id())[:32], version=4))


def files_of(table_key: str) -> str:
    """What all files of a table lie below, of every branch."""
    return f"{FILES}/{table_key}/"


def files_below(table_key: str, part: str) -> str:
    """Where the files of a table lie that a branch or a transaction writes, without a slash at the end."""
    return f"{FILES}/{table_key}/{part}"


def new_metadata_key(table_key: str, part: str, version: int) -> str:
    """A key for the next metadata of a table, as Iceberg's readers expect them: number, dash, something unique."""
    return f"{files_below(table_key, part)}/metadata/{version:05d}-{new_uuid()}{METADATA_SUFFIX}"


def version_of(physical_address: str) -> int:
    """The number in the name of a metadata file; -1 if it has none."""
    number = physical_address.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
