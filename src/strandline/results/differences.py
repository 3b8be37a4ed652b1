"""Differences between refs, and of a branch with what is staged on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.ids import check_prefix, prefix_end
from strandline.results.listing import FIRST_WINDOW_ROWS, is_folder
from strandline.results.rows import ObjectInfo, Results, check_amount
from strandline.tree.diff import Difference, Kind
from strandline.tree.rows import SCHEMA, column

ChangeKind = Literal["added", "removed", "changed", "prefix_changed"]
NAMES: dict[int, ChangeKind] = {Kind.ADDED: "added", Kind.REMOVED: "removed", Kind.CHANGED: "changed"}

ARROW_SCHEMA = pa.schema(
    [pa.field("path", pa.string()), pa.field("kind", pa.string())]
    + [pa.field(f"{side}_{field.name}", field.type) for side in ("before", "after") for field in list(SCHEMA)[1:]]
)


INFO_FIELDS = {"modified_at": "modified_at_us"}
Parts = Callable[[str, str | None, int | None], Iterator[Difference]]
"""Differences from a start to an end, in order; with a number, in pieces of about so many or as it is easiest."""


class Change(msgspec.Struct, frozen=True):
    """One path that differs; `before` is None for an added one, `after` for a removed one, both for a folder."""

    path: str
    kind: ChangeKind
    before: ObjectInfo | None
    after: ObjectInfo | None


class Diff(Results[Change]):
    """Differences in the order of their paths.

    Args:
        delimiter: paths that differ, and have a delimiter after the prefix, are shown once, with the kind
            "prefix_changed".
        after: begin behind this path, or behind this folder that was shown.
        amount: the most that are returned.
    """

    _titles = ("kind", "path", "size before", "size after")

    def __init__(
        self, parts: Parts, prefix: str = "", delimiter: str = "", after: str = "", amount: int | None = None
    ) -> None:
        check_amount(amount, "list", "differences")
        check_prefix(prefix)
        check_prefix(after)
        self._parts = parts
        self._prefix = prefix
        self._delimiter = delimiter
        self._amount = amount
        self._end = prefix_end(prefix)
        passed = after and after + "\0"
        if is_folder(after, prefix, delimiter):
            passed = prefix_end(after) or passed
        self._start = max(prefix, passed)

    def __iter__(self) -> Iterator[Change]:
        if self._delimiter:
            yield from self._folders()
            return
        for part in self._pieces():
            before, after = _infos(part.paths, part.left), _infos(part.paths, part.right)
            for path, kind, left, right in zip(part.paths.to_pylist(), part.kinds.tolist(), before, after, strict=True):
                yield Change(path, NAMES[kind], left, right)

    def _pieces(self) -> Iterator[Difference]:
        """Without delimiter."""
        left = self._amount
        if left == 0:
            return
        for part in self._parts(self._start, self._end, left):
            if left is None:
                yield part
                continue
            piece = part.slice(0, left)
            left -= len(piece)
            yield piece
            if not left:
                return

    def _folders(self) -> Iterator[Change]:
        start: str | None = self._start
        left = -1 if self._amount is None else self._amount
        while start is not None and left:
            start, shown = yield from self._folders_from(start, left)
            left -= shown

    def _folders_from(self, start: str, most: int) -> Generator[Change, None, tuple[str | None, int]]:
        """Rows from a start on; returns where to go on, since the rest of a folder is not read, and their number."""
        shown = 0
        for part in self._parts(start, self._end, FIRST_WINDOW_ROWS):
            at = 0
            while at < len(part):
                if shown == most:
                    return None, shown
                path: str = part.paths[at].as_py()
                cut = path.find(self._delimiter, len(self._prefix))
                shown += 1
                if cut < 0:
                    one = part.slice(at, 1)
                    (before,), (after,) = _infos(one.paths, one.left), _infos(one.paths, one.right)
                    yield Change(path, NAMES[int(one.kinds[0])], before, after)
                    at += 1
                    continue
                folder = path[: cut + len(self._delimiter)]
                yield Change(folder, "prefix_changed", None, None)
                beyond = prefix_end(folder)
                if beyond is None:
                    return None, shown
                at = pc.search_sorted(part.paths, beyond).as_py()
                if at == len(part):
                    return beyond, shown
        return None, shown

    def to_arrow(self) -> pa.Table:
        if self._delimiter:
            rows = [{"path": row.path, "kind": row.kind} | _sides(row) for row in self]
            return pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)
        tables = [to_table(part) for part in self._pieces()]
        return pa.concat_tables(tables) if tables else ARROW_SCHEMA.empty_table()

    def _cells(self, row: Change) -> tuple[object, ...]:
        return row.kind, row.path, row.before and row.before.size, row.after and row.after.size


def _sides(row: Change) -> dict[str, object]:
    return {
        f"{side}_{name}": getattr(info, INFO_FIELDS.get(name, name))
        for side, info in (("before", row.before), ("after", row.after))
        if info is not None
        for name in SCHEMA.names[1:]
    }


def _infos(paths: pa.StringArray, rows: pa.Table) -> list[ObjectInfo | None]:
    columns = [
        (column(rows, name).cast(pa.int64()) if name == "modified_at" else column(rows, name)).to_pylist()
        for name in SCHEMA.names[1:]
    ]
    return [
        None if row[2] is None else ObjectInfo(path, *row)  # an object has a checksum
        for path, *row in zip(paths.to_pylist(), *columns, strict=True)
    ]


def to_table(part: Difference) -> pa.Table:
    """Differences with the columns of `ARROW_SCHEMA`."""
    kinds = pa.array([NAMES[kind] for kind in part.kinds.tolist()], pa.string())
    sides = [column(rows, name) for rows in (part.left, part.right) for name in SCHEMA.names[1:]]
    return pa.Table.from_arrays([part.paths, kinds, *sides], schema=ARROW_SCHEMA)
