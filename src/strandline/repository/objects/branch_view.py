"""What a branch shows: what is committed on it, with what is staged over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.branch.rules.lock_rules import quarantined, refuse_quarantined
from strandline.branch.rules.ranges import Range, single
from strandline.branch.rules.record import BranchRecord
from strandline.branch.staged import scan_staged
from strandline.branch.view import Layers, Result, consistently, uncommitted, uncommitted_pieces
from strandline.errors import RangeLocked
from strandline.ids import CommitId, encoded
from strandline.repository.objects.writable import Writable
from strandline.repository.refs.ref import key_range
from strandline.results.differences import Diff
from strandline.results.listing import WINDOW_ROWS
from strandline.tree.diff import Difference
from strandline.tree.rows import Changes, Entry, column
from strandline.tree.store import Tree


@checked()
class BranchView(Writable):
    """The reads of a branch; each counts only if the layers that it read were those of one record."""

    @property
    def commit_id(self) -> CommitId:
        return self._at.read().branch.head

    def _find(self, path: str, key: bytes) -> Entry | None:
        def find(record: BranchRecord) -> Entry | None:
            refuse_quarantined(record, self.name, single(path))
            return Layers(self._cell, self._core.commits, record).find(path, key)

        return self._consistently(find)

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        def window(record: BranchRecord) -> tuple[pa.Table, bytes | None]:
            rows, reach = Layers(self._cell, self._core.commits, record).window(start, end, limit)
            return self._outside_quarantine(record, rows, reach)

        return self._consistently(window)

    def _layers(self, prefix: str) -> tuple[Tree, list[Changes]]:
        start, end = key_range(prefix)

        def read(record: BranchRecord) -> tuple[Tree, list[Changes]]:
            refuse_quarantined(record, self.name, Range(start, end))
            layers = Layers(self._cell, self._core.commits, record)
            staged = scan_staged(self._core.stores, record.tokens, start.encode(), encoded(end))
            return layers.base, list(staged)

        return self._consistently(read)

    def _consistently(self, read: Callable[[BranchRecord], Result]) -> Result:
        """A consistent read; what a cached record forbids may be allowed by now, and is tried once more."""
        try:
            return consistently(self._at, read)
        except RangeLocked:
            self._at.read()
            return consistently(self._at, read)

    def _outside_quarantine(
        self, record: BranchRecord, rows: pa.Table, reach: bytes | None
    ) -> tuple[pa.Table, bytes | None]:
        """The rows before the first one that others may not read; raises if that comes first."""
        for lock in quarantined(record):
            for one in lock.ranges:
                paths = column(rows, "path")
                first = pc.search_sorted(paths, one.start).as_py()
                if first == len(paths) or not one.has(paths[first].as_py()):
                    continue
                if not first:
                    refuse_quarantined(record, self.name, one)
                rows = rows.slice(0, first)
                reach = paths[first - 1].as_py().encode()
        return rows, reach

    def uncommitted(self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int | None = None) -> Diff:
        """The changes that a commit would make, by path.

        Without an amount and a delimiter they are those of one instant. With one, only what is shown is read, and a
        long page may be put together from several instants.

        Args:
            delimiter, after, amount: see `Diff`.
        """

        def parts(start: str, end: str | None, rows: int | None) -> Iterator[Difference]:
            if rows is None:
                return iter([uncommitted(self._at, start, end)])
            return uncommitted_pieces(self._at, start, end, min(rows + 1, WINDOW_ROWS))

        return Diff(parts, prefix, delimiter, after, amount)
