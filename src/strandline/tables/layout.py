"""Paths of data files: what a logical path says of partitions, and where new files go physically."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from strandline.core.physical import PHYSICAL_ROOT

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
UNNAMED = ("", NULL_PARTITION)
"""Texts that would come back as null if they named the folder of a partition."""
FOLDER_MAX_BYTES = 255
"""What file systems allow for the name of a folder."""
ESCAPED = "[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]"
"""What Spark escapes in the name of a partition's folder, each as three characters; Java reads this class, too."""
OVERWRITE_NAME = "_strandline_overwrite.json"
"""An object in each folder that an overwrite replaced, different for each write. File names never collide, so without
it two branches that replaced the same partition would merge into both; with it they conflict."""

_COMPRESSIONS = ("gz", "gzip", "bz2", "deflate", "snappy", "lz4", "zst", "zstd", "br", "xz")
_SUFFIX = re.compile(rf"\.([a-z0-9]+)(?:\.(?:{'|'.join(_COMPRESSIONS)}))?$")


def is_data_file(name: str, file_format: str) -> bool:
    """Whether a file below a table, or one that Spark left in a write's folder, belongs to the table's data."""
    parts = name.split("/")
    found = _SUFFIX.search(parts[-1])
    if found is None or found[1] != file_format:
        return False
    return not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Whether a path below a table is not for readers: a part begins with "_" or ".", and is not a column's folder."""
    *folders, last = name.split("/")
    return last.startswith(("_", ".")) or any(part.startswith(("_", ".")) and "=" not in part for part in folders)


def folder_of(path: str) -> str | None:
    """The table, or the partition of one, that a mark of an overwrite lies in; None if the object is no mark."""
    return path.removesuffix("/" + OVERWRITE_NAME) if path.endswith("/" + OVERWRITE_NAME) else None


def is_skipped_by_spark(physical_address: str, logical: str) -> bool:
    """Whether Spark would leave a physical file out without a word, or take it for something else.

    It skips names that begin with "_" or ".", also in an explicit list, and knows compression by the last suffix only.
    """
    name = physical_address.partition("?")[0].rpartition("/")[2]
    if name.startswith(("_", ".")) or name.endswith("._COPYING_"):
        return True
    last, wanted = name.rpartition(".")[2], logical.rpartition(".")[2]
    return last != wanted and (wanted in _COMPRESSIONS or last in _COMPRESSIONS)


def partition_folders(relative: str) -> tuple[str, ...]:
    """The `name=value` folders of a path below a table."""
    return tuple(part for part in relative.split("/")[:-1] if "=" in part)


def partition_names(relative: str) -> tuple[str, ...]:
    """The columns that the folders of a path below a table name, outermost first."""
    return tuple(unquote(part.partition("=")[0]) for part in partition_folders(relative))


def partition_values(relative: str, columns: Sequence[str]) -> dict[str, str | None]:
    """The partition values of a path below a table, as text; a column that is not in the path is null."""
    found: dict[str, str | None] = dict.fromkeys(columns)
    for folder in partition_folders(relative):
        name, _, value = folder.partition("=")
        if unquote(name) in found:
            found[unquote(name)] = None if value == NULL_PARTITION else unquote(value)
    return found


def in_own_place(relative: str, physical_address: str) -> bool:
    """Whether a file's physical folders tell the same partition values as its logical ones."""
    parts = physical_address.split("/")
    if len(parts) < 4 or parts[0] != PHYSICAL_ROOT or not parts[1].startswith("sl_branch="):
        return False
    return parts[2].startswith("sl_write=") and tuple(parts[3:-1]) == partition_folders(relative)
