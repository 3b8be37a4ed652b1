"""What is imported: sources, and rows for what they list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pyarrow as pa

from strandline.blob import BlobInfo, BlobNotFound, BlobStore
from strandline.core.namespace import MARKER
from strandline.errors import InvalidName, NotFound, UsageError, some_paths
from strandline.ids import PATH_MAX_BYTES, check_path, check_prefix
from strandline.tree.rows import SCHEMA


class NothingNew(Exception):
    """The head of the branch has all that is to be imported."""


@dataclass(frozen=True, slots=True)
class ImportSource:
    """What is imported to where.

    Attributes:
        url: a local folder, or a URL such as s3://bucket/prefix; of an object, its whole URL.
        destination: the folder on the branch; of an object, its whole path.
        is_object: one object instead of everything below a prefix.
    """

    url: str
    destination: str = ""
    is_object: bool = False

    @property
    def below(self) -> str:
        """The prefix that it fills; of an object, its path."""
        is_folder = not self.destination or self.destination.endswith("/")
        return self.destination if self.is_object or is_folder else self.destination + "/"

    def check_destination(self) -> None:
        """Raise `InvalidName` if the destination is not a path, or a prefix of paths."""
        if self.is_object:
            check_path(self.destination)
        else:
            check_prefix(self.below)

    @property
    def shown(self) -> str:
        """The URL without options, which are nobody's business who reads an error."""
        return self.url.partition("?")[0] if "://" in self.url else self.url

    def split(self) -> tuple[str, str]:
        """The root to open, and the prefix, or the key of the object, in it."""
        if not self.is_object:
            return split_source(self.url)
        parts = urlsplit(self.url)
        is_local = parts.scheme in ("", "file")
        root, _, key = parts.path.rpartition("/") if is_local else ("", "", parts.path.strip("/"))
        if not key:
            raise UsageError(f"{self.url!r} names no object.", next="Give the whole URL, as s3://bucket/key.")
        above = urlunsplit(parts._replace(path=f"{root}/" if root or parts.scheme else "."))
        return split_source(above)[0], unquote(key) if parts.scheme == "file" else key


def no_object(source: ImportSource) -> NotFound:
    return NotFound(f"{source.shown!r} has no object.", next="Check the folder or the URL.")


def below_one(prefixes: Iterable[str]) -> str | None:
    """A prefix that begins with another one, or None."""
    ordered = sorted(prefixes)
    return next((right for left, right in pairwise(ordered) if right.startswith(left)), None)


def references(store: BlobStore, prefix: str, below: str, found: Sequence[BlobInfo]) -> pa.Table:
    """Rows for blobs, sorted by path.

    Args:
        prefix: of their keys, for which `below` stands in their paths; a key that is all of it has the path `below`.

    Raises:
        UsageError: they lie in the storage namespace of a repository.
        InvalidName: a key is not a path.
    """
    for info in found:
        if info.key.endswith(MARKER):
            raise _in_a_namespace(f"{store.url.partition('?')[0]}/{info.key}")
    paths = [below + info.key[len(prefix) :] for info in found]
    _refuse_bad_paths(paths)
    order = sorted(range(len(paths)), key=paths.__getitem__)
    infos: list[BlobInfo] = [found[i] for i in order]
    base, mark, options = store.url.partition("?")  # endpoint and region belong to the address
    base = base.rstrip("/") + "/"
    addresses = [base + quote(info.key, safe="/=:@+,~()!'$&*;") + mark + options for info in infos]
    return pa.Table.from_arrays(
        [
            pa.array([paths[i] for i in order], pa.string()),
            pa.array(addresses, pa.string()),
            pa.array([info.size for info in infos], pa.int64()),
            pa.array([f"etag:{info.etag}" for info in infos], pa.string()),
            pa.array([info.modified_at_us for info in infos], pa.int64()).cast(SCHEMA.field("modified_at").type),
            *[pa.nulls(len(infos), pa.string())] * 3,
        ],
        schema=SCHEMA,
    )


def refuse_namespaces(store: BlobStore, prefix: str) -> None:
    """Raise if a place lies in the storage namespace of a repository, of any lake: its own collector would delete
    there, and know nothing of a reference by URL."""
    folders = prefix.rstrip("/").split("/") if prefix else []
    for depth in range(len(folders), -1, -1):
        key = "/".join([*folders[:depth], MARKER])
        with suppress(BlobNotFound):
            store.head(key)
            raise _in_a_namespace(f"{store.url.partition('?')[0]}/{key}")
    above = store.local_path("x")
    for folder in Path(os.path.realpath(above)).parents[1:] if above is not None else ():
        if (folder / MARKER).is_file():
            raise _in_a_namespace(str(folder / MARKER))


def _in_a_namespace(marker: str) -> UsageError:
    return UsageError(
        f"What is to be imported belongs to a repository: {marker} marks its storage namespace, whose garbage is "
        "collected.",
        next="Within a repository use copy; from another one export first, and import the folder.",
    )


def _refuse_bad_paths(paths: list[str]) -> None:
    """Refuse what could never be read or deleted again by its path."""
    bad = [path for path in paths if not path.isprintable() and ("\0" in path or not is_text(path))]
    bad += [
        path
        for path in paths
        if len(path) > PATH_MAX_BYTES // 4 and len(path.encode(errors="replace")) > PATH_MAX_BYTES
    ]
    if bad:
        shown = [path.encode(errors="backslashreplace").decode() for path in bad]
        raise InvalidName(
            f"{len(bad)} objects have no valid path: {some_paths(shown)}.",
            next=f"A path is 1 to {PATH_MAX_BYTES} bytes of UTF-8 without NUL; rename them, or import a part.",
        )


def is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def split_source(source: str) -> tuple[str, str]:
    """The root to open and the prefix to list: a folder, or a prefix of a bucket taken as one, and everything in it."""
    if "\0" in source:
        raise NotFound(f"There is no folder {source!r}.", next="Give a folder, or a URL such as s3://bucket/prefix.")
    if "://" not in source:
        try:
            folder = Path(source).resolve()
        except (RuntimeError, OSError) as error:  # which of the two depends on the version of Python
            raise NotFound(f"{source!r} is a link that leads to itself.", next="Give a folder.") from error
        if not folder.is_dir():
            raise NotFound(
                f"There is no folder {source!r}.", next="Give a folder, or a URL such as s3://bucket/prefix."
            )
        return str(folder), ""
    parts = urlsplit(source)
    if parts.scheme == "file":
        return source, ""
    folder_prefix = parts.path.strip("/")
    return urlunsplit(parts._replace(path="/")), folder_prefix + "/" if folder_prefix else ""
