"""A garbage collection on Spark: listing, marking and judging as joins, and deletion in tasks.

No list of files passes through the driver. Tasks list stretches of the namespace; Spark reads the ranges, which are
Parquet, and joins; tasks write the lists of what goes, take out of them what is linked, and delete what is left. The
driver knows the ranges, the transactions, and the names of those lists.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.blob import BlobNotFound, BlobStore, open_store
from strandline.branch.stores import Stores
from strandline.core import promises
from strandline.core.condemned import ListPart, without, write_part
from strandline.core.iceberg_files import MEND, METADATA_KEY, Named, named_by
from strandline.core.namespace import MARKER, READERS
from strandline.core.physical import ICEBERG_ROOT, TRANSACTIONS_FOLDER
from strandline.core.promises import GC_FOLDER, PARTS_FORMAT, Condemned
from strandline.core.repository_core import RepositoryCore
from strandline.core.shapes import are_own
from strandline.errors import Corrupted, StorageError, StoreUnavailable, StrandlineError
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
    delete_listed,
    fate_of,
    listed_in,
)
from strandline.spark.metadata import range_rows
from strandline.spark.session import check_session, described, is_of_spark, parallelism, reason_of, watched
from strandline.spark.versions import refuse_other_versions
from strandline.tree.range_file import RangeInfo

TASKS_PER_CORE = 4
PART_KEYS = 10_000
"""Of a list of what goes: a part that is not gone by the end of a round is begun again."""
ONE_LIST_KEYS = 100_000
"""If no more go in all, one list has them, which every version reads."""
MARKED_ROWS = 1_000_000
NAMED_AT_ONCE = 10_000
WALKED = ("metadata", "list", "manifest")
"""What is read of Iceberg's files, each kind naming the next ones."""
NAMED = ("kind", "key", "source")
LISTED = pa.schema(
    [("key", pa.string()), ("size", pa.int64()), ("time", pa.int64()), ("own", pa.bool_()), ("owner", pa.string())]
)
_OWNERS = (
    rf"(?s)^(?:data/sl_branch=|{ICEBERG_ROOT}/[^/]*/)([0-9a-f]{{20}})\.txn-([0-9]{{16}})/.*$",
    rf"(?s)^{TRANSACTIONS_FOLDER}/([0-9a-f]{{20}})/([0-9]{{16}})/.*$",
)
"""Keys of what a transaction wrote, or of what is about it; the groups are branch and id."""
_METADATA = rf"^{METADATA_KEY}\z"
_LISTS_SCHEMA = "part STRING"
Batches = Iterable[pa.RecordBatch]


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
                rows = self._over(parts).mapInArrow(_settles(blobs.url, record.folder, linked), _LISTS_SCHEMA)
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
            rows = self._over(parts).mapInArrow(_deletes(url, round), _LISTS_SCHEMA)
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


GONE = "gone"
"""What a task says of a list that is not there: another process has brought the run to an end."""


def _parts_of(rows: DataFrame) -> list[ListPart]:
    """What tasks tell.

    Raises:
        BlobNotFound: a list is gone.
    """
    texts = rows.toArrow().column(0).to_pylist()
    if GONE in texts:
        raise BlobNotFound("a list of what goes")
    return [msgspec.json.decode(text, type=ListPart) for text in texts]


def _write_links(stores: Stores, record: Condemned) -> str:
    """All that links were announced to, in the order of their records; returns the key of the file."""
    key = f"{record.folder}linked-{new_id()}.parquet"
    schema = pa.schema([("key", pa.string())])
    with tempfile.TemporaryFile() as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for addresses in promises.links_by_record(stores):
                writer.write_table(pa.table([pa.array(addresses, pa.string())], schema))
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
        self._ranges: Sequence[RangeInfo] = ()
        self._iceberg: list[DataFrame] = []
        self._waiting: list[pa.StringArray] = []
        self._marked: list[str] = []
        self._goes: DataFrame | None = None
        with self._reading("list the files"):
            self._files = self._kept(self._listed())
            self._count = watched(spark, self._files.count, progress, "listing files")

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
        return frame.mapInArrow(_lists(self._blobs.url), "key STRING, size LONG, time LONG, own BOOLEAN, owner STRING")

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
            table = pa.table({"physical_address": pa.concat_arrays(self._waiting)})
            pq.write_table(table, body, compression="zstd")
            self._blobs.put(key, body.getvalue().to_pybytes(), "create")
            self._marked.append(key)
            self._waiting = []

    def mark_ranges(self, ranges: Sequence[RangeInfo]) -> None:
        self._ranges = ranges

    def mark_iceberg(self) -> None:
        """Metadata, manifest lists and manifests are read in Python workers, a job for each kind; each file once."""
        with self._reading("follow the metadata of Iceberg's tables"):
            # the beginning alone can be looked up in the statistics of ranges
            below = F.col("key").startswith(f"{ICEBERG_ROOT}/")
            metadata = self._referred().where(below & F.col("key").rlike(_METADATA)).distinct()
            there = self._files.select("key", F.lit(True).alias("there"))
            found = metadata.join(there, "key", "left").select(
                F.lit("metadata").alias("kind"),
                "key",
                # one that came after the files were listed may be lost as well: fsck tells of that
                F.when(F.col("there"), F.col("key")).otherwise("").alias("source"),
                F.lit(None).cast("string").alias("error"),
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
        """What some files of Iceberg's name, each once.

        Raises:
            Corrupted: one of them cannot be read.
        """
        schema = "kind STRING, key STRING, source STRING, error STRING"
        read = wanted.mapInArrow(_reads(self._blobs.url), schema)
        found = self._kept(read.dropDuplicates(["kind", "key", "error"]))
        for row in found.where("error IS NOT NULL").orderBy("key").limit(1).collect():
            raise Corrupted(row["error"], next=MEND)
        return found

    def _referred(self) -> DataFrame:
        """The keys that somebody refers to, as far as it is known by now; some several times."""
        self._write_marked()
        schema = "physical_address STRING"
        frames = [range_rows(self._spark, self._core.resolver.namespace, self._ranges, schema)]
        if self._marked:
            urls = [self._core.resolver.namespace.spark_url(key) for key in self._marked]
            frames.append(self._spark.read.schema(schema).parquet(*urls))
        column = F.col("physical_address")
        rows = reduce(DataFrame.union, frames).where(column.isNotNull() & ~column.contains("://"))
        return reduce(DataFrame.union, self._iceberg, rows.select(column.alias("key")))

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
        dead = lists.mapInArrow(_listed_dead(self._blobs.url), "key STRING").distinct()
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
        return told_of.mapInArrow(_marks_links(self._blobs.url), schema)

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
            rows = sorted_keys.mapInArrow(_writes_lists(self._blobs.url, record.folder), _LISTS_SCHEMA)
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


# --- in tasks ---------------------------------------------------------------------------------------------------------


def _lists(url: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            for row in batch.to_pylist():
                for page in blobs.list_between("", row["after"], row["last"]):
                    keys = pa.array([info.key for info in page], pa.string())
                    columns = [
                        keys,
                        pa.array([info.size for info in page], pa.int64()),
                        pa.array([info.modified_at_us for info in page], pa.int64()),
                        pa.array(are_own(keys.cast(pa.large_string())), pa.bool_()),
                        owners_of(keys),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=LISTED)

    return run


def owners_of(keys: pa.StringArray) -> pa.StringArray:
    """The transactions that files belong to: branch id and id of 16 digits; null for all others."""
    found = pa.nulls(len(keys), pa.string())
    for pattern in _OWNERS:
        is_so = pc.match_substring_regex(keys, pattern)
        found = pc.if_else(is_so, pc.replace_substring_regex(keys, pattern, r"\1\2"), found)
    return found


def _reads(url: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Reads files in a Python worker, which gets the address of the store and finds credentials where it runs."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        schema = pa.schema([(name, pa.string()) for name in (*NAMED, "error")])
        for batch in batches:
            for row in batch.to_pylist():
                if not row["source"] and not blobs.exists(row["key"]):
                    continue
                try:
                    named = named_by(blobs, Named(row["kind"], row["key"], row["source"]))
                except StrandlineError as error:
                    told = {"kind": "file", "key": row["key"], "source": row["source"], "error": error.what}
                    yield pa.RecordBatch.from_pylist([told], schema)
                    continue
                for first in range(0, len(named), NAMED_AT_ONCE):
                    some = named[first : first + NAMED_AT_ONCE]
                    columns = [pa.array([getattr(one, name) for one in some], pa.string()) for name in NAMED]
                    yield pa.RecordBatch.from_arrays([*columns, pa.nulls(len(some), pa.string())], schema=schema)

    return run


def _listed_dead(url: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Reads deadlists: of each, what its own transaction wrote."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            for row in batch.to_pylist():
                keys = pa.array(listed_in(blobs, row["key"]), pa.string())
                branch, id = row["key"].split("/")[2:4]
                is_its_own = pc.starts_with(keys, f"data/sl_branch={branch}.txn-{id}/")
                yield pa.RecordBatch.from_arrays([keys.filter(is_its_own)], names=["key"])

    return run


def _marks_links(url: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Says which of the files that go lie behind a link to another place."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            goes = batch.filter(pc.equal(batch.column("fate"), "goes")).column("key").to_pylist()
            away = pa.array(sorted(blobs.through_links(goes)), pa.string())
            yield batch.append_column("away", pc.is_in(batch.column("key"), away))

    return run


def _writes_lists(url: str, folder: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        listed = [batch for batch in batches if batch.num_rows]
        if listed:
            whole = pa.Table.from_batches(listed).combine_chunks()
            keys, sizes = (whole.column(name).chunk(0) for name in ("key", "size"))
            yield _told([write_part(open_store(url), folder, keys.cast(pa.string()), sizes)])

    return run


def _settles(url: str, folder: str, linked: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            for text in batch.column(0).to_pylist():
                part = msgspec.json.decode(text, type=ListPart)
                try:
                    left = without(blobs, folder, part, _linked_between(blobs, linked, part.first, part.last))
                except BlobNotFound:
                    yield pa.RecordBatch.from_arrays([pa.array([GONE])], names=["part"])
                    continue
                yield _told([] if left is None else [left])

    return run


def _linked_between(blobs: BlobStore, file: str, first: str, last: str) -> pa.StringArray:
    """The sorted keys of a file of links that lie between two keys."""
    found = [pa.array([], pa.string())]
    with blobs.open_read(file) as body:
        for batch in pq.ParquetFile(body).iter_batches():
            keys = batch.column(0)
            found.append(keys.filter(pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last))))
    keys = pa.concat_arrays(found)
    return keys.take(pc.sort_indices(keys))


def _deletes(url: str, round: Round) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        for batch in batches:
            for text in batch.column(0).to_pylist():
                part = msgspec.json.decode(text, type=ListPart)
                try:
                    yield _told([part] if delete_listed(blobs, round, part) else [])
                except BlobNotFound:
                    yield pa.RecordBatch.from_arrays([pa.array([GONE])], names=["part"])

    return run


def _told(parts: Sequence[ListPart]) -> pa.RecordBatch:
    texts = pa.array([msgspec.json.encode(part).decode() for part in parts], pa.string())
    return pa.RecordBatch.from_arrays([texts], names=["part"])
