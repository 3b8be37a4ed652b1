"""Differences between refs, and of a branch with what is staged on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import pyarrow as pa

from strandline.results.rows import ObjectInfo, Results
from strandline.tree.diff import Difference, Kind
from strandline.tree.rows import SCHEMA, column

ChangeKind = Literal["added", "removed", "changed"]
NAMES: dict[int, ChangeKind] = {Kind.ADDED: "added", Kind.REMOVED: "removed", Kind.CHANGED: "changed"}

ARROW_SCHEMA = pa.schema(
    [pa.field("path", pa.string()), pa.field("kind", pa.string())]
    + [pa.field(f"{side}_{field.name}", field.type) for side in ("before", "after") for field in list(SCHEMA)[1:]]
)


class Change(msgspec.Struct, frozen=True):
    """One path that differs; `before` is None for an added one, `after` for a removed one."""

    path: str
    kind: ChangeKind
    before: ObjectInfo | None
    after: ObjectInfo | None


class Diff(Results[Change]):
    """Differences in the order of their paths."""

    _titles = ("kind", "path", "size before", "size after")

    def __init__(self, parts: Callable[[], Iterator[Difference]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Change]:
        for part in self._parts():
            before, after = _infos(part.paths, part.left), _infos(part.paths, part.right)
            for path, kind, left, right in zip(part.paths.to_pylist(), part.kinds.tolist(), before, after, strict=True):
                yield Change(path, NAMES[kind], left, right)

    def to_arrow(self) -> pa.Table:
        tables = [_table(part) for part in self._parts()]
        return pa.concat_tables(tables) if tables else ARROW_SCHEMA.empty_table()

    def _cells(self, row: Change) -> tuple[object, ...]:
        return row.kind, row.path, row.before and row.before.size, row.after and row.after.size


def _infos(paths: pa.StringArray, rows: pa.Table) -> list[ObjectInfo | None]:
    columns = [
        (column(rows, name).cast(pa.int64()) if name == "modified_at" else column(rows, name)).to_pylist()
        for name in SCHEMA.names[1:]
    ]
    return [
        None if checksum is None else ObjectInfo(path, address, size, checksum, modified, kind, metadata)
        for path, address, size, checksum, modified, kind, metadata in zip(paths.to_pylist(), *columns, strict=True)
    ]


def _table(part: Difference) -> pa.Table:
    kinds = pa.array([NAMES[kind] for kind in part.kinds.tolist()], pa.string())
    sides = [column(rows, name) for rows in (part.left, part.right) for name in SCHEMA.names[1:]]
    return pa.Table.from_arrays([part.paths, kinds, *sides], schema=ARROW_SCHEMA)
