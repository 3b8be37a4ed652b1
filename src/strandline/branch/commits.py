"""Commit records: immutable, content-hashed, cached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from strandline.branch.stores import Stores
from strandline.clock import Microseconds, from_us
from strandline.envelope import decode, encode
from strandline.errors import Corrupted, FormatError, RefNotFound
from strandline.ids import CommitId, MetaRangeId, new_id
from strandline.tree.cache import ByteBoundedCache, CacheBudget
from strandline.tree.range_file import ID_BYTES
from strandline.tree.store import Tree, TreeRef, id_of

KEY_PREFIX = b"commit/"
CACHE_MAX_BYTES = 16 << 20
MESSAGE_MAX_CHARS = 10_000


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit.

    Attributes:
        id: hash of all other fields but `tree_ref`.
        parents: none for the first commit; the first parent is the branch that was committed or merged to.
        tree_id: content hash of the metarange.
        tree_ref: where the metarange is; differs between copies of a lake, so it is not part of the id.
        date_us: microseconds since 1970 UTC.
        generation: one more than that of the highest parent.
        nonce: makes two attempts at one commit two commits.
    """

    id: CommitId
    parents: tuple[CommitId, ...]
    tree_id: MetaRangeId
    tree_ref: TreeRef
    message: str
    committer: str
    metadata: dict[str, str]
    date_us: Microseconds
    generation: int
    nonce: str

    @property
    def date(self) -> datetime:
        """When it was made, in UTC."""
        return from_us(self.date_us)


def commit_id(record: Commit) -> CommitId:
    fields = (
        "strandline.commit.1",
        record.parents,
        record.tree_id,
        record.message,
        record.committer,
        sorted(record.metadata.items()),
        record.date_us,
        record.generation,
        record.nonce,
    )
    return CommitId(blake3(msgspec.msgpack.encode(fields)).hexdigest(length=ID_BYTES))


@dataclass(frozen=True, slots=True)
class Draft:
    """What the user says about a commit."""

    message: str
    committer: str
    metadata: dict[str, str]
    date_us: Microseconds
    allow_empty: bool = False

    def commit(self, tree: Tree, parents: tuple[Commit, ...]) -> Commit:
        """The commit of a tree, with a fresh id."""
        record = Commit(
            id=CommitId(""),
            parents=tuple(parent.id for parent in parents),
            tree_id=tree.id,
            tree_ref=tree.ref,
            message=self.message,
            committer=self.committer,
            metadata=self.metadata,
            date_us=self.date_us,
            generation=1 + max((parent.generation for parent in parents), default=0),
            nonce=new_id(),
        )
        return replace(record, id=commit_id(record))


def commit_pair(record: Commit) -> tuple[bytes, bytes]:
    """Key and value of a commit in the partition of the repository's records."""
    return KEY_PREFIX + record.id.encode(), encode(record)


class CommitLog:
    """The commits of one repository.

    Args:
        budget: shared with other caches; by default it has one of its own.
    """

    def __init__(self, stores: Stores, budget: CacheBudget | None = None) -> None:
        self.stores = stores
        self._cache: ByteBoundedCache[Commit] = ByteBoundedCache(CACHE_MAX_BYTES, budget, "commit")

    def get(self, id: CommitId) -> Commit:
        """Read a commit.

        Raises:
            RefNotFound: no such commit.
            Corrupted: its fields do not hash to its id.
        """
        record = self._cache.get(id)
        if record is None:
            raw = self.stores.kv.get(self.stores.records, KEY_PREFIX + id.encode())
            if raw is None:
                raise RefNotFound(
                    f"There is no commit {id}.",
                    next="`strandline log REPOSITORY/BRANCH` shows the commits of a branch.",
                )
            record = decode(Commit, raw, f"commit {id}")
            if commit_id(record) != id or id_of(record.tree_ref) != record.tree_id:
                raise Corrupted(
                    f"The record of commit {id} says something else than was written.",
                    next="Restore the key-value store from a backup, or use another commit.",
                )
            self._cache.put(id, record, len(raw) + 500)
        return record

    def has(self, id: CommitId) -> bool:
        """Whether there is such a commit; one that is in memory is not looked up again."""
        try:
            self.get(id)
        except RefNotFound:
            return False
        return True

    def remember(self, record: Commit) -> None:
        self._cache.put(record.id, record, 500 + len(record.message))

    def tree(self, id: CommitId) -> Tree:
        return self.stores.trees.tree(self.get(id).tree_ref)

    def all(self) -> Iterator[Commit]:
        """All commit records of the repository, also those that nothing refers to; damaged ones are left out."""
        for page in self.stores.kv.scan_pages(self.stores.records, KEY_PREFIX, KEY_PREFIX + b"g"):
            for key, value in zip(page.keys, page.values, strict=True):
                with suppress(FormatError):
                    yield decode(Commit, value, f"commit {key[len(KEY_PREFIX) :].decode()}")

    def ids_with_prefix(self, prefix: str, limit: int) -> list[CommitId]:
        start = KEY_PREFIX + prefix.encode()
        page = self.stores.kv.scan_page(self.stores.records, start, start + b"g", limit)
        return [CommitId(key[len(KEY_PREFIX) :].decode()) for key in page.keys]
