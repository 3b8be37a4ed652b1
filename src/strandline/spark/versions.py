"""The same strandline in the driver and on the executors: jobs send it descriptions that only one version reads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import strandline
from strandline.errors import UsageError
from strandline.spark.session import parallelism

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
PROBES_PER_CORE = 2
MOST_PROBES = 512


def refuse_other_versions(spark: SparkSession) -> None:
    """Ask executors which strandline they have, before a job begins.

    Raises:
        UsageError: one has none, or another version.
    """
    probes = min(MOST_PROBES, PROBES_PER_CORE * parallelism(spark))
    rows = spark.range(0, probes, 1, probes).mapInArrow(_asking(), "version STRING, host STRING").distinct()
    for version, host in sorted((row["version"], row["host"]) for row in rows.collect()):
        if version != strandline.__version__:
            has = f"has strandline {version}" if version else "has no strandline"
            raise UsageError(
                f"The executor on {host} {has}, and this driver is {strandline.__version__}.",
                next="Ship the driver's package with the job: spark-submit --py-files strandline.zip, or a packed "
                "environment (docs/jobs.md).",
            )


def refuse_other_version(driver: str) -> None:
    """Refuse, in a task, work that another version describes: its executor may have come after all were asked.

    Raises:
        UsageError: the driver has another version.
    """
    if driver != strandline.__version__:
        raise UsageError(
            f"The executor on {socket.gethostname()} has strandline {strandline.__version__}, and this driver is "
            f"{driver}.",
            next="Ship the driver's package with the job (docs/jobs.md).",
        )


def of_this_version(task: Task) -> Task:
    """The same task, which refuses to begin on an executor that came with another version."""
    driver = strandline.__version__

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        refuse_other_version(driver)
        yield from task(batches)

    return run


def _asking() -> Task:
    """A function that travels whole: one that is only named could not be found where the package is missing."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket  # noqa: PLC0415 - runs where nothing of this module is loaded

        import pyarrow as arrow  # noqa: PLC0415

        try:
            from strandline import __version__ as version  # noqa: PLC0415
        except ImportError:
            version = ""
        for batch in batches:
            if batch.num_rows:
                yield arrow.RecordBatch.from_pydict({"version": [version], "host": [socket.gethostname()]})

    return ask
