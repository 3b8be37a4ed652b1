"""Creating, finding and deleting repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from msgspec.structs import replace

from strandline.blob import BlobNotFound, open_store
from strandline.branch.commits import Draft, commit_pair
from strandline.branch.rules.record import BranchRecord, Deleted, RefRecord, Why, with_head
from strandline.branch.stores import Stores
from strandline.branch.token_queue import KEY_PREFIX, dropped, put_item, sweep
from strandline.clock import Clock
from strandline.core import namespace
from strandline.core.record import PARTITION, RepositoryRecord
from strandline.envelope import decode, encode
from strandline.errors import Advice, AlreadyExists, Contention, NotAllowed, RepositoryNotFound, StoreUnavailable
from strandline.ids import (
    BranchId,
    CommitId,
    StagingToken,
    check_ref_name,
    check_repository_name,
    keys_behind,
    keys_below,
    new_id,
)
from strandline.kv.store import ABSENT, PredicateFailed, Store, page_keys_of
from strandline.tree.store import EMPTY

FIRST_MESSAGE = "Repository created"
DELETE_ATTEMPTS = 20
MakeStores = Callable[[RepositoryRecord], Stores]
UrlOf = Callable[[RepositoryRecord], str]
"""The URL of a repository's storage namespace."""


def read_record(kv: Store, name: str) -> tuple[bytes | None, RepositoryRecord | None]:
    raw = kv.get(PARTITION, name.encode())
    return raw, None if raw is None else decode(RepositoryRecord, raw, f"repository {name!r}")


def find_repository(kv: Store, name: str) -> RepositoryRecord:
    """The record of a repository that is in use; raises `RepositoryNotFound`."""
    check_repository_name(name)
    _, record = read_record(kv, name)
    if record is None or record.state != "active":
        raise _not_there(name, record)
    return record


def _not_there(name: str, record: RepositoryRecord | None) -> RepositoryNotFound:
    state = "is being deleted" if record is not None and record.state == "deleting" else "does not exist"
    return RepositoryNotFound(
        f"Repository {name!r} {state}.",
        next=Advice(
            "`strandline repo list` shows the repositories; create=True makes one.",
            command="`strandline repo list` shows the repositories; `strandline repo create` makes one.",
        ),
    )


def list_repositories(
    kv: Store, prefix: str = "", after: str = "", amount: int | None = None
) -> Iterator[RepositoryRecord]:
    for key, value in kv.scan(PARTITION, *keys_behind(prefix, after), page_keys_of(amount)):
        record = decode(RepositoryRecord, value, f"repository {key.decode()!r}")
        if record.state == "active":
            yield record


def create_repository(
    kv: Store,
    clock: Clock,
    record: RepositoryRecord,
    url_of: UrlOf,
    committer: str,
    make_stores: MakeStores,
    lake: str,
) -> RepositoryRecord:
    """Make a repository: its namespace, its first commit and branch, and last of all its name.

    A caller that sees the name sees a complete repository. Of two callers that create it at once, one gets
    `AlreadyExists`.
    """
    check_repository_name(record.name)
    check_ref_name(record.default_branch)
    raw, held = read_record(kv, record.name)
    if held is not None and held.state != "deleted":
        raise _taken(record.name)
    _refuse_overlap(kv, record, url_of)
    stores = make_stores(record)
    blobs = stores.trees.blobs
    namespace.take(stores, record.id, record.name, lake)
    try:
        _refuse_markers_above(record, url_of)
    except BaseException:
        blobs.delete_many([namespace.MARKER])
        raise
    now = clock.now_us()
    first = Draft(FIRST_MESSAGE, committer, {}, now).commit(EMPTY, ())
    kv.set_many(stores.records, [commit_pair(first)])
    branch = BranchRecord(
        branch_id=BranchId(new_id()),
        head=CommitId(""),
        staging_token=StagingToken(new_id()),
        created_at=now,
        write_ids=(new_id(),),
    )
    branch = with_head(branch, first.id, Why("create", committer, now))
    kv.set(stores.refs, record.default_branch.encode(), encode(branch))
    try:
        kv.set_if(PARTITION, record.name.encode(), encode(record), ABSENT if raw is None else raw)
    except PredicateFailed:
        _forget(kv, stores)
        raise _taken(record.name) from None
    except StoreUnavailable as error:
        if error.happened == "no" or read_record(kv, record.name)[1] != record:
            raise
    return record


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"There is a repository {name!r} already.",
        next=Advice(
            "Open it without create=True, or take another name.", command="Use it as it is, or take another name."
        ),
    )


def _forget(kv: Store, stores: Stores) -> None:
    for partition in (stores.refs, stores.records):
        kv.delete_many(partition, [key for key, _ in kv.scan(partition)])
    stores.trees.blobs.delete_many([namespace.MARKER])


def _refuse_overlap(kv: Store, record: RepositoryRecord, url_of: UrlOf) -> None:
    """Refuse a namespace that lies in another repository's of this tenant, or around it."""
    if "://" not in record.namespace:
        return  # names below the lake's own store contain the repository's unique id
    mine = _as_folder(url_of(record))
    for other in list_repositories(kv):
        theirs = _as_folder(url_of(other))
        if mine.startswith(theirs) or theirs.startswith(mine):
            raise _overlapping(record, f"repository {other.name!r}")


def _refuse_markers_above(record: RepositoryRecord, url_of: UrlOf) -> None:
    """Refuse a namespace inside one that anybody, of any lake, has marked as a repository's."""
    if "://" not in record.namespace:
        return
    parts = urlsplit(url_of(record))
    folders = parts.path.strip("/").split("/")
    for depth in range(1 if parts.scheme == "file" else 0, len(folders)):
        above = urlunsplit(parts._replace(path="/" + "/".join(folders[:depth])))
        with suppress(BlobNotFound, StoreUnavailable):
            open_store(above).head(namespace.MARKER)
            raise _overlapping(record, f"a repository at {above}")


def _as_folder(url: str) -> str:
    return url.partition("?")[0].rstrip("/") + "/"


def _overlapping(record: RepositoryRecord, whose: str) -> AlreadyExists:
    return AlreadyExists(
        f"The storage namespace {record.namespace!r} overlaps that of {whose}.",
        next="Give each repository a prefix of its own.",
    )


def delete_repository(
    kv: Store, name: str, clock: Clock, make_stores: MakeStores, *, force: bool = False
) -> RepositoryRecord:
    """Delete a repository's metadata: mark it, turn its branches into tombstones, and only then clean up.

    A crash in between leaves a repository that is marked; deleting it again goes on. The bytes stay where they are.
    """
    check_repository_name(name)
    raw, record = read_record(kv, name)
    if raw is None or record is None or record.state == "deleted":
        raise _not_there(name, record)
    if record.read_only and not force:
        raise NotAllowed(
            f"Repository {name!r} is read-only.",
            next=Advice(
                "Make it writable first: set_read_only(False).",
                command=f"Make it writable first: `strandline repo read-only {name} --off`.",
            ),
        )
    if record.state == "active":
        marked = replace(record, state="deleting")
        try:
            kv.set_if(PARTITION, name.encode(), encode(marked), raw)
        except PredicateFailed:
            raise Contention(
                f"Repository {name!r} was changed by somebody else during the call.", next="Repeat the call."
            ) from None
        raw, record = encode(marked), marked
    stores = make_stores(record)
    for key, _ in list(kv.scan(stores.refs)):
        _bury(stores, key, clock)
    while kv.scan_page(stores.records, *keys_below(KEY_PREFIX), 1).keys:
        sweep(stores, after_s=0, again_after_s=0, private_after_s=0)
    kv.delete_many(stores.records, [key for key, _ in kv.scan(stores.records)])
    try:
        kv.set_if(PARTITION, name.encode(), encode(replace(record, state="deleted")), raw)
    except PredicateFailed:
        _, now = read_record(kv, name)
        if now is None or (now.id == record.id and now.state != "deleted"):
            raise Contention(
                f"Repository {name!r} was changed by somebody else during the call.", next="Repeat the call."
            ) from None
    return record


def _bury(stores: Stores, key: bytes, clock: Clock) -> None:
    """Turn a branch into its tombstone, so that no handle can write to it any more."""
    for _ in range(DELETE_ATTEMPTS):
        raw = stores.kv.get(stores.refs, key)
        held = None if raw is None else decode(RefRecord, raw, f"ref {key.decode()!r}")
        if raw is None or isinstance(held, Deleted):
            return
        tokens = held.tokens if isinstance(held, BranchRecord) else ()
        if isinstance(held, BranchRecord):
            put_item(stores, dropped(key.decode(), held, held.tokens))
        gone = Deleted(was="branch" if tokens else "tag", deleted_at=clock.now_us(), tokens=tokens)
        try:
            stores.kv.set_if(stores.refs, key, encode(gone), raw)
            return
        except PredicateFailed:
            continue
    raise Contention(f"Others keep changing {key.decode()!r}.", next="Repeat the call.")
