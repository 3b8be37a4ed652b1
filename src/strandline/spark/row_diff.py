"""The rows in which a table differs between two refs; files that both have are not read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from strandline.errors import ObjectMissing, TableNotFound, UsageError
from strandline.repository.refs.ref import Ref, as_ref
from strandline.shards.rows.codec import DIFF
from strandline.spark.read import quoted, scan_files
from strandline.spark.session import check_session
from strandline.tables.columns import is_widening, same_type, type_name
from strandline.tables.record import TableRecord
from strandline.tables.scan import TableFile
from strandline.tables.table import Table

CHANGE = "_change"
BEFORE = "_before"
AFTER = "_after"


def row_diff(
    spark: SparkSession, left: Ref, right: Ref | str, path: str, *, key: Sequence[str] | None = None
) -> DataFrame:
    """What changes in the rows of a native table from one ref to another one; what is staged on a branch counts.

    Files that both refs have are not read, so the cost is that of the files that differ.

    Args:
        path: of the table; one of the refs may lack it.
        key: columns that name a row. Without it a row that changed is one that went and one that came.

    Returns:
        Without a key: the columns of the table, and `_diff`, how many more such rows there are on the right. With one:
        the columns of the key, `_change` ("added", "removed" or "changed"), and `_before` and `_after`, structs of all
        columns, null where there is no such row. If several rows have one key, they are paired in some order.

    Raises:
        TableNotFound: neither ref has the table.
        ObjectMissing: a file elsewhere was written over between the refs.
        UsageError: the table has no such column, or a column changed its type.
    """
    check_session(spark)
    if not isinstance(left, Ref):
        raise UsageError(
            f"{left!r} is not a ref.", next='Give a handle, such as lake.repository("nyc").branch("main").'
        )
    sides = [ref.table(path) for ref in (left, as_ref(left._core, right))]
    records = [table._find_record()[1] for table in sides]
    newest = records[1] or records[0]
    if newest is None:
        raise TableNotFound(
            f"{path!r} is a table neither of {left.place} nor of {sides[1].ref!r}.",
            next="Check its path. Iceberg's tables are compared by strandline.iceberg.diff.",
        )
    names = None if key is None else check_key(newest, key)
    refuse_taken(newest, (DIFF,) if names is None else (DIFF, CHANGE, BEFORE, AFTER))
    _refuse_other_types(records, path)
    before, after = _only(spark, sides, records)
    every = after.withColumn(DIFF, F.lit(1).cast("bigint")).unionByName(
        before.withColumn(DIFF, F.lit(-1).cast("bigint")), allowMissingColumns=True
    )
    columns = [name for name in every.columns if name != DIFF]
    net = every.groupBy(*map(quoted, columns)).agg(F.sum(DIFF).alias(DIFF)).where(F.col(DIFF) != 0)
    return net if names is None else _by_key(net, columns, names)


def check_key(record: TableRecord, key: Sequence[str]) -> list[str]:
    """The columns of a key.

    Raises:
        UsageError: the table has no such column, or the key has no column.
    """
    names = [key] if isinstance(key, str) else list(key)
    unknown = [name for name in names if name not in record.names]
    if len(set(names)) < len(names):
        raise UsageError("A column of the key is named twice.", next="Name each once.")
    kinds = {field["name"]: field["type"] for field in record.fields}
    for name in names:
        if type_name(kinds.get(name, "")).startswith(("map", "variant")):
            raise UsageError(f"Columns of type {type_name(kinds[name])} name no row.", next="Take other columns.")
    if unknown or not names:
        raise UsageError(
            f"{unknown[0]!r} is not a column of the table." if unknown else "A key needs at least one column.",
            next=f"Its columns are {', '.join(record.names)}.",
        )
    return names


def refuse_taken(record: TableRecord, names: Sequence[str]) -> None:
    """Refuse a table with columns that are called as those that are added.

    Raises:
        UsageError: it has one.
    """
    taken = [name for name in record.names if name.lower() in names]
    if taken:
        raise UsageError(
            f"The table has a column {taken[0]!r}, as the result has one of its own.",
            next="Rename it, or compare the files: ref.diff(other, path).",
        )


def _refuse_other_types(records: Sequence[TableRecord | None], path: str) -> None:
    left, right = ({field["name"]: field["type"] for field in one.fields} if one else {} for one in records)
    for name in left.keys() & right.keys():
        kinds = left[name], right[name]
        if not (same_type(*kinds) or is_widening(*kinds) or is_widening(*kinds[::-1])):
            raise UsageError(
                f"The column {name!r} of {path!r} is {type_name(kinds[0])} on the left and {type_name(kinds[1])} on "
                "the right.",
                next="Compare the files instead: ref.diff(other, path).",
            )


def _only(
    spark: SparkSession, sides: Sequence[Table], records: Sequence[TableRecord | None]
) -> tuple[DataFrame, DataFrame]:
    """The rows of the files that only one side has, on both sides.

    A file is the same if its bytes are and its folders give its rows the same values, whatever its path is.
    """
    files: list[list[TableFile]] = [
        [] if record is None else list(table._files(record)) for table, record in zip(sides, records, strict=True)
    ]
    if records[0] != records[1]:  # other columns: the same bytes are other rows
        common: set[object] = set()
    else:
        common = {_identity(file) for file in files[0]} & {_identity(file) for file in files[1]}
    _refuse_written_over(files)
    newest = records[1] or records[0]
    assert newest is not None
    frames = []
    for table, record, held in zip(sides, records, files, strict=True):
        counts: dict[object, int] = {}
        kept = []
        for file in held:  # a file that is linked twice has its rows twice
            name = _identity(file)
            counts[name] = counts.get(name, 0) + 1
            if name not in common or counts[name] > 1:
                kept.append(file)
        frames.append(scan_files(spark, table, record or newest, kept))
    return frames[0], frames[1]


def _refuse_written_over(files: Sequence[Sequence[TableFile]]) -> None:
    """Refuse files elsewhere that have other bytes on the two sides: those of the older side are gone."""
    known = {file.info.physical_address: (file.info.size, file.info.checksum) for file in files[0]}
    for file in files[1]:
        before = known.get(file.info.physical_address)
        if before is not None and before != (file.info.size, file.info.checksum):
            raise ObjectMissing(
                f"{file.info.path!r} was written over between the two refs: its rows of before are gone.",
                next="Compare the files instead: ref.diff(other, path).",
            )


def _identity(file: TableFile) -> object:
    info = file.info  # bytes elsewhere may have been written over
    return (
        info.physical_address,
        info.size,
        info.checksum,
        tuple(sorted(file.partition.items(), key=lambda item: item[0])),
    )


def _by_key(net: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Rows that came paired with those that went."""
    whole = F.struct(*map(quoted, columns)).alias("__sl_row")
    copies = F.explode(F.sequence(F.lit(1), F.abs(F.col(DIFF)).cast("int"))).alias("__sl_copy")
    rows = net.select(*map(quoted, key), whole, (F.col(DIFF) > 0).alias("__sl_came"), copies)
    order = Window.partitionBy(*map(quoted, key), "__sl_came").orderBy(F.xxhash64(F.to_json("__sl_row")), "__sl_copy")
    numbered = rows.withColumn("__sl_number", F.row_number().over(order))
    came, row = F.col("__sl_came"), F.col("__sl_row")
    before, after = (F.first(F.when(one, row), ignorenulls=True) for one in (~came, came))
    paired = numbered.groupBy(*map(quoted, key), "__sl_number").agg(before.alias(BEFORE), after.alias(AFTER))
    change = F.when(F.col(BEFORE).isNull(), "added").when(F.col(AFTER).isNull(), "removed").otherwise("changed")
    return paired.select(*map(quoted, key), change.alias(CHANGE), BEFORE, AFTER)
