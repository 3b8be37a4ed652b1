"""The Spark session: setting one up, settings held for the length of a call, and what its jobs are called."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import pyspark
from pyspark import SparkContext, StatusTracker
from pyspark.sql import SparkSession

from strandline import forks
from strandline.core.repository_core import RepositoryCore
from strandline.engines import load
from strandline.errors import UsageError
from strandline.ids import new_id
from strandline.lake import Lake
from strandline.progress import Progress, no_progress
from strandline.redaction import Secret
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.transaction import Transaction

EXTRAS = {"4.1": "4.1.1"}
"""The release of spark-hadoop-cloud and spark-avro for a version of PySpark that has none of its own number."""
ICEBERG_RUNTIMES = {"4.0": "1.12.0", "4.1": "1.12.0"}
"""By version of Spark, the release of Iceberg's runtime."""
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
GROUP = "spark.jobGroup.id"
WATCH_EVERY_S = 0.5
Result = TypeVar("Result")
S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
COMMITTERS = {
    "spark.hadoop.fs.s3a.committer.name": "magic",
    "spark.hadoop.fs.s3a.committer.magic.enabled": "true",
    "spark.hadoop.mapreduce.outputcommitter.factory.scheme.s3a": (
        "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory"
    ),
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": ("org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter"),
}
CLASSES = {
    "hadoop-aws": S3A,
    "spark-hadoop-cloud": COMMITTERS["spark.sql.parquet.output.committer.class"],
    "spark-avro": "org.apache.spark.sql.avro.AvroFileFormat",
    "iceberg-spark-runtime": "org.apache.iceberg.spark.SparkCatalog",
}
"""By how the name of a package begins, a class in it."""
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""A variable that spark-submit gives to the programs that it runs, after it has started Spark."""


def configure(
    builder: Any,
    lake: Lake | str | None = None,
    *,
    packages: bool = True,
    avro: bool = False,
    catalogs: Mapping[str, Ref | str] | None = None,
) -> Any:
    """Set up the builder of a Spark session for a lake; returns it.

    Args:
        builder: `SparkSession.builder`, before `getOrCreate`.
        lake: the lake, or the URL of its object store. On S3 the session gets S3A, its magic committer, and the
            endpoint; credentials come from the environment, and only those of the object store reach the executors.
        packages: let Spark fetch the Maven packages that S3, Avro and Iceberg need; False where they are on its class
            path.
        avro: get the package for tables in Avro, which PySpark does not bring.
        catalogs: by name in SQL, what Iceberg tables it shows: a branch, an open transaction, a tag or a commit, or
            their places, such as `nyc/main`. This process serves them on loopback until the lake is closed.

    Raises:
        UsageError: catalogs are wanted of a lake that is not open here, or of a version of Spark without Iceberg; or
            spark-submit has started Spark without the packages.
    """
    settings: dict[str, str] = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
    url = lake._settings.blob if isinstance(lake, Lake) else lake or ""
    is_s3 = urlsplit(url).scheme in ("s3", "s3a")
    wanted = [*(s3_packages() if is_s3 else ()), *([f"org.apache.spark:spark-avro_2.13:{_extras()}"] if avro else ())]
    if catalogs:
        if not isinstance(lake, Lake):
            raise UsageError("Catalogs are served by the process that has the lake open.", next="Give the Lake itself.")
        served = load("catalog").serve_catalog(lake)
        settings |= iceberg_settings(
            {name: _warehouse(ref) for name, ref in catalogs.items()}, served.uri, served.token
        )
        wanted.append(iceberg_package())
    if packages and wanted:
        if SUBMITTED in os.environ:
            _refuse_late_packages(wanted)
        settings["spark.jars.packages"] = ",".join(wanted)
    if is_s3:
        settings |= store_settings(url)
    for name, value in settings.items():
        builder.config(name, value)
    return builder


def _refuse_late_packages(wanted: Sequence[str]) -> None:
    """Refuse packages that the Spark of `spark-submit`, which runs already, was not given.

    Raises:
        UsageError: it was not.
    """
    SparkContext._ensure_initialized()
    loader = SparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]

    def is_there(name: str) -> bool:
        try:
            loader.loadClass(name)
        except Exception:  # Spark's bridge has one kind for all of Java's
            return False
        return True

    missing = [package for package in wanted if not is_there(_class_in(package))]
    if missing:
        raise UsageError(
            "spark-submit has started Spark already, and packages that a program asks for come too late.",
            next=f"Run spark-submit --packages {','.join(wanted)} …; or pass packages=False where they are on Spark's "
            "class path.",
        )


def _class_in(package: str) -> str:
    """A class that tells whether a package is there."""
    artifact = package.split(":")[1]
    return next(name for begins, name in CLASSES.items() if artifact.startswith(begins))


def iceberg_settings(catalogs: Mapping[str, str], uri: str, token: Secret) -> dict[str, str]:
    """The settings of a Spark session for catalogs.

    Args:
        catalogs: by name, their warehouses.
        uri: of the server, as `strandline serve` names it.
        token: of a user of the server.

    Raises:
        UsageError: a name cannot be that of a catalog.
    """
    found = {"spark.sql.extensions": ICEBERG_EXTENSIONS, "spark.hadoop.fs.s3.impl": S3A}
    for name, warehouse in catalogs.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name[:80]!r} cannot be the name of a catalog.", next="Use letters, digits and underscores."
            )
        place = f"spark.sql.catalog.{name}"
        found |= {
            place: "org.apache.iceberg.spark.SparkCatalog",
            f"{place}.type": "rest",
            f"{place}.uri": uri,
            f"{place}.warehouse": warehouse,
            f"{place}.token": token.reveal(),
            f"{place}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",  # which has Spark's own settings of stores
            f"{place}.cache-enabled": "false",  # or it shows a table as it was half a minute ago
        }
    return found


def _warehouse(ref: Ref | str) -> str:
    if isinstance(ref, str):
        return ref
    return f"{ref._core.name}/{ref.name}@tx={ref.writer}@id={ref.id}" if isinstance(ref, Transaction) else ref.place


def iceberg_package() -> str:
    """The Maven package of Iceberg's runtime for the installed PySpark.

    Raises:
        UsageError: there is none for its version.
    """
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in ICEBERG_RUNTIMES:
        raise UsageError(
            f"Iceberg has no runtime for Spark {pyspark.__version__} that strandline knows.",
            next=f"Use Spark {', '.join(sorted(ICEBERG_RUNTIMES))}, or packages=False with a runtime of your own.",
        )
    return f"org.apache.iceberg:iceberg-spark-runtime-{version}_2.13:{ICEBERG_RUNTIMES[version]}"


def store_settings(url: str) -> dict[str, str]:
    """How a Spark session reaches an object store, and commits to it; credentials come from the environment."""
    parts = urlsplit(url)
    return COMMITTERS | _s3_settings(parts.netloc, parts.query) if parts.scheme in ("s3", "s3a") else {}


def _s3_settings(bucket: str, query: str) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    place = f"spark.hadoop.fs.s3a.bucket.{bucket}"
    if "endpoint" in options:
        return {
            f"{place}.endpoint": options["endpoint"],
            f"{place}.path.style.access": "true",
            f"{place}.connection.ssl.enabled": str(options["endpoint"].startswith("https")).lower(),
            f"{place}.endpoint.region": options.get("region", "us-east-1"),
        }
    return {f"{place}.endpoint.region": options["region"]} if "region" in options else {}


def _extras() -> str:
    return EXTRAS.get(".".join(pyspark.__version__.split(".")[:2]), pyspark.__version__)


def s3_packages() -> list[str]:
    """The Maven packages that S3 needs, in the versions that fit the installed PySpark."""
    cloud = f"org.apache.spark:spark-hadoop-cloud_2.13:{_extras()}"
    return [f"org.apache.hadoop:hadoop-aws:{_hadoop_version()}", cloud]


def _hadoop_version() -> str:
    spec = find_spec("pyspark")
    # spark-submit loads the Python files of a distribution from an archive, and says where its jars are
    homes = [
        os.environ.get("SPARK_HOME", ""),
        str(Path(spec.origin).parent) if spec is not None and spec.origin else "",
    ]
    for jar in (jar for home in homes if home for jar in Path(home, "jars").glob("hadoop-client-api-*.jar")):
        return jar.stem.removeprefix("hadoop-client-api-")
    raise UsageError(
        "This PySpark has no Hadoop client, so its version is not known.",
        next="Pass packages=False and put hadoop-aws on Spark's class path yourself.",
    )


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once, about; Spark Connect does not say, and has the number that it shuffles into."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
    return spark.sparkContext.defaultParallelism


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


# --- settings that are held for a call --------------------------------------------------------------------------------

_held: dict[tuple[str, str], tuple[int, str | None]] = {}
"""For each session and name, how many calls hold a setting, and what it was before the first of them."""
_lock = forks.lock()


@contextmanager
def held_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Hold SQL settings of a session for the length of a call; the last of several calls puts them back."""
    session = _session_id(spark)
    with _lock:
        for name, value in settings.items():
            count, before = _held.get((session, name), (0, None))
            if not count:
                before = spark.conf.get(name, None)
            _held[session, name] = (count + 1, before)
            spark.conf.set(name, value)
    try:
        yield
    finally:
        with _lock:
            for name in settings:
                count, before = _held.pop((session, name))
                if count > 1:
                    _held[session, name] = (count - 1, before)
                elif before is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, before)


def _session_id(spark: SparkSession) -> str:
    return str(getattr(spark, "session_id", None) or id(spark))


DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Say in Spark's UI what the jobs of a call are for: as their description, on Spark Connect as a tag."""
    if is_connect(spark):
        tag = re.sub(r"[,\s]+", "_", text)
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty(DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type] # None takes it away


def check_session(spark: Any) -> None:
    """Refuse what is no session of Spark.

    Raises:
        UsageError: it is none.
    """
    if type(spark).__module__.partition(".")[0] != "pyspark":
        raise UsageError(f"{spark!r} is not a Spark session.", next="Give a SparkSession, or leave it out.")


def is_of_spark(error: BaseException) -> bool:
    """Whether an error came out of Spark, and not out of what a caller gave, as a `progress` that ends the work."""
    is_named = type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc")
    return is_named or isinstance(error, ConnectionError)  # as when its driver's other half has died


def refuse_two_stores(core: RepositoryCore) -> None:
    """Refuse a repository that was restored without its bytes: executors are given one store, and read from two.

    Raises:
        UsageError: it is one.
    """
    blobs = core.stores.trees.blobs
    if blobs.own is not blobs:
        raise UsageError(
            "The bytes of this lake lie in two stores, as it was restored without them, and executors know one.",
            next="Do it in this process, or restore the lake with its bytes.",
        )


def watched(spark: SparkSession, action: Callable[[], Result], progress: Progress, what: str) -> Result:
    """What an action returns, which runs jobs of Spark; meanwhile tells how many tasks of its stages have ended.

    On Spark Connect the driver does not know, and only the beginning is told.
    """
    progress(what, 0, None)
    if is_connect(spark) or progress is no_progress:
        return action()
    context, group = spark.sparkContext, f"strandline-{new_id()}"
    ended = Event()
    raised: list[BaseException] = []

    def watch() -> None:
        while not ended.wait(WATCH_EVERY_S):
            try:
                done, total = _tasks(context.statusTracker(), group)
                if total:
                    progress(what, done, total)
            except BaseException as error:
                raised.append(error)
                context.cancelJobGroup(group)
                return

    before = context.getLocalProperty(GROUP)
    context.setLocalProperty(GROUP, group)
    watcher = Thread(target=watch, name="strandline-progress", daemon=True)
    watcher.start()
    try:
        result = action()
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    finally:
        context.setLocalProperty(GROUP, before)  # type: ignore[arg-type] # None takes it away
        ended.set()
        watcher.join()
    if raised:
        raise raised[0]
    return result


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """How many tasks of the jobs of a group have ended, and how many there are."""
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for number in info.stageIds if info is not None else ():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                done, total = done + stage.numCompletedTasks, total + stage.numTasks
    return done, total


def reason_of(error: BaseException) -> str:
    """The first line of a Spark error that tells what happened, without the driver's frame around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    text = lines[0].lstrip(": ") if lines else type(error).__name__
    if "Python worker" in text and (raised := [line for line in lines if _RAISED.match(line)]):
        text = f"the job's own Python code raised {raised[-1]}"
    return text.rstrip(".")


_RAISED = re.compile(r"(strandline\.[\w.]+|[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt|Exit))(:|$)")
"""The last line of a traceback of Python."""
