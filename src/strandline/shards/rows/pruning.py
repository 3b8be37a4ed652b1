"""Which parts and row groups a condition can be true in: the others are not read.

Imported where it is used: Arrow's datasets import pandas, which takes longer than all else that a process loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from strandline.shards.rows.statistics import decoded
from strandline.shards.state.state import Part

PARQUET = ds.ParquetFileFormat()


def may_match(parts: Sequence[Part], where: pc.Expression, schema: pa.Schema) -> list[bool]:
    """For each part whether some row of it may meet a condition.

    Arrow judges: each part is told to it as a file whose partition holds what its statistics say. Columns with nulls
    are left out, since a bound says nothing of those.
    """
    local = fs.LocalFileSystem()
    fragments = [
        PARQUET.make_fragment(str(at), filesystem=local, partition_expression=_known(part, schema))
        for at, part in enumerate(parts)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, PARQUET, local)
    found = {int(fragment.path) for fragment in dataset.get_fragments(filter=where)}
    return [at in found for at in range(len(parts))]


def matching_rows(
    source: pa.NativeFile | str, schema: pa.Schema, columns: Sequence[str], where: pc.Expression
) -> pa.Table:
    """The rows of one Parquet file that meet a condition; row groups that cannot hold any are not read."""
    if isinstance(source, str):
        fragment = PARQUET.make_fragment(source, filesystem=fs.LocalFileSystem())
    else:
        fragment = PARQUET.make_fragment(source)
    return fragment.to_table(schema=schema, columns=list(columns), filter=where)


def _known(part: Part, schema: pa.Schema) -> pc.Expression:
    known = pc.scalar(True)
    for name, (low, high, nulls) in decoded(part.statistics).items():
        if nulls or name not in schema.names:
            continue
        kind = schema.field(name).type
        field = pc.field(name)
        if low is not None:
            known = known & (field >= _scalar(low, kind))
        if high is not None:
            known = known & (field <= _scalar(high, kind))
    return known


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_date32(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)
