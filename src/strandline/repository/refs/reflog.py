"""The reflog of a branch as users see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from strandline.branch.rules.record import HeadMove
from strandline.results.rows import Results


class Reflog(Results[HeadMove]):
    """Head moves of a branch, newest first; at least the last thousand."""

    _titles = ("when", "what", "by", "from", "to")

    def __init__(self, rows: Callable[[], Iterator[HeadMove]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[HeadMove]:
        return self._rows()

    def to_arrow(self) -> pa.Table:
        rows = list(self)
        return pa.table(
            {
                "at": pa.array([row.at_us for row in rows], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                "verb": pa.array([row.verb for row in rows], pa.string()),
                "by": pa.array([row.by for row in rows], pa.string()),
                "before": pa.array([row.before for row in rows], pa.string()),
                "after": pa.array([row.after for row in rows], pa.string()),
            }
        )

    def _cells(self, row: HeadMove) -> tuple[object, ...]:
        return row.at, row.verb, row.by, row.before[:12], row.after[:12]
