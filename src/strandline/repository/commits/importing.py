"""Import by reference: a commit that points to objects where they are."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from strandline.blob import BlobInfo, BlobNotFound, BlobStore, open_store
from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit, Draft
from strandline.branch.heads import NewHead, set_head
from strandline.branch.rules.record import refuse_blocked
from strandline.core.namespace import MARKER
from strandline.core.repository_core import RepositoryCore
from strandline.errors import InvalidName, NotFound, UsageError, some_paths
from strandline.ids import PATH_MAX_BYTES, check_prefix, prefix_end
from strandline.progress import Progress
from strandline.tree.apply import apply
from strandline.tree.diff import Difference
from strandline.tree.rows import SCHEMA, Changes

BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did: the number of objects found, and the commit; None if every one was there already."""

    objects: int
    commit: Commit | None


class _NothingNew(Exception):
    pass


def import_objects(
    core: RepositoryCore,
    at: BranchAt,
    source: str,
    destination: str,
    draft: Draft,
    progress: Progress,
) -> ImportResult:
    """Commit references to everything below `source` at paths below `destination`."""
    if destination and not destination.endswith("/"):
        destination += "/"
    check_prefix(destination)
    changes = _references(source, destination, progress)
    if not len(changes):
        raise NotFound(f"There is no object at {source!r}.", next="Check the folder or the URL.")
    low, end = destination, prefix_end(destination)

    def in_the_way(staged: Difference) -> list[str]:
        paths: list[str] = staged.paths.to_pylist()
        return [path for path in paths if path >= low and (end is None or path < end)]

    def compute(head: Commit) -> NewHead:
        batches = (changes.slice(at, min(at + BATCH_ROWS, len(changes))) for at in range(0, len(changes), BATCH_ROWS))
        applied = apply(core.stores.trees, core.commits.tree(head.id), batches)
        if not applied.changed:
            raise _NothingNew
        return NewHead(draft.commit(applied.tree, (head,)), applied.tree)

    try:
        record = set_head(at, lambda now: refuse_blocked(now, "commit", at.name), "import", compute, in_the_way)
    except _NothingNew:
        return ImportResult(len(changes), None)
    core.committed()
    return ImportResult(len(changes), record)


def _references(source: str, destination: str, progress: Progress) -> Changes:
    """Rows for all blobs of a source, sorted by path."""
    root, prefix = split_source(source)
    store = open_store(root)
    refuse_namespaces(store, prefix)
    found: list[BlobInfo] = []
    for page in store.list_pages(prefix):
        found += page
        progress("listing", len(found), None)
    for info in found:
        if info.key.endswith(MARKER):
            raise _in_a_namespace(f"{store.url.partition('?')[0]}/{info.key}")
    paths = [destination + info.key[len(prefix) :] for info in found]
    _refuse_bad_paths(paths)
    order = sorted(range(len(paths)), key=paths.__getitem__)
    infos: list[BlobInfo] = [found[i] for i in order]
    base, mark, options = store.url.partition("?")  # endpoint and region belong to the address
    base = base.rstrip("/") + "/"
    addresses = [base + quote(info.key, safe="/=:@+,~()!'$&*;") + mark + options for info in infos]
    rows = pa.Table.from_arrays(
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
    return Changes(rows, np.zeros(len(infos), np.bool_))


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
    bad = [path for path in paths if not path.isprintable() and ("\0" in path or not _is_text(path))]
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


def _is_text(path: str) -> bool:
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
