"""A garbage collection on Spark: listing, marking and judging as joins, and deletion in tasks.

No list of files passes through the driver. Tasks list stretches of the namespace; Spark reads the ranges, which are
Parquet, and joins; tasks write the lists of what goes, take out of them what is linked, and delete what is left. The
driver knows the ranges, the transactions, and the names of those lists.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.blob import BlobStore
from strandline.branch.stores import Stores
from strandline.core import promises
from strandline.core.condemned import ListPart
from strandline.core.iceberg_files import METADATA_KEY
from strandline.core.namespace import MARKER, READERS
from strandline.core.physical import TRANSACTIONS_FOLDER
from strandline.core.promises import GC_FOLDER, PARTS_FORMAT, Condemned
from strandline.core.repository_core import RepositoryCore
from strandline.errors import StorageError, StoreUnavailable, StrandlineError
from strandline.ids import new_id
from strandline.progress import Progress, no_progress
from strandline.repository.upkeep.files import SHARDS
from strandline.repository.upkeep.judging import (
    DEAD,
    EXAMPLES,
    MAX_PLACES,
    ORPHAN,
    REJECTED,
    WHY,
    GarbagePlace,
    Round,
    Rule,
    Survey,
    SurveyHere,
    Surveyor,
    SurveyorHere,
    Verdict,
    fate_of,
)
from strandline.spark import garbage_tasks
from strandline.spark.garbage_tasks import NAMED
from strandline.spark.metadata import strict_reader
from strandline.spark.read import explicit
from strandline.spark.session import check_session, described, is_of_spark, parallelism, reason_of, watched
from strandline.spark.versions import of_this_version, refuse_other_versions
from strandline.tree.range_file import RangeInfo

TASKS_PER_CORE = 4
RANGE_TASKS_PER_CORE = 16
PART_KEYS = 10_000
"""Of a list of what goes: a part that is not gone by the end of a round is begun again."""
ONE_LIST_KEYS = 100_000
"""If no more go in all, one list has them, which every version reads."""
MARKED_ROWS = 1_000_000
LINKS_PER_GROUP = 100_000
WALKED = ("metadata", "list", "manifest")
"""What is read of Iceberg's files, each kind naming the next ones."""
_METADATA = rf"^{METADATA_KEY}\z"
FOUND = "key STRING, error BINARY"
_LISTS_SCHEMA = "part STRING, error BINARY"


def surveyor(spark: SparkSession) -> Surveyor:
    """Surveys and deletes on Spark.

    Raises:
        UsageError: it is no session.
    """
    check_session(spark)
    return _SurveyorOnSpark(spark)


class _SurveyorOnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._progress: Progress = no_progress

    def survey(self, core: RepositoryCore, run: str, progress: Progress) -> Survey:
        self._progress = progress
        blobs = core.stores.trees.blobs
        if blobs.own is not blobs:  # a lake without its bytes reads metadata from another one's as well
            return SurveyHere(core, progress)
        core.resolver.namespace.spark_url("_strandline")  # refuses a lake in memory
        refuse_other_versions(self._spark)
        return _SurveyOnSpark(self._spark, core, run, progress)

    def settle(self, stores: Stores, record: Condemned) -> list[ListPart]:
        """The links are written out record by record; each task takes those that its part may name."""
        blobs = stores.trees.blobs
        parts = promises.condemned_parts(stores, record)
        linked = _write_links(stores, record)
        try:
            with _ending(), described(self._spark, "strandline: take linked files out of the lists"):
                rows = self._over(parts).mapInArrow(
                    of_this_version(garbage_tasks.settles(blobs.url, record.folder, linked)), _LISTS_SCHEMA
                )
                return sorted(_parts_of(rows), key=lambda part: part.first)
        finally:
            with suppress(StoreUnavailable):
                blobs.delete_many([linked])

    def delete(self, core: RepositoryCore, round: Round, parts: Sequence[ListPart]) -> list[ListPart]:
        """In tasks; in this process if Spark is set to run tasks twice at once, for which deletions are nothing."""
        if str(self._spark.conf.get("spark.speculation", "false")).lower() == "true":
            return SurveyorHere().delete(core, round, parts)
        url = core.stores.trees.blobs.own.url
        with _ending(), described(self._spark, f"strandline: delete garbage of {core.name}"):
            rows = self._over(parts).mapInArrow(of_this_version(garbage_tasks.deletes(url, round)), _LISTS_SCHEMA)
            return watched(self._spark, lambda: _parts_of(rows), self._progress, "deleting")

    def _over(self, parts: Sequence[ListPart]) -> DataFrame:
        """A row for each part, in tasks of their own."""
        refuse_other_versions(self._spark)
        rows = pa.table({"at": range(len(parts)), "part": [msgspec.json.encode(one).decode() for one in parts]})
        return self._spark.createDataFrame(rows).repartitionByRange(len(parts), "at").select("part")


@contextmanager
def _ending() -> Iterator[None]:
    """Say what went wrong with the lists of a run on Spark.

    Raises:
        StorageError: Spark failed.
    """
    try:
        yield
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise StorageError(
            f"Spark could not work through the lists of what goes: {reason_of(error)}.",
            safe="Nothing refers to what was deleted.",
            next="Look at Spark's logs, then collect again: a run goes on with this one's work.",
        ) from error


def _parts_of(rows: DataFrame) -> list[ListPart]:
    """What tasks tell.

    Raises:
        BlobNotFound: a list is gone: another process has brought the run to an end.
        Corrupted: a list cannot be read.
    """
    told = rows.toArrow()
    for error in told.column("error").drop_null().to_pylist():
        raise pickle.loads(error)
    return [msgspec.json.decode(text, type=ListPart) for text in told.column("part").to_pylist()]


def _write_links(stores: Stores, record: Condemned) -> str:
    """All that links were announced to, sorted: tasks read the row groups that they need; returns the file's key."""
    key = f"{record.folder}linked-{new_id()}.parquet"
    linked = promises.linked(stores)
    with tempfile.TemporaryFile() as file:
        pq.write_table(pa.table({"key": linked}), file, compression="zstd", row_group_size=LINKS_PER_GROUP)
        file.seek(0)
        stores.trees.blobs.put(key, file, "create")
    return key


# --- the survey -------------------------------------------------------------------------------------------------------


class _SurveyOnSpark:
    def __init__(self, spark: SparkSession, core: RepositoryCore, run: str, progress: Progress) -> None:
        self._spark, self._core, self._progress = spark, core, progress
        self._stores = core.stores
        self._blobs: BlobStore = core.stores.trees.blobs
        self._folder = f"{GC_FOLDER}/{run}/"
        self._held: list[DataFrame] = []
        self._of_ranges: DataFrame | None = None
        self._iceberg: list[DataFrame] = []
        self._waiting: list[pa.StringArray] = []
        self._marked: list[str] = []
        self._goes: DataFrame | None = None
        try:
            with self._reading("list the files"):
                self._files = self._kept(self._listed())
                self._count = watched(spark, self._files.count, progress, "listing files")
        except BaseException:
            self.close()  # nobody has it yet
            raise

    # --- what is there ------------------------------------------------------------------------------------------------

    def _listed(self) -> DataFrame:
        """A row for each file, listed in stretches of keys."""
        cuts = self._blobs.cuts("", TASKS_PER_CORE * parallelism(self._spark))
        edges = list(zip(["", *cuts], [*cuts, None], strict=True))
        rows = pa.table(
            {
                "at": range(len(edges)),
                "after": pa.array([after for after, _ in edges], pa.string()),
                "last": pa.array([last for _, last in edges], pa.string()),
            }
        )
        frame = self._spark.createDataFrame(rows).repartitionByRange(len(edges), "at")
        return frame.mapInArrow(
            of_this_version(garbage_tasks.lists(self._blobs.url)),
            "key STRING, size LONG, time LONG, own BOOLEAN, owner STRING",
        )

    def _kept(self, frame: DataFrame) -> DataFrame:
        """A frame that is computed once, on the disks of the executors. If one is lost, it is computed again: what has
        come since is young, or a transaction's that is open, and what has gone is gone.
        """
        self._held.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._held[-1]

    # --- what is referred to ------------------------------------------------------------------------------------------

    def mark(self, addresses: pa.StringArray) -> object:
        self._waiting.append(addresses.cast(pa.string()))
        if sum(map(len, self._waiting)) >= MARKED_ROWS:
            self._write_marked()
        return None

    def _write_marked(self) -> None:
        if self._waiting:
            key = f"{self._folder}marked-{new_id()}.parquet"
            body = pa.BufferOutputStream()
            table = pa.table({"key": pa.concat_arrays(self._waiting)})
            pq.write_table(table, body, compression="zstd")
            self._blobs.put(key, body.getvalue().to_pybytes(), "create")
            self._marked.append(key)
            self._waiting = []

    def mark_ranges(self, ranges: Sequence[RangeInfo]) -> None:
        """Ranges are read in Python workers, which compare each with its id, as one process does."""
        if not ranges:
            return
        tasks = min(len(ranges), RANGE_TASKS_PER_CORE * parallelism(self._spark))
        columns = {name: [getattr(info, name) for info in ranges] for name in RangeInfo.__struct_fields__}
        rows = self._spark.createDataFrame(pa.table({"at": range(len(ranges)), **columns}))
        read = (
            rows.repartitionByRange(tasks, "at")
            .drop("at")
            .mapInArrow(of_this_version(garbage_tasks.keys_of(self._blobs.url)), FOUND)
        )
        with self._reading("read the ranges"):
            self._of_ranges = self._sound(self._kept(read))

    def _sound(self, found: DataFrame) -> DataFrame:
        """What tasks found, if they could read all of it; whenever some of it is computed again, that is asked again.

        Raises:
            ObjectMissing, Corrupted, NewerFormat, UsageError: a file cannot be read.
        """
        ((refused,),) = found.agg(F.max("error")).collect()  # of all tasks at once, which a search for one is not
        if refused is not None:
            error: StrandlineError = pickle.loads(refused)
            error.now_safe("Nothing was deleted.")
            raise error
        failed = F.raise_error(F.lit("a file that could be read cannot be read any more"))
        return found.withColumn("key", F.when(F.col("error").isNull(), F.col("key")).otherwise(failed)).drop("error")

    def mark_iceberg(self) -> None:
        """Metadata, manifest lists and manifests are read in Python workers, a job for each kind; each file once."""
        with self._reading("follow the metadata of Iceberg's tables"):
            metadata = self._referred().where(F.col("key").rlike(_METADATA)).distinct()
            there = self._files.select("key", F.lit(True).alias("there"))
            found = metadata.join(there, "key", "left").select(
                F.lit("metadata").alias("kind"),
                "key",
                # one that came after the files were listed may be lost as well: fsck tells of that
                F.when(F.col("there"), F.col("key")).otherwise("").alias("source"),
            )
            levels = [self._kept(found)]
            for kind in WALKED:
                named = reduce(DataFrame.union, levels).where(F.col("kind") == kind)
                wanted = self._kept(named.dropDuplicates(["key"]).select(*NAMED))
                count = wanted.count()
                self._progress(f"reading Iceberg's {kind} files on Spark", 0, count)
                if count:
                    levels.append(
                        self._walked(wanted.repartition(min(count, TASKS_PER_CORE * parallelism(self._spark))))
                    )
            self._iceberg = [level.select("key") for level in levels[1:]]

    def _walked(self, wanted: DataFrame) -> DataFrame:
        """What some files of Iceberg's name, each once."""
        read = wanted.mapInArrow(
            of_this_version(garbage_tasks.reads(self._blobs.url)),
            "kind STRING, key STRING, source STRING, error BINARY",
        )
        return self._sound(self._kept(read.dropDuplicates(["kind", "key", "error"])))

    def _referred(self) -> DataFrame:
        """The keys that somebody refers to, as far as it is known by now; some several times."""
        self._write_marked()
        frames = [] if self._of_ranges is None else [self._of_ranges]
        if self._marked:
            urls = [explicit(self._core.resolver.namespace.spark_url(key)) for key in self._marked]
            frames.append(strict_reader(self._spark, "key STRING").parquet(*urls))
        every = [*(frame.select("key") for frame in frames), *self._iceberg]
        return reduce(DataFrame.union, every, self._spark.createDataFrame([], "key STRING"))

    # --- what goes ----------------------------------------------------------------------------------------------------

    def judge(self, rule: Rule) -> Verdict:
        with self._reading("judge the files"):
            judged = self._kept(self._judged(rule))
            return self._verdict(judged)

    def _judged(self, rule: Rule) -> DataFrame:
        """The files that nobody refers to; `fate` is "goes", "young", "stays" or "unknown"."""
        states = [(f"{owner.branch_id}{owner.id:016d}", fate_of(owner)) for owner in rule.owners]
        told = [(key, fate) for key, fate in states if fate]
        fates = F.broadcast(
            self._spark.createDataFrame(
                pa.table({"owner": pa.array([one for one, _ in told], pa.string()), "state": [one for _, one in told]})
                if told
                else pa.table({"owner": pa.array([], pa.string()), "state": pa.array([], pa.string())})
            )
        )
        key = F.col("key")
        of_a_run = F.lit(False)
        for folder in rule.folders:
            of_a_run = of_a_run | key.startswith(folder)
        files = self._files.withColumn("of_a_run", of_a_run).join(fates, "owner", "left")
        reserved = (key == MARKER) | key.startswith(READERS) | key.startswith(SHARDS)
        lists = files.where((F.col("state") == "listed") & key.startswith(f"{TRANSACTIONS_FOLDER}/"))
        lists = lists.where(F.substring_index(key, "/", -1).startswith("deadlist-")).select("key")
        dead = lists.mapInArrow(of_this_version(garbage_tasks.listed_dead(self._blobs.url)), "key STRING").distinct()
        free = files.where(~reserved).join(self._referred().distinct(), "key", "left_anti")
        free = free.join(dead.withColumn("is_dead", F.lit(True)), "key", "left")
        state, is_dead = F.coalesce("state", F.lit("")), (F.col("state") == "listed") & F.col("is_dead")
        at_once = (state == "goes") | F.coalesce(is_dead, F.lit(False))
        fate = (
            F.when(~F.col("own"), "unknown")
            .when(F.col("of_a_run"), "stays")
            .when(state == "stays", "stays")
            .when(at_once | (F.col("time") < rule.before), "goes")
            .otherwise("young")
        )
        why = F.when(state == "goes", REJECTED).when(F.coalesce(is_dead, F.lit(False)), DEAD).otherwise(ORPHAN)
        told_of = free.select("key", "size", fate.alias("fate"), why.alias("why"))
        if self._blobs.local_path("x") is None:
            return told_of.withColumn("away", F.lit(False))
        schema = "key STRING, size LONG, fate STRING, why INT, away BOOLEAN"
        return told_of.mapInArrow(of_this_version(garbage_tasks.marks_links(self._blobs.url)), schema)

    def _verdict(self, judged: DataFrame) -> Verdict:
        counted = (F.count("*").alias("files"), F.sum("size").alias("bytes"))
        totals = {
            (row["fate"], row["why"], row["away"]): (row["files"], row["bytes"])
            for row in judged.groupBy("fate", "why", "away").agg(*counted).collect()
        }

        def total(fate: str, why: int | None = None, away: bool | None = None) -> tuple[int, int]:
            found = [
                value
                for (one, reason, is_away), value in totals.items()
                if one == fate and why in (None, reason) and away in (None, is_away)
            ]
            return sum(files for files, _ in found), sum(size for _, size in found)

        self._goes = goes = judged.where((F.col("fate") == "goes") & ~F.col("away"))
        key = F.col("key")
        is_deep = F.size(F.split(key, "/")) > 2
        prefix = F.when(is_deep, F.concat(F.substring_index(key, "/", 2), F.lit("/"))).otherwise(
            F.substring_index(key, "/", 1)
        )
        groups = goes.groupBy(prefix.alias("prefix"), "why").agg(*counted, F.min("key").alias("first"))
        most = groups.orderBy(F.desc("bytes"), "first").limit(MAX_PLACES).collect()
        examples = goes.select("key").orderBy("key").limit(EXAMPLES).collect()
        files, size = total("goes", away=False)
        return Verdict(
            files=files,
            bytes=size,
            dead=total("goes", DEAD)[0],
            rejected=total("goes", REJECTED)[0],
            young=total("young")[0],
            young_bytes=total("young")[1],
            unknown=total("unknown")[0],
            total_files=self._count,
            examples=tuple(row["key"] for row in examples),
            linked=total("goes", away=True)[0],
            places=tuple(GarbagePlace(row["prefix"], WHY[row["why"]], row["files"], row["bytes"]) for row in most),
        )

    def condemn(self, record: Condemned) -> None:
        if self._goes is None:
            raise AssertionError("nothing has been judged")
        goes = self._goes.select("key", "size")
        with self._reading("list what goes"):
            if record.count <= ONE_LIST_KEYS or self._core.max_format < PARTS_FORMAT:
                keys = goes.select("key").orderBy("key").toArrow().column(0).combine_chunks()
                promises.write_condemned(self._stores, record, keys.cast(pa.string()))
                return
            record = msgspec.structs.replace(record, in_parts=True)
            tasks = -(-record.count // PART_KEYS)
            sorted_keys = goes.repartitionByRange(tasks, "key").sortWithinPartitions("key")
            rows = sorted_keys.mapInArrow(
                of_this_version(garbage_tasks.writes_lists(self._blobs.url, record.folder)), _LISTS_SCHEMA
            )
            parts = sorted(_parts_of(rows), key=lambda part: part.first)
        now = self._stores.clock.now_us()  # it takes minutes to write the lists
        promises.write_condemned_parts(self._stores, msgspec.structs.replace(record, at=now), parts)

    def close(self) -> None:
        for frame in self._held:
            with suppress(Exception):  # Spark may have ended, and forgets them then
                frame.unpersist()
        with suppress(StoreUnavailable):  # the next run takes them
            self._blobs.delete_many(self._marked)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Say what went wrong before anything was decided."""
        try:
            with described(self._spark, f"strandline: {what} of {self._core.name}"):
                yield
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise StorageError(
                f"Spark could not {what}: {reason_of(error)}.",
                safe="Nothing was deleted.",
                next="Run `strandline fsck`, or collect without Spark.",
            ) from error
