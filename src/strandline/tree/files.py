"""The files that trees consist of, each once: for collections, checks and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.errors import FormatError, ObjectMissing
from strandline.parallel import in_parallel
from strandline.tree.node_file import NodeInfo, Part
from strandline.tree.range_file import RangeInfo
from strandline.tree.store import Tree, TreeStore


class TreeFiles:
    """Nodes and ranges of trees, by the addresses of their files.

    Invariant: a part counts as seen by its address, never by its id. An id leaves out where the files are, so the parts
    of two nodes with one id may be in different files, all of which are needed.

    Args:
        broken: called with a node that cannot be read, and the error, maybe in a thread; without it, the error is
            raised.

    Attributes:
        nodes, ranges: by address.
    """

    def __init__(
        self, store: TreeStore, broken: Callable[[NodeInfo, ObjectMissing | FormatError], None] | None = None
    ) -> None:
        self._store = store
        self._broken = broken
        self.nodes: dict[str, NodeInfo] = {}
        self.ranges: dict[str, RangeInfo] = {}

    def add(self, tree: Tree) -> list[Part]:
        """Take in a tree; nodes that are known already are not opened again.

        Returns:
            The nodes and ranges that were not known.

        Raises:
            ObjectMissing, Corrupted, NewerFormat: a node cannot be read.
        """
        fresh: list[Part] = []
        level: Sequence[Part] = tree.parts
        while level:
            unopened: list[NodeInfo] = []
            for part in level:
                if not isinstance(part, NodeInfo):
                    if part.address not in self.ranges:
                        self.ranges[part.address] = part
                        fresh.append(part)
                elif part.address not in self.nodes:
                    self.nodes[part.address] = part
                    unopened.append(part)
            fresh += unopened
            is_far = self._store.blobs.is_remote and len(unopened) > 1
            opened = in_parallel(self._below, unopened) if is_far else map(self._below, unopened)
            level = [part for parts in opened for part in parts]
        return fresh

    def _below(self, node: NodeInfo) -> Sequence[Part]:
        try:
            return self._store.parts_of(node)
        except (ObjectMissing, FormatError) as error:
            if self._broken is None:
                raise
            self._broken(node, error)
            return ()

    @property
    def addresses(self) -> list[str]:
        """Of all nodes and ranges."""
        return [*self.nodes, *self.ranges]
