"""What lies where in a backup, and its manifest, which is written last: without it there is no backup.

- `strandline-backup.json`: the manifest
- `<repository id>/runs/<run>/refs`: branches and tags
- `<repository id>/runs/<run>/records/<number>`: commits and reflogs
- `<repository id>/runs/<run>/staged/<branch>/<number>`: what was staged on a branch, the newest entry for each path
- `<repository id>/files/<key>`: trees and objects, under the keys of the storage namespace

A backup that is made again at the same place shares the files, and writes its records beside those of the last one,
which stay until the new manifest is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from strandline.blob import BlobNotFound, BlobStore
from strandline.clock import Microseconds
from strandline.core.record import RepositoryRecord
from strandline.errors import Corrupted, NewerFormat, NotFound
from strandline.ids import CommitId, RepositoryId

FORMAT_VERSION = 1
MANIFEST = "strandline-backup.json"
PAGE_PAIRS = 20_000
Pair = tuple[bytes, bytes]


class SavedBranch(msgspec.Struct, frozen=True):
    """A branch in the manifest: where its head was, and how many entries were staged."""

    name: str
    head: CommitId
    staged: int


class SavedRepository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository in the manifest.

    Attributes:
        record: as it was in the lake.
        run: under which its records lie.
        url: of its storage namespace.
        commits, files, bytes: how many are in the backup.
        has_data: whether the bytes of objects are in the backup, or only references to them.
    """

    record: RepositoryRecord
    run: str
    url: str
    branches: tuple[SavedBranch, ...]
    tags: int
    commits: int
    record_pages: int
    files: int
    bytes: int
    has_data: bool


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds: its root record, written last."""

    format: int = FORMAT_VERSION
    lake_id: str
    made_at: Microseconds
    repositories: tuple[SavedRepository, ...]


def runs_prefix(id: RepositoryId) -> str:
    return f"{id}/runs/"


def refs_key(id: RepositoryId, run: str) -> str:
    return f"{runs_prefix(id)}{run}/refs"


def records_key(id: RepositoryId, run: str, number: int) -> str:
    return f"{runs_prefix(id)}{run}/records/{number:06d}"


def staged_key(id: RepositoryId, run: str, branch: str, number: int) -> str:
    return f"{runs_prefix(id)}{run}/staged/{branch}/{number:06d}"


def file_key(id: RepositoryId, key: str) -> str:
    return f"{id}/files/{key}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Pair]).decode


def save_pairs(place: BlobStore, key_of: Callable[[int], str], pairs: Iterable[Pair]) -> tuple[int, int]:
    """Write pairs in pages; returns the numbers of pages and pairs."""
    pages = count = 0
    remaining = iter(pairs)
    while page := list(islice(remaining, PAGE_PAIRS)):
        place.put(key_of(pages), _encode(page))
        pages, count = pages + 1, count + len(page)
    return pages, count


def load_pairs(place: BlobStore, key: str) -> list[Pair]:
    try:
        return _decode(place.get(key))
    except (BlobNotFound, msgspec.MsgspecError) as error:
        raise Corrupted(
            f"The backup is not whole: {key!r} is missing or damaged.", next="Use another backup."
        ) from error


def load_pages(place: BlobStore, key_of: Callable[[int], str], pages: int) -> Iterator[list[Pair]]:
    for number in range(pages):
        yield load_pairs(place, key_of(number))


def save_manifest(place: BlobStore, manifest: Manifest) -> None:
    place.put(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


_ID = re.compile(r"[0-9a-f]{20}", re.ASCII)


def _checked(manifest: Manifest, url: str) -> Manifest:
    """Refuse what does not have the form of an id: ids become names of folders."""
    for one in manifest.repositories:
        wrong = [id for id in (one.record.id, one.run) if not _ID.fullmatch(id)]
        if wrong:
            raise Corrupted(
                f"The manifest {MANIFEST} at {url} names {wrong[0]!r} where it needs an id: the file was written over.",
                safe="Nothing was brought back.",
                next="Use another backup.",
            )
    return manifest


def load_manifest(place: BlobStore) -> Manifest:
    """The manifest of a backup.

    Raises:
        NotFound: there is no backup, or none that was completed.
    """
    try:
        data = place.get(MANIFEST)
    except BlobNotFound:
        raise NotFound(
            f"There is no complete backup at {place.url}: {MANIFEST} is not there.",
            next="Check the place; a backup that was interrupted goes on when it is made again.",
        ) from None
    try:
        version = msgspec.json.decode(data)["format"]
        if version > FORMAT_VERSION:
            raise NewerFormat(
                f"The backup at {place.url} has format {version}; this strandline reads up to {FORMAT_VERSION}.",
                next="Upgrade strandline.",
            )
        return _checked(msgspec.json.decode(data, type=Manifest), place.url)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise Corrupted(f"The manifest {MANIFEST} at {place.url} cannot be read: {error}.") from error
