"""What calls return when there may be many rows: iterable, columnar on request, readable where they are shown."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from strandline.clock import Microseconds, from_us
from strandline.errors import UsageError

if TYPE_CHECKING:
    import polars

ROWS_SHOWN = 20
CELL_MAX_CHARS = 60
Row = TypeVar("Row")


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """An object at a path of a ref.

    Attributes:
        size: in bytes.
        checksum: of the content, as "blake3:…"; of an imported object or a table's file, its store's tag as "etag:…".
        modified_at_us: microseconds since 1970 UTC.
        user_metadata: a JSON object, or None; `metadata` has it as a dict.
        physical_address: where the bytes are: a key in the repository's storage namespace, or a URL.
        etag: by which HTTP's clients know the content, where one of them wrote it.
    """

    path: str
    physical_address: str
    size: int
    checksum: str
    modified_at_us: Microseconds
    content_type: str | None = None
    user_metadata: str | None = None
    etag: str | None = None

    @property
    def modified_at(self) -> datetime:
        """When the object was written, in UTC."""
        return from_us(self.modified_at_us)

    @property
    def metadata(self) -> dict[str, str]:
        """What the writer gave with it, by key."""
        return json.loads(self.user_metadata) if self.user_metadata else {}


class CommonPrefix(msgspec.Struct, frozen=True):
    """A "folder" in a listing with a delimiter: the start of at least one path."""

    path: str


def check_amount(amount: int | None, result: str, rows: str) -> None:
    """Refuse a number of rows below 0; None is for all of them."""
    if amount is not None and amount < 0:
        raise UsageError(f"A {result} of {amount} {rows} is not possible.", next="Use an amount of 0 or more.")


class Results(ABC, Generic[Row]):
    """Rows that are fetched when they are iterated, anew each time."""

    @abstractmethod
    def __iter__(self) -> Iterator[Row]: ...

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""

    @abstractmethod
    def _cells(self, row: Row) -> tuple[object, ...]: ...

    _titles: tuple[str, ...]

    def to_polars(self) -> polars.DataFrame:
        """All rows as a Polars data frame; needs the `polars` package."""
        import polars  # noqa: PLC0415 - an optional package

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def first(self) -> Row | None:
        """The first row, or None if there is none."""
        return next(iter(self), None)

    def _shown(self) -> tuple[list[list[str]], bool]:
        rows = list(islice(iter(self), ROWS_SHOWN + 1))
        return [[_text(cell) for cell in self._cells(row)] for row in rows[:ROWS_SHOWN]], len(rows) > ROWS_SHOWN

    def __repr__(self) -> str:
        rows, has_more = self._shown()
        if not rows:
            return f"{type(self).__name__}: nothing"
        table = [list(self._titles), *rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(self._titles))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join(lines + ["…"] * has_more)

    def _repr_html_(self) -> str:
        from html import escape  # noqa: PLC0415 - only notebooks show it, and its table of names is long

        rows, has_more = self._shown()
        head = "".join(f"<th>{escape(title)}</th>" for title in self._titles)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        more = f'<tr><td colspan="{len(self._titles)}">…</td></tr>' if has_more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return cell.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(cell, int):
        return f"{cell:,}"
    text = " ".join(str(cell).split())
    return text if len(text) <= CELL_MAX_CHARS else text[: CELL_MAX_CHARS - 1] + "…"


def as_info(path: str, entry: Any) -> ObjectInfo:
    return ObjectInfo(
        path,
        entry.physical_address,
        entry.size,
        entry.checksum,
        entry.modified_at,
        entry.content_type,
        entry.user_metadata,
        entry.etag,
    )
