"""Rows of a table deleted, updated and merged, by copy-on-write: the files that hold such rows are written anew.

Each change is a transaction of its own, or a part of the one that it is called on. It reads what the transaction was
begun on, so that what others do to the same files until it is published is a conflict, and never lost. Files that hold
no such row are found by partitions and statistics, and are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines import engine
from strandline.errors import UsageError
from strandline.tables.arrow_rows import write_table
from strandline.tables.given import data_of, is_spark_column, is_spark_frame, reason_of
from strandline.tables.outcomes import RowsChanged
from strandline.tables.record import Matched, NotMatched, WriteOptions
from strandline.tables.table import Table

MATCHED = ("update", "delete", "keep")
NOT_MATCHED = ("insert", "skip")
_AT, _OWN = "__strandline_source", "__strandline_target"


@contextmanager
def changing(table: Table, what: str, message: str | None, writer: str | None) -> Iterator[Table]:
    """The table in a transaction: the one that it is of, or one that is published at the end.

    Raises:
        UsageError: the table is of a transaction, and gets a message or a writer of its own; or it cannot be written.
    """
    ref = table.ref._for_writing()
    if ref.is_transaction:
        if message is not None or writer is not None:
            raise UsageError(
                "A change in a transaction is published with it, and has no message or writer of its own.",
                next="Give the message to the transaction.",
            )
        yield table
        return
    # a transaction sees what is committed: begun for nothing, it would leave its writer's name behind
    committed = Table(table.ref._other(table.ref.commit_id), table.path)
    if not committed.exists() and table.exists():
        raise UsageError(
            f"Table {table.path!r} is only staged, and rows are changed of what is committed.",
            next="Commit it first, or change it in the transaction that writes it.",
        )
    committed.record  # noqa: B018 - which says that there is none
    with ref._published(writer, message or what) as transaction:
        yield Table(transaction, table.path)


def delete_rows(table: Table, where: Any) -> RowsChanged:
    """Delete the rows that fulfil a condition; see `Table.delete`."""
    if is_spark_column(where) or is_spark_frame(where):
        return _by_spark("delete", table, where)
    count = table.count(where)
    if not count:
        return RowsChanged()
    nothing = pa.Table.from_batches([], table.to_arrow_batches("false").schema)
    done = write_table(table, nothing, replace(_OVERWRITE, where=where))
    return RowsChanged(deleted=count, files=done.files)


_OVERWRITE = WriteOptions(mode="overwrite", fits=False)


def update_rows(table: Table, assignments: Mapping[str, Any], where: Any) -> RowsChanged:
    """Change columns of the rows that fulfil a condition; see `Table.update`."""
    names = table.record.names
    if not assignments or (unknown := sorted(set(assignments) - set(names))):
        raise UsageError(
            f"Table {table.path!r} has no column {unknown[0]!r}." if assignments else "No column is to be changed.",
            next=f"It has {', '.join(names)}.",
        )
    if is_spark_column(where) or is_spark_frame(where):
        return _by_spark("update", table, where, assignments)
    condition = "true" if where is None else where
    count = table.count(condition)
    if not count:
        return RowsChanged()
    reader = table.to_arrow_batches(condition)

    def changed() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            columns = [
                _assigned(assignments[field.name], batch, field) if field.name in assignments else batch.column(at)
                for at, field in enumerate(batch.schema)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    rows = pa.RecordBatchReader.from_batches(reader.schema, changed())
    done = write_table(table, rows, replace(_OVERWRITE, where=condition))
    return RowsChanged(updated=count, files=done.files)


def _assigned(value: Any, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column of one value, or of what a function makes of the rows."""
    try:
        made = value(batch) if callable(value) else pa.scalar(value, field.type)
        if isinstance(made, pa.Scalar):
            made = pa.repeat(made, len(batch))
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        array = made if isinstance(made, pa.Array) else pa.array(made, field.type)
        array = array if array.type.equals(field.type) else array.cast(field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"Column {field.name!r} cannot become what it is set to: {reason_of(error)}.",
            next=f"Give a value of type {field.type}, or a function that makes an array of it from the rows.",
        ) from error
    if len(array) != len(batch):
        raise UsageError(
            f"The function for column {field.name!r} made {len(array):,} values of {len(batch):,} rows.",
            next="Return one value for each row.",
        )
    return array


def check_source(table: Table, held: Sequence[str], needed: Sequence[str]) -> None:
    """Raise `UsageError` unless a source has the columns that a merge needs, and none that the table lacks."""
    for name in needed:
        if name not in held:
            raise UsageError(f"The source has no column {name!r}.", next=f"It has {', '.join(held)}.")
    if unknown := [name for name in held if name not in table.record.names]:
        raise UsageError(
            f"Table {table.path!r} has no column {unknown[0]!r}, which the source has.",
            next="Select the columns of the table, or add the column to it first.",
        )


def merge_rows(
    table: Table, source: Any, on: Sequence[str], matched: Matched | Sequence[str], not_matched: NotMatched
) -> RowsChanged:
    """Bring rows of a source into the table by their keys; see `Table.merge_into`."""
    updated = _check_merge(table, on, matched, not_matched)
    if is_spark_frame(source):
        return _by_spark("merge", table, source, on, matched, not_matched)
    found = data_of(source)
    rows = pa.Table.from_batches(found.batches(), found.schema)
    check_source(table, rows.column_names, (*on, *updated))
    theirs = rows.column_names if matched == "update" else updated
    schema = table.to_arrow_batches("false").schema
    rows = _cast(rows, schema)
    has_key = _all_valid(rows, on)
    keyed = rows.filter(has_key)
    if len(keyed.select(on).group_by(on).aggregate([])) < len(keyed):
        raise UsageError(
            f"Several rows of the source have the same {', '.join(on)}: it is not said which one counts.",
            next="Keep one row for each key.",
        )
    keys = keyed.select(on)
    target = table.to_arrow(keys) if len(keys) else schema.empty_table()
    pairs = _pairs(keyed, target, on)
    hit = pairs.column(_AT).combine_chunks()
    own = pairs.column(_OWN).combine_chunks()
    is_hit = pc.is_in(pa.array(range(len(keyed)), pa.int64()), hit)
    inserted = keyed.filter(pc.invert(is_hit)) if not_matched == "insert" else keyed.slice(0, 0)
    without_key = rows.filter(pc.invert(has_key)) if not_matched == "insert" else rows.slice(0, 0)
    changed = _changed(keyed, target, hit, own, [] if matched in ("delete", "keep") else theirs)
    done = 0
    if matched == "keep":
        new = pa.concat_tables([inserted, without_key])
        done += write_table(table, new, WriteOptions()).files if len(new) else 0
        return RowsChanged(inserted=len(new), files=done)
    fresh = pa.concat_tables([changed, inserted])
    if len(hit) or len(fresh):
        done += write_table(table, fresh, replace(_OVERWRITE, where=keys, fits=True)).files
    if len(without_key):
        done += write_table(table, without_key, WriteOptions()).files
    count = len(inserted) + len(without_key)
    if matched == "delete":
        return RowsChanged(deleted=len(hit), inserted=count, files=done)
    return RowsChanged(updated=len(hit), inserted=count, files=done)


def _check_merge(
    table: Table, on: Sequence[str], matched: Matched | Sequence[str], not_matched: NotMatched
) -> tuple[str, ...]:
    """The columns that are updated where only some are; refuses what cannot be meant."""
    names = table.record.names
    updated = () if isinstance(matched, str) else tuple(matched)
    for name in (*on, *updated):
        if name not in names:
            raise UsageError(f"Table {table.path!r} has no column {name!r}.", next=f"It has {', '.join(names)}.")
    if not on or (set(on) & set(updated)):
        raise UsageError("A merge goes by columns that stay as they are.", next="Give on= the columns of the key.")
    if isinstance(matched, str) and matched not in MATCHED:
        raise UsageError(
            f"{matched!r} does not say what becomes of rows that match.",
            next=f"Use {', '.join(MATCHED)}, or the names of the columns to update.",
        )
    if not_matched not in NOT_MATCHED:
        raise UsageError(f"{not_matched!r} does not say what becomes of other rows.", next="Use insert or skip.")
    return updated


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The source's rows in the table's types, with nulls for columns that it lacks."""
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.chunked_array([pa.nulls(len(rows), field.type)], field.type))
            continue
        try:
            columns.append(rows.column(field.name).cast(field.type))
        except (pa.ArrowException, TypeError) as error:
            raise UsageError(
                f"Column {field.name!r} of the source does not fit {field.type}: {reason_of(error)}.",
                next="Cast it first.",
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _all_valid(rows: pa.Table, on: Sequence[str]) -> pa.ChunkedArray:
    """Which rows have a whole key: a null equals nothing."""
    valid = rows.column(on[0]).is_valid()
    for name in on[1:]:
        valid = pc.and_(valid, rows.column(name).is_valid())
    return cast("pa.ChunkedArray", valid)


def _pairs(source: pa.Table, target: pa.Table, on: Sequence[str]) -> pa.Table:
    """The places of rows with one key, in source and target."""
    left = target.select(on).append_column(_OWN, pa.array(range(len(target)), pa.int64()))
    right = source.select(on).append_column(_AT, pa.array(range(len(source)), pa.int64()))
    return left.join(right, list(on), join_type="inner")


def _changed(source: pa.Table, target: pa.Table, hit: pa.Array, own: pa.Array, theirs: Sequence[str]) -> pa.Table:
    """The rows of the target that match, with some columns of the source; none if it is not said which."""
    if not theirs:
        return target.slice(0, 0)
    columns = [
        source.column(name).take(hit) if name in theirs else target.column(name).take(own)
        for name in target.column_names
    ]
    return pa.Table.from_arrays(columns, schema=target.schema)


def _by_spark(what: str, *rest: Any) -> RowsChanged:
    found: RowsChanged = engine("spark").change_rows(what, *rest)
    return found
