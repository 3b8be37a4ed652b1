"""Copying bytes by Spark's executors: they get the addresses of the stores, and find credentials where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from strandline.blob import BlobStore, open_store
from strandline.core.repository_core import RepositoryCore
from strandline.errors import StorageError, StrandlineError
from strandline.progress import Progress
from strandline.repository.jobs.copying import Copied, Copier, CopyTask, copy_one
from strandline.repository.refs.exporting import UNDER_WAY
from strandline.results.rows import ObjectInfo
from strandline.spark.reach import is_elsewhere
from strandline.spark.session import check_session, described, reason_of, refuse_two_stores
from strandline.spark.versions import Task, of_this_version, refuse_other_versions

SCHEMA = "path STRING, size LONG, checksum STRING, error STRING"


def copier(spark: SparkSession, mark: str = "") -> Copier:
    """Copies objects in tasks of a Spark job.

    Args:
        mark: a key at the target, without which tasks do not write; "" if it is a lake that Spark uses anyway.
    """

    def copy(target: BlobStore, tasks: Sequence[CopyTask]) -> Iterator[Copied]:
        if not tasks:
            return iter(())
        refuse_other_versions(spark)
        fields = CopyTask.__struct_fields__
        columns = {name: pa.array([getattr(task, name) for task in tasks], _type(name)) for name in fields}
        rows = spark.createDataFrame(pa.table(columns)).repartition(min(len(tasks), _parallelism(spark)))
        try:
            with described(spark, f"strandline: copy {len(tasks)} objects"):
                done = rows.mapInArrow(of_this_version(_copies(target.url, mark)), SCHEMA).toArrow().to_pylist()
        except Exception as error:
            raise StorageError(
                f"Spark could not copy the objects: {reason_of(error)}.",
                safe="Nothing of it is visible.",
                next="Look at Spark's logs, then repeat the job: it goes on where it was.",
            ) from error
        for row in done:
            if row["error"]:
                raise StorageError(row["error"], safe="Nothing of it is visible.", next="Repeat the job.")
        return iter([Copied(row["path"], row["size"], row["checksum"]) for row in done])

    return copy


def exporter(
    spark: SparkSession, core: RepositoryCore, progress: Progress
) -> Callable[[BlobStore, Sequence[Any]], None]:
    """Copies objects of a repository to their paths in another store, in tasks of a Spark job.

    Raises:
        UsageError: it is no session, or the repository has two stores.
    """
    check_session(spark)
    refuse_two_stores(core)
    copy = copier(spark, UNDER_WAY)

    def export(place: BlobStore, items: Sequence[tuple[ObjectInfo, str]]) -> None:
        tasks = []
        for info, relative in items:
            store, key = core.resolver.resolve(info.physical_address)
            tasks.append(CopyTask(info.path, store.url, key, relative, info.size, info.checksum))
        done = sum(1 for _ in copy(place, tasks))
        progress("exporting", done, len(tasks))

    return export


def _copies(target_url: str, mark: str) -> Task:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = open_store(target_url)
        wrong = is_elsewhere(target, mark) if mark else None
        stores: dict[str, BlobStore] = {}
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                task = CopyTask(**row)
                try:
                    if wrong is not None:
                        raise wrong
                    if task.source_url not in stores:
                        stores[task.source_url] = open_store(task.source_url)
                    source = stores[task.source_url]
                    found.append({**msgspec.structs.asdict(copy_one(source, target, task)), "error": None})
                except StrandlineError as error:
                    found.append({"path": task.path, "size": 0, "checksum": "", "error": str(error)})
            yield pa.RecordBatch.from_pylist(
                found,
                pa.schema(
                    [("path", pa.string()), ("size", pa.int64()), ("checksum", pa.string()), ("error", pa.string())]
                ),
            )

    return run


def _type(name: str) -> pa.DataType:
    return pa.int64() if name == "size" else pa.string()


def _parallelism(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
