"""Taking objects out of a lake as plain files: into a new local folder, or below a prefix of an object store.

Everything that can be refused is found before anything is written. A local folder appears whole, by a rename, or not at
all. An object store has no rename: there a marker says that an export is under way or broke off, and the next call goes
on with it.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
from blake3 import blake3

from strandline import forks
from strandline.blob import BlobNotFound, BlobStore, open_store
from strandline.errors import Contention, StoreUnavailable, StrandlineError, UsageError, some_paths
from strandline.ids import CommitId, new_id
from strandline.parallel import in_parallel
from strandline.progress import Progress
from strandline.redaction import looks_like_url
from strandline.results.rows import ObjectInfo

COPY_BUFFER_BYTES = 1 << 20
DIGEST_CHARS = 40
UNDER_WAY = ".strandline-export"
"""Lies at the place in an object store until everything is there."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
Item = tuple[ObjectInfo, str]
"""An object, and its path below the place that it is exported to."""


def is_url(place: str | os.PathLike[str]) -> bool:
    return looks_like_url(os.fspath(place))


def local_only(place: str | os.PathLike[str], what: str) -> Path:
    """The path of a local file or folder; refuses a URL, which would become a folder of that name."""
    if is_url(place):
        raise UsageError(f"{what} goes to a local path, not to {os.fspath(place)!r}.", next="Use `export` for URLs.")
    return check_local(place)


def check_local(place: str | os.PathLike[str]) -> Path:
    """The path of a local file or folder that can have this name."""
    text = os.fspath(place)
    if "\0" in text or not text:
        raise UsageError(f"{text!r} is not a path: expected the name of a file or folder.", next="Give a name.")
    return Path(text)


def refuse_unfit(items: Sequence[Item]) -> None:
    """Raise for paths that cannot be files beside each other.

    Raises:
        UsageError: one leads out of the folder, or one is a file where another needs a folder.
    """
    paths = {relative for _, relative in items}
    bad = [relative for relative in paths if any(part in ("", ".", "..") for part in relative.split("/"))]
    if bad:
        raise _unfit(f"{some_paths(sorted(bad))} cannot be a file: it has empty, '.' or '..' parts.")
    for relative in sorted(paths):
        parts = relative.split("/")
        for depth in range(1, len(parts)):
            if (above := "/".join(parts[:depth])) in paths:
                raise _unfit(f"{above!r} is an object, and {relative!r} needs a folder of that name.")


def _unfit(what: str) -> UsageError:
    return UsageError(what, safe="Nothing was written.", next="Export a prefix without it, or rename it on a branch.")


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported.

    Attributes:
        open: the bytes of an object, as many as are on record.
        commit: that the objects are of.
        made: the bytes of files that are made for the export, by their paths below the place.
    """

    open: Callable[[ObjectInfo], BinaryIO]
    commit: Callable[[], CommitId]
    made: Mapping[str, bytes] = field(default_factory=dict)

    def opened(self, item: Item) -> BinaryIO:
        """The bytes of what comes to lie at a path."""
        info, relative = item
        data = self.made.get(relative)
        return self.open(info) if data is None else io.BytesIO(data)


def address_of(place: str | os.PathLike[str]) -> str:
    """Where what is exported to a place will be, without a slash at the end."""
    if is_url(place):
        return os.fspath(place).partition("?")[0].rstrip("/")
    return f"file://{os.path.realpath(check_local(place))}"


ItemCopier = Callable[[BlobStore, Sequence[Item]], object]
"""Copies objects to their paths in a store: by executors of Spark."""


def export(
    source: Source, items: Sequence[Item], target: str | Path, progress: Progress, copier: ItemCopier | None = None
) -> int:
    """Copy objects to a local folder that is new or empty, or below a prefix in which nothing lies; their number.

    Args:
        copier: copies to object stores; None copies in threads of this process.
    """
    refuse_unfit(items)
    lock = forks.lock()

    done = 0

    def tell() -> None:
        nonlocal done
        with lock:
            done += 1
            progress("exporting", done, len(items))

    if is_url(target):
        return _to_store(source, items, os.fspath(target), tell, copier)
    if copier is not None:
        raise UsageError(
            f"Executors cannot make a folder appear whole, as {str(target)!r} should.",
            next="Export to the URL of a prefix, such as s3://bucket/prefix; or without Spark.",
        )
    return _to_folder(source, items, check_local(target), tell)


def _to_folder(source: Source, items: Sequence[Item], target: Path, tell: Callable[[], None]) -> int:
    root = Path(os.path.realpath(target))
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(f"{str(target)!r} exists and is not an empty folder.", next="Export into a new folder.")
    is_new = not root.exists()
    # a folder that is there stays: it may be a mount, or the folder that the user's shell stands in
    partial = root.with_name(f".{root.name}.{new_id()}.part") if is_new else root / f".{new_id()}.part"

    def copy(item: Item) -> None:
        place = partial / item[1]
        place.parent.mkdir(parents=True, exist_ok=True)
        with source.opened(item) as opened, place.open("wb") as file:
            shutil.copyfileobj(opened, file, COPY_BUFFER_BYTES)
        tell()

    try:
        partial.mkdir(parents=True)
        count = sum(1 for _ in in_parallel(copy, items))
        if is_new:
            partial.replace(root)
        else:
            _move_up(partial)
        return count
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UsageError(
            f"The folder {str(target)!r} cannot be written: {error.strerror or error}.",
            safe="The lake is as it was, and so is the folder.",
            next="Make room, or export somewhere else.",
        ) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _move_up(partial: Path) -> None:
    """Move what is in a folder into the one that it is in, all of it or nothing."""
    moved: list[Path] = []
    try:
        for entry in sorted(partial.iterdir()):
            place = partial.parent / entry.name
            entry.replace(place)
            moved.append(place)
        partial.rmdir()
    except OSError:
        for entry in moved:
            entry.replace(partial / entry.name)
        raise


def _to_store(
    source: Source, items: Sequence[Item], target: str, tell: Callable[[], None], copier: ItemCopier | None
) -> int:
    if any(relative == UNDER_WAY for _, relative in items):
        raise _unfit(f"{UNDER_WAY!r} is the name of the marker of an export.")
    place = open_store(target)
    if place.is_remote and (odd := sorted(relative for _, relative in items if _CONTROLS.search(relative))):
        raise _unfit(f"Object stores take no control characters, which {some_paths(odd)} has.")
    before, stale = _left_behind(place, target)
    keys = {relative for _, relative in items}
    what = _digest_of(items)
    # what an export of the very same objects has put there is whole, as it appears at one instant
    kept = stale if before == what else {}
    missing = [item for item in items if item[1] in source.made or kept.get(item[1]) != item[0].size]
    mine = UnderWay(source.commit(), new_id(), sorted(keys | set(stale)), what)
    mark = msgspec.json.encode(mine)
    if stale.keys() - kept.keys():
        # until all of it is gone, nobody may take what lies there for what this export wrote
        place.put(UNDER_WAY, msgspec.json.encode(msgspec.structs.replace(mine, what="")))
        place.delete_many(sorted(stale))
    place.put(UNDER_WAY, mark)

    def copy(item: Item) -> None:
        with source.opened(item) as opened:
            place.put(item[1], opened)
        tell()

    try:
        place.delete_many(sorted(kept.keys() - keys))
        for _ in items[len(missing) :]:
            tell()
        if copier is None:
            for _ in in_parallel(copy, missing):
                pass
        else:
            for item in missing:
                if item[1] in source.made:
                    copy(item)
            copier(place, [item for item in missing if item[1] not in source.made])
        if not _has(place, mark):
            raise Contention(
                f"Another export to {target} has begun, and may have deleted what this one wrote.",
                next="Export to a prefix of its own.",
            )
    except StrandlineError as error:
        error.now_safe(f"The lake is as it was; {target} holds a part, and the marker {UNDER_WAY} says so.")
        raise
    place.delete_many([UNDER_WAY])
    return len(items)


class UnderWay(msgspec.Struct, frozen=True):
    """The marker: what an export writes, so that the next one deletes no more than that.

    Attributes:
        attempt: no other export has it.
        keys: all that it may leave at the place, if it breaks off.
        what: a digest of the objects and their paths; "" if an earlier version began.
    """

    commit: str
    attempt: str
    keys: list[str]
    what: str = ""


def _digest_of(items: Sequence[Item]) -> str:
    """Tells one set of objects at their paths from all others: bytes never change at an address of ours."""
    digest = blake3()
    for info, relative in sorted(items, key=lambda item: item[1]):
        for text in (relative, info.physical_address, info.checksum):
            digest.update(b"%d " % len(text.encode()) + text.encode())
    return digest.hexdigest()[:DIGEST_CHARS]


def _left_behind(place: BlobStore, target: str) -> tuple[str, dict[str, int]]:
    """What an export that broke off has left at a place: a digest of what it exported, and sizes by key.

    Raises:
        UsageError: something else lies there.
    """
    try:
        mark = msgspec.json.decode(place.get(UNDER_WAY), type=UnderWay)
        there = {info.key: info.size for info in place.list() if info.key != UNDER_WAY}
    except (BlobNotFound, msgspec.MsgspecError):
        mark = UnderWay("", "", [])
        there = {info.key: info.size for info in itertools.islice(place.list(), 1)}
    if others := sorted(there.keys() - set(mark.keys)):
        raise UsageError(
            f"Something lies at {target!r} already: {some_paths(others)}.", next="Export to a prefix of its own."
        )
    return mark.what, there


def _has(place: BlobStore, mark: bytes) -> bool:
    try:
        return place.get(UNDER_WAY) == mark
    except BlobNotFound:
        return False


def of_size(file: BinaryIO, size: int, what: Callable[[int], StrandlineError]) -> BinaryIO:
    """A file whose length is what is on record.

    Args:
        what: the error for another length.
    """
    try:
        found = file.seek(0, os.SEEK_END)
        file.seek(0)
    except (OSError, ValueError) as error:
        file.close()
        raise StoreUnavailable(f"The object store failed: {error}.", happened="no") from error
    if found != size:
        file.close()
        raise what(found)
    return file
