"""Reading a table with Spark's own readers.

Partition values come from the *logical* path of a file. Where its physical folders say the same, which they do for all
that strandline wrote and nobody renamed, Spark finds them in the physical path and prunes by them natively. All other
files get them from a literal map keyed by physical path.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from strandline.blob import BlobNotFound, BlobStore, is_absolute
from strandline.core.physical import PHYSICAL_ROOT
from strandline.core.repository_core import RepositoryCore
from strandline.errors import InvalidSettings, StorageError, StoreUnavailable, StrandlineError, UsageError
from strandline.parallel import in_parallel
from strandline.spark.roots import folders_and_files, still_whole
from strandline.spark.session import described, held_settings, is_connect, reason_of
from strandline.tables.condition import Condition, refused
from strandline.tables.formats import COLLATIONS
from strandline.tables.keys import Among, among
from strandline.tables.layout import in_own_place, is_skipped_by_spark
from strandline.tables.record import RESERVED_COLUMNS, TableRecord
from strandline.tables.scan import Pruning, TableFile, changed, vanished
from strandline.tables.table import Table

LISTING_PARALLELISM = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
LISTING_TASKS = "4"
"""Spark's default makes a task for every file of an explicit list, which takes most of the planning time."""
CHECKED_BY_SPARK = ("parquet", "orc")
"""Formats that end with what their readers begin with: Spark notices by itself that a file was cut."""
FILES_IN_A_MAP = 200
"""Values of partitions of more files than these are joined."""
LIST_FROM_FILES = 20
"""So many files of a folder are looked up by listing it."""
TIME_ZONE = "UTC"
"""In which partition folders spell timestamps, whatever the session's zone is."""
_GLOB = re.compile(r"([\[\]{}*?\\])")


def struct_of(record: TableRecord) -> StructType:
    """The columns of a table as Spark's type."""
    # a copy, since PySpark changes what it reads
    fields = json.loads(json.dumps(record.fields), object_hook=_with_providers)
    return StructType.fromJson({"type": "struct", "fields": fields})


def _with_providers(found: dict[str, Any]) -> dict[str, Any]:
    """Records of earlier versions have collations without the provider that PySpark wants to read."""
    named = found.get(COLLATIONS)
    if isinstance(named, dict):
        full = {at: name if "." in name else f"{_provider(name)}.{name}" for at, name in named.items()}
        return {**found, COLLATIONS: full}
    return found


def _provider(collation: str) -> str:
    return "spark" if collation.startswith("UTF8_") else "icu"


def read_table(table: Table, spark: SparkSession, where: Any) -> DataFrame:
    """The rows of a table as a data frame, read only from files that may have rows for which a condition is true."""
    if not hasattr(spark, "createDataFrame"):
        raise UsageError(
            f"to_spark takes a Spark session first, not {type(spark).__name__}.",
            next="For example table.to_spark(spark, where=…).",
        )
    record = table.record
    files = list(table._files(record))
    condition = None if where is None else condition_of(spark, record, where)
    if condition is not None:
        files = Pruning(record, condition).needed(files)
    with described(spark, f"strandline: plan a read of {table.path}"):
        frame = scan_files(spark, table, record, files)
        if where is None:
            return frame
        if isinstance(condition, Among):
            return _among(frame, record, condition)
        try:
            chosen = frame.where(where)
            if is_connect(spark):
                chosen.isStreaming  # noqa: B018 - a question that the server answers: only now it sees the condition
        except Exception as error:
            raise unfit_condition(str(where), record, error) from error
    return chosen


def unfit_condition(text: str, record: TableRecord, error: Exception) -> UsageError:
    """What a read or a write says of a condition that Spark does not take."""
    if any(name in str(error) for name in ("MISSING_ATTRIBUTES", "CANNOT_RESOLVE_DATAFRAME_COLUMN")):
        return UsageError(
            f"The condition {text!r} names a column of another data frame.",
            next='Write it with functions.col("…"), which means the column of the table, or as a text.',
        )
    return refused(text, record, reason_of(error))


def keys_frame(spark: SparkSession, record: TableRecord, condition: Among) -> DataFrame:
    """Keys as a frame with the types of the table; without them Spark takes a moment without a zone for one with."""
    fields = {field.name: field for field in struct_of(record).fields}
    names = condition.keys.column_names
    return spark.createDataFrame(condition.keys, StructType([fields[name] for name in names]))


def _among(frame: DataFrame, record: TableRecord, condition: Among) -> DataFrame:
    keys = keys_frame(frame.sparkSession, record, condition)
    return frame.join(keys, condition.keys.column_names, "left_semi").select(*map(quoted, frame.columns))


def collected(frame: DataFrame) -> pa.Table:
    """The rows of a frame in this process, computed once."""
    try:
        return frame.distinct().toArrow()
    except Exception as error:
        raise StorageError(
            f"Spark failed to compute the keys: {reason_of(error)}.", next="Mend the frame, then repeat the call."
        ) from error


def condition_of(spark: SparkSession, record: TableRecord, where: Any) -> Condition | None:
    """What a text, a column or a frame of keys says; None if only Spark knows."""
    from strandline.tables.condition_text import condition_of_column, parse_condition  # noqa: PLC0415 - loads a SQL parser

    zone = spark.conf.get("spark.sql.session.timeZone") or TIME_ZONE
    if not isinstance(where, str | Column):
        return among(where, record)
    if not isinstance(where, str):
        # Spark Connect shows strings without quotes, so that nothing is sure; Spark itself skips what it can
        return None if is_connect(spark) else condition_of_column(str(where), record, zone)
    try:
        return parse_condition(where, record, zone)
    except UsageError:
        return None  # Spark may know better; if not, it says so


def scan_files(spark: SparkSession, table: Table, record: TableRecord, files: Sequence[TableFile]) -> DataFrame:
    """A data frame over exactly these files of a table."""
    if not files:
        return spark.createDataFrame([], struct_of(record))
    return reduce(DataFrame.unionByName, [frame for _, frame in scan_in_parts(spark, table, record, files)])


FILE = "__sl_file"
"""A column with the path of the file that a row is from, as `metadata_path` spells it."""


def scan_in_parts(
    spark: SparkSession, table: Table, record: TableRecord, files: Sequence[TableFile], *, with_file: bool = False
) -> list[tuple[list[TableFile], DataFrame]]:
    """Frames over files of a table, at least one; none has the bytes of one physical file twice.

    Args:
        with_file: add the column `FILE`.
    """
    core = table.ref._core
    schema = struct_of(record)
    _refuse_skipped(files)
    is_checked = record.file_format in CHECKED_BY_SPARK
    _refuse_changed(table, [file for file in files if not is_checked or is_absolute(file.info.physical_address)])
    native: dict[str, TableFile] = {}
    moved: list[TableFile] = []
    for file in files:
        address = file.info.physical_address
        if address not in native and (not record.partition_by or in_own_place(file.relative, address)):
            native[address] = file
        else:
            moved.append(file)
    shown = list(map(quoted, record.names))
    path = [F.col("_metadata.file_path").alias(FILE)] if with_file else []
    try:
        with held_settings(spark, {LISTING_PARALLELISM: LISTING_TASKS}):
            parts = []
            if native:
                some = list(native.values())
                parts.append((some, _read_native(spark, core, record, schema, some, [*shown, *path])))
            shown += [F.col(FILE)] if with_file else []
            parts += [(layer, _read_moved(spark, core, record, schema, layer, shown)) for layer in _layers(moved)]
            if is_connect(spark):
                for _, frame in parts:
                    frame.isStreaming  # noqa: B018 - the server lists the files now, while the setting is held
            return parts
    except StrandlineError:
        raise
    except Exception as error:
        raise _why(table, files, error) from error


def _refuse_skipped(files: Sequence[TableFile]) -> None:
    for file in files:
        if is_skipped_by_spark(file.info.physical_address, file.relative):
            raise UsageError(
                f"Spark would misread {file.info.path!r} without a word: its bytes are at "
                f"{file.info.physical_address!r}, and Spark goes by that name.",
                next="Bring the bytes in with branch.put, which names them safely; or read with to_arrow.",
            )


def _refuse_changed(table: Table, files: Sequence[TableFile]) -> None:
    """Raise if a file is not what is on record: rows that are missing from a text would not be missed, and statistics
    say nothing of a file that somebody wrote over.

    A request for each file, or one for a folder that holds many of them. Imported files that this process cannot reach,
    as only Spark's workers have the keys, are left to Spark.
    """
    core = table.ref._core
    folders: dict[tuple[str, bool], list[TableFile]] = {}
    for file in files:
        address = file.info.physical_address
        folders.setdefault((address.rpartition("/")[0], is_absolute(address)), []).append(file)
    looks = [
        (held[at : at + 1] if len(held) < LIST_FROM_FILES else held)
        for held in folders.values()
        for at in range(len(held) if len(held) < LIST_FROM_FILES else 1)
    ]

    def look(some: Sequence[TableFile]) -> StrandlineError | None:
        address = some[0].info.physical_address
        try:
            blobs, key = core.resolver.resolve(address)
            if len(some) == 1:
                there = {key: blobs.head(key)}
            else:
                pages = blobs.list_pages(key.rpartition("/")[0] + "/")
                there = {info.key: info for page in pages for info in page}
        except BlobNotFound:
            there = {}
        except (StoreUnavailable, InvalidSettings):
            if is_absolute(address):
                return None
            raise
        for file in some:
            found = there.get(core.resolver.resolve(file.info.physical_address)[1])
            if found is None:
                return vanished(file, table._describe())
            if (error := changed(file, table._describe, found)) is not None:
                return error
        return None

    for error in in_parallel(look, looks):
        if error is not None:
            raise error


def _why(table: Table, files: Sequence[TableFile], error: Exception) -> StrandlineError:
    """What to say when Spark cannot plan: a file that is gone is named."""
    core = table.ref._core
    if "FileSystem not found" in str(error) or "No FileSystem for scheme" in str(error):
        return no_filesystem(core)

    def is_gone(file: TableFile) -> TableFile | None:
        blobs, key = core.resolver.resolve(file.info.physical_address)
        try:
            blobs.head(key)
        except BlobNotFound:
            return file
        return None

    gone = next((file for file in in_parallel(is_gone, files) if file is not None), None)
    if gone is not None:
        return vanished(gone, table._describe())
    return StorageError(
        f"Spark cannot read {table._describe()}: {reason_of(error)}.",
        next="Mend what Spark complains of, then read again.",
    )


def no_filesystem(core: RepositoryCore) -> UsageError:
    return UsageError(
        f"This Spark session cannot reach {core.resolver.namespace.url}: it was started without its file system.",
        next="Set the session up with strandline.spark.configure(SparkSession.builder, lake) before it starts.",
    )


def _layers(files: Sequence[TableFile]) -> list[list[TableFile]]:
    """Splits files so that no layer has a physical file twice: one that is linked twice is read twice."""
    layers: list[dict[str, TableFile]] = []
    for file in files:
        address = file.info.physical_address
        free = next((layer for layer in layers if address not in layer), None)
        if free is None:
            layers.append({address: file})
        else:
            free[address] = file
    return [list(layer.values()) for layer in layers]


def reader_of(spark: SparkSession, record: TableRecord) -> DataFrameReader:
    """A reader with the format and the options of a table."""
    return spark.read.format(record.file_format).options(**record.options).option("timeZone", TIME_ZONE)


def _read_native(
    spark: SparkSession,
    core: RepositoryCore,
    record: TableRecord,
    schema: StructType,
    files: Sequence[TableFile],
    shown: Sequence[Column],
) -> DataFrame:
    reader = reader_of(spark, record)
    if record.partition_by:
        # all writes share one base; its two outer levels appear as columns, which are named so as not to be guessed at
        outer = [StructField(name, StringType()) for name in RESERVED_COLUMNS]
        reader = reader.option("basePath", core.resolver.namespace.spark_url(PHYSICAL_ROOT))
        reader = reader.schema(StructType([*schema.fields, *outer]))
    else:
        reader = reader.schema(schema)
    folders, rest = folders_and_files(core, files)
    if folders:
        urls = [core.resolver.namespace.spark_url(folder) for folder in folders]
        frame = reader.load([*urls, *(_spark_path(core, file) for file in rest)])
        if still_whole(core, folders, files):
            return frame.select(*shown)
    return reader.load([_spark_path(core, file) for file in files]).select(*shown)


def _read_moved(
    spark: SparkSession,
    core: RepositoryCore,
    record: TableRecord,
    schema: StructType,
    files: Sequence[TableFile],
    shown: Sequence[Column],
) -> DataFrame:
    stored = StructType([field for field in schema.fields if field.name not in record.partition_by])
    paths = [_spark_path(core, file) for file in files]
    # a recursive look-up is the way to keep Spark from reading partitions out of the physical path
    frame = reader_of(spark, record).schema(stored).option("recursiveFileLookup", "true").load(paths)
    frame = frame.withColumn(FILE, F.col("_metadata.file_path"))
    if not record.partition_by:
        return frame.select(*shown)
    # a map is looked through from its beginning for each row
    add = _with_literals if len(files) <= FILES_IN_A_MAP else _with_joined
    frame = add(spark, frame, [metadata_path(core, file) for file in files], _partition_texts(record, schema, files))
    for name in record.partition_by:
        frame = frame.withColumn(name, quoted(name).cast(schema[name].dataType))
    return frame.select(*shown)


def _partition_texts(
    record: TableRecord, schema: StructType, files: Sequence[TableFile]
) -> dict[str, list[str | None]]:
    """The texts of partition columns, file by file, as casts of Spark take them."""
    found = {}
    for name in record.partition_by:
        suffix = "Z" if schema[name].dataType.typeName() == "timestamp" else ""
        texts = (file.partition[name] for file in files)
        found[name] = [None if text is None else text + suffix for text in texts]
    return found


Texts = Mapping[str, Sequence[str | None]]


def _with_literals(_: SparkSession, frame: DataFrame, paths: Sequence[str], texts: Texts) -> DataFrame:
    for name, values in texts.items():
        literals = [F.lit(one) for pair in zip(paths, values, strict=True) if pair[1] is not None for one in pair]
        value = F.try_element_at(F.create_map(*literals), F.col(FILE)) if literals else F.lit(None).cast("string")
        frame = frame.withColumn(name, value)
    return frame


def _with_joined(spark: SparkSession, frame: DataFrame, paths: Sequence[str], texts: Texts) -> DataFrame:
    columns = {FILE: pa.array(paths, pa.string()), **{name: pa.array(one, pa.string()) for name, one in texts.items()}}
    return frame.join(F.broadcast(spark.createDataFrame(pa.table(columns))), FILE, "left")


def quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _spark_path(core: RepositoryCore, file: TableFile) -> str:
    """The path of a file for Spark, which takes some characters of an explicit path for a pattern."""
    store, key = core.resolver.resolve(file.info.physical_address)
    return explicit(store.spark_url(key))


def explicit(url: str) -> str:
    """A URL as a path that Spark takes for itself, and not for a pattern."""
    return _GLOB.sub(r"\\\1", url)


def metadata_path(core: RepositoryCore, file: TableFile) -> str:
    """The path of a file as `_metadata.file_path` spells it: a URI with its odd characters escaped."""
    store, key = core.resolver.resolve(file.info.physical_address)
    return _uri(store, key)


def _stays(character: str) -> bool:
    """Whether `java.net.URI` leaves a character beyond ASCII as it is: all but spaces and controls."""
    return ord(character) > 127 and unicodedata.category(character) not in ("Zs", "Zl", "Zp", "Cc")


def _uri(store: BlobStore, key: str) -> str:
    scheme, _, rest = store.spark_url(key).partition("://")
    text = "".join(c if _stays(c) else quote(c, safe="/:@!$&'()*+,;=~-._") for c in rest)
    return f"file:{text}" if scheme == "file" else f"{scheme}://{text}"  # a Hadoop path drops an empty host
