"""What the operations on one repository's branches share."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.clock import Clock
from strandline.ids import RepositoryId, StagingToken
from strandline.kv.store import Store
from strandline.tree.store import TreeStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one repository and the names of its partitions.

    Attributes:
        kv: all mutable metadata.
        trees: all immutable metadata, and the way to the bytes.
        committer: recorded when a commit does not name one.
    """

    kv: Store
    trees: TreeStore
    clock: Clock
    repository_id: RepositoryId
    committer: str

    @property
    def refs(self) -> bytes:
        """Partition of branch and tag records, by name."""
        return b"r/" + self.repository_id.encode() + b"/refs"

    @property
    def records(self) -> bytes:
        """Partition of the repository's other records; the first part of a key says which."""
        return b"r/" + self.repository_id.encode() + b"/records"

    @property
    def shards(self) -> bytes:
        """What the partitions of shards begin with: their names, and their logs."""
        return b"r/" + self.repository_id.encode() + b"/shards"

    def staging(self, token: StagingToken) -> bytes:
        """Partition of the entries staged under one token, by path."""
        return b"r/" + self.repository_id.encode() + b"/staging/" + token.encode()
