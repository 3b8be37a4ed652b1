"""Bringing a repository back from a backup, into any key-value store and any object store.

Bytes first, then records, then refs, and last of all the repository's name: a process that sees the name sees all of
it. What an interrupted call has brought back is used by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec.structs import replace

from strandline.backup.layout import (
    PAGE_PAIRS,
    SavedRepository,
    file_key,
    load_pages,
    load_pairs,
    records_key,
    refs_key,
    staged_key,
)
from strandline.backup.moving import copy_file
from strandline.blob import BlobStore
from strandline.blob.fallback import FallbackBlobs
from strandline.branch.rules.record import BranchRecord, Deleted, RefRecord
from strandline.branch.stores import Stores
from strandline.core import namespace
from strandline.core.record import PARTITION, RepositoryRecord
from strandline.envelope import decode, encode
from strandline.errors import Advice, AlreadyExists, Conflict, Corrupted
from strandline.ids import StagingToken, new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.parallel import in_parallel
from strandline.progress import Progress
from strandline.repository.names.repositories import read_record

MakeStores = Callable[[RepositoryRecord], Stores]


def load(
    place: BlobStore,
    saved: SavedRepository,
    record: RepositoryRecord,
    kv: Store,
    make_stores: MakeStores,
    progress: Progress,
    lake: str,
    *,
    take_over: bool,
) -> None:
    """Bring a repository back under a record, which tells its name and its storage namespace.

    Args:
        lake: the id of the lake that it is brought into.
        take_over: the namespace is that of the original, whose lake is gone.

    Raises:
        AlreadyExists: its name is taken, or the repository itself is still in this lake.
        Corrupted: the backup is not whole.
    """
    stores = claim(record, kv, make_stores, lake, take_over=take_over)
    if saved.has_data:
        _files(place, record, stores.trees.blobs, progress)
    bring(place, saved, record, kv, stores)


def claim(
    record: RepositoryRecord, kv: Store, make_stores: MakeStores, lake: str, *, take_over: bool = False, run: str = ""
) -> Stores:
    """Take a name and a namespace for a repository that is to be brought into a lake; returns its stores.

    Args:
        run: of a copy; a later run takes over from one that died.

    Raises:
        AlreadyExists: its name is taken, or the repository itself is still in this lake.
    """
    _, held = read_record(kv, record.name)
    for key, value in kv.scan(PARTITION):
        other: RepositoryRecord = decode(RepositoryRecord, value, f"repository {key.decode()!r}")
        if other.id == record.id and other.state != "deleted":
            raise AlreadyExists(
                f"This repository is in this lake, as {other.name!r}.",
                next="Restore into another lake, or delete it first.",
            )
    if held is not None and held.state != "deleted":
        raise AlreadyExists(f"There is a repository {record.name!r} already.", next=_another_name(record.name))
    stores = make_stores(record)
    _claim(stores, record, run)
    blobs = stores.trees.blobs
    if isinstance(blobs, FallbackBlobs):  # first: from now on nobody deletes there what is needed here
        namespace.leave_reader(blobs.behind, lake, record.id, stores.clock.now_us())
    namespace.claim(stores, record.id, record.name, lake, take_over=take_over)
    return stores


def bring(
    place: BlobStore,
    saved: SavedRepository,
    record: RepositoryRecord,
    kv: Store,
    stores: Stores,
    run: str = "",
    before_name: Callable[[], object] = lambda: None,
) -> None:
    """Write the records of a repository whose files are there: commits, then refs, then its name.

    Args:
        run: of a copy: refs that one before it wrote, which died, are written over, for nobody knows its name yet.
        before_name: what else is to be done by then.

    Raises:
        Conflict: another run has begun, or somebody else has taken the name.
    """
    for page in load_pages(place, lambda number: records_key(record.id, saved.run, number), saved.record_pages):
        stores.kv.set_many(stores.records, page)
    counts = {branch.name: branch.staged for branch in saved.branches}
    pairs = dict(load_pairs(place, refs_key(record.id, saved.run)))
    if run:
        stale = [key for key, _ in stores.kv.scan(stores.refs) if key not in pairs]
        _refuse_overtaken(stores, record, run)
        stores.kv.delete_many(stores.refs, stale)
    for key, value in pairs.items():
        found = decode(RefRecord, value, f"ref {key.decode()!r}")
        _ref(place, saved, stores, key, found, counts, run)
    before_name()
    if run:
        _refuse_overtaken(stores, record, run)
    raw, held = read_record(kv, record.name)
    try:
        if held is not None and held.state != "deleted":
            raise PredicateFailed
        kv.set_if(PARTITION, record.name.encode(), encode(record), ABSENT if raw is None else raw)
    except PredicateFailed:
        raise Conflict(
            f"Somebody else made a repository {record.name!r} during the restore.", next=_another_name(record.name)
        ) from None


def is_to_be_finished(record: RepositoryRecord, kv: Store, stores: Stores) -> bool:
    """Whether a copy has its name, and died before it was compared with its checksums."""
    _, held = read_record(kv, record.name)
    is_there = held is not None and held.id == record.id and held.state != "deleted"
    return is_there and RUN in (stores.kv.get(stores.records, CLAIM) or b"")


def finish(record: RepositoryRecord, stores: Stores) -> None:
    """Note that a copy is whole: it is not to be made again."""
    stores.kv.set(stores.records, CLAIM, record.name.encode())


def _another_name(name: str) -> Advice:
    return Advice(
        f'Restore it under another name: lake.restore(…, {name!r}, name="…").',
        command=f"Restore it under another name: `strandline restore SOURCE {name} --as NAME`.",
    )


def _files(place: BlobStore, record: RepositoryRecord, blobs: BlobStore, progress: Progress) -> None:
    cut = len(file_key(record.id, ""))
    wanted = {info.key[cut:]: info.size for info in place.list(file_key(record.id, ""))}
    there = {info.key: info.size for info in blobs.list()}
    missing = [key for key in sorted(wanted) if there.get(key) != wanted[key]]
    done = len(wanted) - len(missing)
    for _ in in_parallel(lambda key: copy_file(place, blobs, file_key(record.id, key), key, wanted[key]), missing):
        done += 1
        progress("copying", done, len(wanted))


def _branch(
    place: BlobStore, saved: SavedRepository, stores: Stores, branch: BranchRecord, staged: int
) -> BranchRecord:
    """A branch with all that was staged under one fresh token."""
    token = StagingToken(new_id())
    pages = -(-staged // PAGE_PAIRS)
    count = 0
    for page in load_pages(
        place, lambda number: staged_key(saved.record.id, saved.run, branch.branch_id, number), pages
    ):
        stores.kv.set_many(stores.staging(token), page)
        count += len(page)
    if count != staged:
        raise Corrupted(f"The backup has {count:,} of {staged:,} staged entries.", next="Use another backup.")
    return replace(
        branch,
        staging_token=token,
        sealed_tokens=(),
        content_epoch=branch.content_epoch + 1,
        compaction_started=None,
        next_txn=branch.next_txn + IDS_SKIPPED,
        write_ids=(new_id(),),
    )


CLAIM = b"restored-as"
IDS_SKIPPED = 1 << 20
"""Transactions may have been begun after the backup was made; their ids are not given again over the same files."""


RUN = b"\0"
"""Lies between the name and the run of a copy."""


def _refuse_overtaken(stores: Stores, record: RepositoryRecord, run: str) -> None:
    if stores.kv.get(stores.records, CLAIM) != record.name.encode() + RUN + run.encode():
        raise Conflict(
            f"Another copy of this repository has begun, and goes on instead of this one, {record.name!r}.",
            next="Wait for it.",
        )


def _claim(stores: Stores, record: RepositoryRecord, run: str) -> None:
    """Take this repository's id in this lake for one name, so that it never has two."""
    mine = record.name.encode()
    if run:
        held = stores.kv.get(stores.records, CLAIM)
        if held is None or RUN in held:
            stores.kv.set(stores.records, CLAIM, mine + RUN + run.encode())
            return
    try:
        stores.kv.set_if(stores.records, CLAIM, mine, ABSENT)
    except PredicateFailed:
        held = stores.kv.get(stores.records, CLAIM)
        if held != mine or run:
            raise Conflict(
                f"This repository is being restored as {(held or b'').decode()!r}, or that was interrupted.",
                next="Restore it under that name.",
            ) from None


def _ref(
    place: BlobStore,
    saved: SavedRepository,
    stores: Stores,
    key: bytes,
    record: RefRecord,
    counts: Mapping[str, int],
    run: str,
) -> None:
    """Write a ref, unless an earlier call has: what is there already may be in use, and is never written over.

    Of a copy it is: its name is written last, and a run that another one overtook does not come so far. The ref is read
    before it is asked whether that has happened, and swapped.
    """
    raw = stores.kv.get(stores.refs, key)
    held = None if raw is None else decode(RefRecord, raw, f"ref {key.decode()!r}")
    if run:
        _refuse_overtaken(stores, saved.record, run)
    elif held is not None and not isinstance(held, Deleted):
        return
    if isinstance(record, BranchRecord):
        record = _branch(place, saved, stores, record, counts[key.decode()])
    with suppress(PredicateFailed):  # somebody else restores the same, and was first
        stores.kv.set_if(stores.refs, key, encode(record), ABSENT if raw is None else raw)
