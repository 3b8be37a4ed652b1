"""What a lake knows of its branches, as table functions of SQL: `SELECT * FROM strandline_log('nyc/main')`.

They are Python's table functions, which Spark Connect has as well. A function runs in a Python worker of Spark's, which
opens the lake by its settings; nothing secret is sent there (docs/spark.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from strandline.core.iceberg_files import POINTER
from strandline.errors import UsageError
from strandline.lake import Lake
from strandline.places import place_on_a_ref
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.results.rows import Results
from strandline.spark import metadata
from strandline.tables.record import RECORD_NAME

if TYPE_CHECKING:
    from pyspark.sql.udtf import UserDefinedTableFunction

Row = tuple[Any, ...]
Function = tuple[type, str]
"""A class of a table function, and its columns."""
PREFIX = "strandline_"
_REFS = "name STRING, commit STRING, created TIMESTAMP"
_LOG = (
    "id STRING, parents ARRAY<STRING>, committer STRING, message STRING, date TIMESTAMP, metadata MAP<STRING, STRING>"
)
_DIFF = "path STRING, change STRING, size_before BIGINT, size BIGINT, checksum_before STRING, checksum STRING"
_TABLES = "path STRING, kind STRING"
_STORAGE_USE = "part STRING, name STRING, objects BIGINT, bytes BIGINT"
_LOCKS = (
    "id STRING, start STRING, `end` STRING, owner STRING, description STRING, mode STRING, state STRING, "
    "taken_at TIMESTAMP, transaction BIGINT"
)
_TRANSACTIONS = (
    "id BIGINT, writer STRING, state STRING, begun_at TIMESTAMP, node STRING, process STRING, commit STRING, "
    "message STRING"
)
_TABLE_DIFF = (
    "table STRING, change STRING, added_rows BIGINT, removed_rows BIGINT, added_files BIGINT, removed_files BIGINT, "
    "snapshots ARRAY<BIGINT>"
)


def register(spark: SparkSession, lake: Lake) -> list[str]:
    """Register the table functions of a lake in a session; a second lake takes the place of the first.

    Returns:
        Their names: `strandline_branches` and `strandline_tags` of a repository; `strandline_log` of a ref, and the
        most commits to show; `strandline_diff` of two refs, and a prefix; `strandline_tables` of a ref; and
        `strandline_table_diff` of two refs, for Iceberg tables, and perhaps one of them; `strandline_entries` of a ref,
        and a prefix; `strandline_history` of a ref, and a path; `strandline_files` of a ref, and a table;
        `strandline_storage_use` of a repository, and a depth; `strandline_locks` and `strandline_transactions` of a
        branch. A ref is text such as `nyc/main`. The columns are in docs/spark.md.

    Raises:
        UsageError: workers of Spark could not open the lake: it lies in this process.
    """
    if not isinstance(lake, Lake):
        raise UsageError(f"register takes the lake, not {type(lake).__name__}.", next="Give what strandline.open made.")
    if str(lake._settings.kv).startswith("memory:"):
        raise UsageError(
            "This lake lies in the memory of this process, which Spark's workers do not see.",
            next="Open a lake in a folder, or in stores.",
        )

    functions = _of_history(lake) | _of_metadata(lake)
    for name, (handler, schema) in functions.items():
        made = cast("UserDefinedTableFunction", F.udtf(handler, returnType=schema))
        spark.udtf.register(PREFIX + name, made)
    return [PREFIX + name for name in functions]


def _of_history(lake: Lake) -> dict[str, Function]:
    class Branches:
        def eval(self, repository: str) -> Iterator[Row]:
            return _refs(lake.repository(_given(repository, "a repository")).branches())

    class Tags:
        def eval(self, repository: str) -> Iterator[Row]:
            return _refs(lake.repository(_given(repository, "a repository")).tags())

    class Log:
        def eval(self, ref: str, amount: int | None = None) -> Iterator[Row]:
            return _log(_ref(lake, ref), amount)

    class Diff:
        def eval(self, left: str, right: str, prefix: str = "") -> Iterator[Row]:
            return _diff(*_pair(lake, left, right), _given(prefix, "a prefix"))

    class Tables:
        def eval(self, ref: str) -> Iterator[Row]:
            return _tables(_ref(lake, ref))

    class TableDiff:
        def eval(self, left: str, right: str, table: str | None = None) -> Iterator[Row]:
            return _table_diff(*_pair(lake, left, right), table)

    return {
        "branches": (Branches, _REFS),
        "tags": (Tags, _REFS),
        "log": (Log, _LOG),
        "diff": (Diff, _DIFF),
        "tables": (Tables, _TABLES),
        "table_diff": (TableDiff, _TABLE_DIFF),
    }


def _of_metadata(lake: Lake) -> dict[str, Function]:
    class Entries:
        def eval(self, ref: str, prefix: str = "") -> Iterator[Row]:
            return _entries(_ref(lake, ref), _given(prefix, "a prefix"))

    class History:
        def eval(self, ref: str, path: str) -> Iterator[Row]:
            return iter(metadata.history_rows(_ref(lake, ref), _given(path, "a path")))

    class Files:
        def eval(self, ref: str, table: str) -> Iterator[Row]:
            return iter(metadata.file_rows(_ref(lake, ref).table(_given(table, "a table"))))

    class StorageUse:
        def eval(self, repository: str, depth: int = 1) -> Iterator[Row]:
            return _told(lake.repository(_given(repository, "a repository")).storage_use(depth=depth))

    class Locks:
        def eval(self, branch: str) -> Iterator[Row]:
            return _told(_branch(lake, branch).locks)

    class Transactions:
        def eval(self, branch: str) -> Iterator[Row]:
            return _transactions(_branch(lake, branch))

    return {
        "entries": (Entries, metadata.ENTRIES),
        "history": (History, metadata.HISTORY),
        "files": (Files, metadata.FILES),
        "storage_use": (StorageUse, _STORAGE_USE),
        "locks": (Locks, _LOCKS),
        "transactions": (Transactions, _TRANSACTIONS),
    }


def _given(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{value!r} is not {what}.", next="Give a text, such as 'nyc'.")
    return value


def _ref(lake: Lake, place: Any) -> Ref:
    named = place_on_a_ref(_given(place, "a ref"), "Write for example 'nyc/main'.")
    if named.path:
        raise UsageError(f"{place!r} is more than a ref.", next="Write for example 'nyc/main'.")
    return lake.repository(named.repository).ref(named.ref)


def _pair(lake: Lake, left: Any, right: Any) -> tuple[Ref, Ref]:
    return _ref(lake, left), _ref(lake, right)


def _branch(lake: Lake, place: Any) -> Branch:
    found = _ref(lake, place)
    if not isinstance(found, Branch):
        raise UsageError(f"{place!r} is not a branch.", next="Write for example 'nyc/main'.")
    return found


def _told(found: Results[Any]) -> Iterator[Row]:
    """The rows of what a call returns, with the columns of its Arrow table."""
    for row in found.to_arrow().to_pylist():
        yield tuple(row.values())


def _entries(ref: Ref, prefix: str) -> Iterator[Row]:
    for part in ref.list(prefix).tables():
        yield from (tuple(row.values()) for row in part.to_pylist())


def _transactions(branch: Branch) -> Iterator[Row]:
    for one in branch.transactions:
        yield one.id, one.writer, one.state, one.begun_at, one.node, one.process, one.commit, one.message


def _refs(found: Any) -> Iterator[Row]:
    for one in found:
        yield one.name, one.commit, one.created_at


def _log(ref: Ref, amount: int | None) -> Iterator[Row]:
    for one in ref.log(amount=amount):
        yield one.id, list(one.parents), one.committer, one.message, one.date, dict(one.metadata)


def _diff(left: Ref, right: Ref, prefix: str) -> Iterator[Row]:
    for one in left.diff(right, prefix):
        sides = one.before, one.after
        sizes, sums = ([getattr(side, name, None) for side in sides] for name in ("size", "checksum"))
        yield one.path, one.kind, *sizes, *sums


def _tables(ref: Ref) -> Iterator[Row]:
    ends = {"/" + POINTER: "iceberg", "/" + RECORD_NAME: "native"}
    for info in ref.list():
        for end, kind in ends.items():
            if info.path.endswith(end):
                yield info.path.removesuffix(end), kind


def _table_diff(left: Ref, right: Ref, table: str | None) -> Iterator[Row]:
    from strandline.iceberg import diff  # noqa: PLC0415 - only lakes with Iceberg's tables need it

    for one in diff(left, right, table):
        counts = one.added_rows, one.removed_rows, one.added_files, one.removed_files
        yield one.table, one.change, *counts, [made.id for made in one.snapshots]
