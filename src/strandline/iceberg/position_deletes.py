"""Files of position deletes: which rows of which data files are deleted.

Source: "Position Delete Files" of the Iceberg Table Spec.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.core.iceberg_files import avro

PATH_COLUMN, POS_COLUMN = "file_path", "pos"
PATH_FIELD_ID, POS_FIELD_ID = 2147483546, 2147483545
FORMATS = ("PARQUET", "AVRO", "ORC")
"""In which such files are; deletion vectors, in files of Puffin, are of one data file each and do not name it."""
SCHEMA = pa.schema(
    [
        pa.field(PATH_COLUMN, pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_FIELD_ID)}),
        pa.field(POS_COLUMN, pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POS_FIELD_ID)}),
    ]
)


def rows_of(data: bytes) -> pa.Table:
    """The rows of such a file, in whichever format it is, which its first bytes say.

    Of Avro and ORC the two columns that count; with them Parquet can be written that readers know by its ids.

    Raises:
        pa.ArrowException, ValueError: it cannot be read.
    """
    if data.startswith(b"PAR1"):
        return pq.read_table(pa.BufferReader(data))
    if data.startswith(b"ORC"):
        from pyarrow import orc  # noqa: PLC0415 - one format of several

        return orc.ORCFile(pa.BufferReader(data)).read().select([PATH_COLUMN, POS_COLUMN]).cast(SCHEMA)
    records = list(avro().reader(io.BytesIO(data)))
    return pa.table({name: [one[name] for one in records] for name in (PATH_COLUMN, POS_COLUMN)}, SCHEMA)
