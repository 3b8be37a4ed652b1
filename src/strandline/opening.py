"""Opening a lake: its folder, its key-value store and its root record, found or made."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from strandline.blob import BlobStore
from strandline.blob import open_store as open_blobs
from strandline.clock import Clock
from strandline.core.namespace import MARKER, read_marker
from strandline.envelope import FORMAT_VERSION, decode, encode
from strandline.errors import Advice, InvalidSettings, LakeNotFound, StoreUnavailable, some_paths
from strandline.ids import new_id
from strandline.kv import ABSENT, PredicateFailed, Store, open_store
from strandline.kv.tenant import TenantStore
from strandline.settings import DEFAULT_TENANT, METADATA_FILE, Settings

ROOT = b"lake", b"format"
"""Partition and key of the root record of a lake."""
LAKES = b"lakes"
"""Partition of all tenants: the ids of the lakes of this key-value store."""


class LakeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a lake: the format of everything in it."""

    format: int
    lake_id: str
    created_at: int


def open_metadata(settings: Settings, clock: Clock, *, create: bool = False, new: bool = False) -> TenantStore:
    """Open the key-value store of a lake, and find the lake's root record in it, or make it.

    Args:
        create: make the lake if it does not exist.
        new: make it although objects of an earlier one lie where its objects are to be.
    """
    if settings.folder is not None:
        _prepare_folder(settings, create)
    shared = _open_kv(settings.kv.reveal())
    kv = TenantStore(shared, settings.tenant)
    try:
        find_or_make(kv, shared, settings, clock, create, new)
    except BaseException:
        kv.close()
        raise
    return kv


_memory: dict[str, Store] = {}


def _open_kv(url: str) -> Store:
    """Open a store; a named one in memory is shared by the whole process, so that handles can be pickled."""
    if url.startswith("memory:"):
        if url not in _memory:
            _memory[url] = open_store(url)
        return _memory[url]
    return open_store(url)


def _prepare_folder(settings: Settings, create: bool) -> None:
    folder = settings.folder
    assert folder is not None
    if not str(settings.kv).startswith("sqlite:"):
        return
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        elif not (folder / METADATA_FILE).exists():
            raise _no_lake(str(folder))
    except PermissionError as error:
        raise _no_permission(folder) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidSettings(f"{str(folder)!r} is not a folder.", next="Give the path of a folder.") from error
    except OSError as error:
        raise InvalidSettings(
            f"A lake cannot be made in {str(folder)!r}: {error.strerror}.", next="Give the path of another folder."
        ) from error
    effective = os.access in os.supports_effective_ids
    is_new = not (folder / METADATA_FILE).exists()
    if not os.access(folder, os.R_OK | os.X_OK | (os.W_OK if is_new else 0), effective_ids=effective):
        raise _no_permission(folder)


def _no_permission(folder: Path) -> StoreUnavailable:
    return StoreUnavailable(
        f"This user may not use the folder {str(folder)!r}.",
        happened="no",
        next="Reading a lake takes the right to read its folders and files; making or changing one, to write them too.",
    )


def _no_lake(place: str) -> LakeNotFound:
    return LakeNotFound(
        f"There is no lake at {place}.",
        next=Advice(
            "Check the place; create=True, or `strandline init`, makes a lake there.",
            command="Check the place; `strandline init` makes a lake there.",
        ),
    )


def find_or_make(kv: Store, shared: Store, settings: Settings, clock: Clock, create: bool, new: bool = False) -> None:
    """Find the lake, or make it.

    Args:
        kv: what the tenant sees.
        shared: what all tenants share.
    """
    raw = kv.get(*ROOT)
    if raw is not None:
        decode(LakeRecord, raw, "the lake")
        return
    if not create:
        raise _no_lake(f"{settings.kv} for tenant {settings.tenant!r}")
    root = open_blobs(settings.blob)
    next(iter(root.list_pages("strandline-")), None)  # an object store that does not answer is found out now
    if not new:
        _refuse_hidden(shared, settings, root)
    record = LakeRecord(format=FORMAT_VERSION, lake_id=new_id(), created_at=clock.now_us())
    shared.set(LAKES, record.lake_id.encode(), settings.tenant.encode())
    try:
        kv.set_if(*ROOT, encode(record), ABSENT)
    except PredicateFailed:
        return  # somebody else made the lake at the same time


_OTHER_LAKE = (
    "Open it with the key-value store that it had, or restore a backup into another folder. If its objects are of no "
    "use any more, make a new lake beside them"
)


def _refuse_hidden(shared: Store, settings: Settings, root: BlobStore) -> None:
    """Raise if repositories lie where a new lake's are to be that no lake of this key-value store has: its metadata are
    gone, or are elsewhere.

    Only a folder is looked through; a bucket may hold many lakes, each with a key-value store of its own.
    """
    inside = root.local_path("x")
    if inside is None:
        return
    known = {id.decode() for id, _ in shared.scan(LAKES)}
    has_older = shared.get(DEFAULT_TENANT.encode() + b"/" + ROOT[0], ROOT[1]) is not None
    hidden = []
    for path in sorted(Path(inside).parent.glob(f"*/{MARKER}")):
        marker = read_marker(open_blobs(str(path.parents[1])))
        lake = "" if marker is None else marker.lake
        if lake not in known and (lake or not (known or has_older)):
            hidden.append(path.parents[1].name)
    if hidden:
        raise LakeNotFound(
            f"There is no lake in {settings.kv}, but {root.url} holds {some_paths(hidden)}: the "
            "metadata of a lake are gone, or lie somewhere else.",
            next=Advice(
                f"{_OTHER_LAKE}: new=True.",
                command=f"{_OTHER_LAKE}: `strandline init --new`.",
            ),
        )
