"""What the operations on one repository's branches share."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    refs: bytes = field(init=False, repr=False, compare=False)
    """Partition of branch and tag records, by name."""
    records: bytes = field(init=False, repr=False, compare=False)
    """Partition of the repository's other records; the first part of a key says which."""
    shards: bytes = field(init=False, repr=False, compare=False)
    """What the partitions of shards begin with: their names, and their logs."""
    _staging: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # made once: a look-up under many tokens spent more time on these names than in the gate of the store
        for name, part in (
            ("refs", b"/refs"),
            ("records", b"/records"),
            ("shards", b"/shards"),
            ("_staging", b"/staging/"),
        ):
            object.__setattr__(self, name, b"r/" + self.repository_id.encode() + part)

    def staging(self, token: StagingToken) -> bytes:
        """Partition of the entries staged under one token, by path."""
        return self._staging + token.encode()
