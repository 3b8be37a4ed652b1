"""Writing groups of a table's files anew in tasks of a Spark job; see `tables.rewriting`."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

import strandline
from strandline.blob import Resolver, open_store
from strandline.core.repository_core import RepositoryCore
from strandline.errors import FormatError, ObjectMissing, StorageError, UsageError
from strandline.spark.session import check_session, described, reason_of, refuse_two_stores
from strandline.spark.versions import refuse_other_version, refuse_other_versions
from strandline.tables.rewriting import Group, Rewriters, write_group


def rewriters(spark: SparkSession, core: RepositoryCore) -> Rewriters:
    """Writes each group in a task.

    Raises:
        UsageError: it is no session, or the repository has two stores.
    """
    check_session(spark)
    refuse_two_stores(core)
    return _OnSpark(spark)


class _OnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, groups: Sequence[Group]) -> Iterator[list[str]]:
        refuse_other_versions(self._spark)
        rows = pa.table(
            {
                "at": range(len(groups)),
                "version": [strandline.__version__] * len(groups),
                "group": [pickle.dumps(group) for group in groups],
            }
        )
        frame = self._spark.createDataFrame(rows).repartitionByRange(len(groups), "at")
        try:
            with described(self._spark, f"strandline: rewrite {len(groups)} groups of files of {groups[0].path}"):
                made = (
                    frame.mapInArrow(_write_all, "at LONG, names ARRAY<STRING>, refused BINARY").toArrow().to_pylist()
                )
        except Exception as error:
            raise StorageError(
                f"Spark could not rewrite the files of table {groups[0].path!r}: {reason_of(error)}.",
                safe="Nothing of it is visible.",
                next="Look at Spark's logs, then repeat the call.",
            ) from error
        for row in sorted(made, key=lambda row: int(row["at"])):
            if row["refused"]:
                raise pickle.loads(row["refused"])
            yield row["names"]


def _write_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write groups in a task. What is wrong with files is answered; all else is raised, and Spark tries again."""
    schema = pa.schema([("at", pa.int64()), ("names", pa.list_(pa.string())), ("refused", pa.binary())])
    for batch in batches:
        for row in batch.to_pylist():
            refuse_other_version(row["version"])
            group: Group = pickle.loads(row["group"])
            store = open_store(group.url)
            told: dict[str, object] = {"at": row["at"]}
            try:
                told["names"] = write_group(group, store, Resolver(store))
            except (UsageError, ObjectMissing, FormatError) as error:
                told["refused"] = pickle.dumps(error)
            yield pa.RecordBatch.from_pylist([told], schema)
