"""Shards on Spark: contents, streams from and into shards, exactly once over restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import strandline
from strandline.errors import BeforeSince, SchemaMismatch, StrandlineError, UpperMismatch, UsageError
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import Antichain
from strandline.shards.state.state import ReaderId
from strandline.shards.state.trace import Merged
from strandline.spark.shards import absorb, append, compact, materialise, read, register
from strandline.spark.shards.native import written
from strandline.spark.shards.source import _Driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.everywhere]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Place:
    """A lake in a folder, its shard, and a session that knows them."""

    def __init__(self, spark: SparkSession, folder: Path, url: str) -> None:
        self.spark = spark
        self.folder = folder
        self.url = url
        self.lake = strandline.open(url, create=True, synced=False)
        self.repo = self.lake.repository("nyc", create=True)
        self.shard = self.repo.shard("positions", SCHEMA, key=["id"])
        register(spark)

    def read(self, name: str = "positions", **options: Any) -> DataFrame:
        return self.spark.read.format("strandline.shard").options(lake=self.url, **options).load(f"nyc/{name}")

    def stream(self, reader: str, name: str = "positions") -> DataFrame:
        source = self.spark.readStream.format("strandline.shard").options(lake=self.url, reader=reader)
        return source.load(f"nyc/{name}")

    def drain(self, frame: DataFrame, checkpoint: str, **options: Any) -> None:
        """Write what there is into the shard "out", as a query that then stops."""
        place = str(self.folder / checkpoint)
        sink = frame.writeStream.format("strandline.shard").options(lake=self.url, path="nyc/out", **options)
        query = sink.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()

    def rows(self, count: int, start: int = 0) -> DataFrame:
        return self.spark.range(start, start + count, 1, 2).selectExpr("id", "concat('n', id % 3) as name")


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, lake_url: str) -> Iterator[Place]:
    made = Place(spark, tmp_path, lake_url)
    yield made
    for query in spark.streams.active:
        query.stop()
    made.lake.close()


def held(shard: Shard, as_of: int | None = None) -> Counter[tuple[Any, ...]]:
    table = shard.snapshot(as_of).to_arrow()
    found: Counter[tuple[Any, ...]] = Counter()
    for id, name, diff in zip(*(table[column].to_pylist() for column in ("id", "name", "_diff")), strict=True):
        found[id, name] += diff
    return found


def expected(*ids: int) -> Counter[tuple[Any, ...]]:
    return Counter({(id, f"n{id % 3}"): 1 for id in ids})


# --- contents ---------------------------------------------------------------------------------------------------------


def test_contents_at_a_time(place: Place) -> None:
    with place.shard.writer() as writer:
        writer.compare_and_append([((1, "a"), 0, 1), ((2, "b"), 1, 1)], 0, 2)
        writer.compare_and_append([((1, "a"), 2, -1), ((3, None), 2, 2)], 2, 3)
    first = place.read(as_of=1)
    assert [(field.name, field.dataType.simpleString()) for field in first.schema.fields] == [
        ("id", "bigint"),
        ("name", "string"),
        ("_time", "bigint"),
        ("_diff", "bigint"),
    ]
    assert sorted(map(tuple, first.collect())) == [(1, "a", 1, 1), (2, "b", 1, 1)]
    assert sorted(map(tuple, place.read().collect())) == [(2, "b", 2, 1), (3, None, 2, 2)]


@pytest.mark.sessions
def test_a_dataframe_that_is_filtered_is_still_whole_afterwards(place: Place) -> None:
    """With filters pushed down to Python sources, Spark 4.1.4 lets the next query lack the rows of the one before."""
    append(place.shard, place.rows(100))
    for frame in (place.read(), read(place.spark, place.shard)):
        assert frame.where("name is null").count() == 0
        assert frame.where("id = 7").collect()[0]["name"] == "n1"
        assert frame.where("id >= 90 and name = 'n0'").count() == 4
        assert frame.select("name").distinct().count() == 3
        assert frame.count() == 100


def test_native_reads_are_the_contents_with_columns_and_filters_pushed_down(place: Place) -> None:
    append(place.shard, place.rows(2_000))
    with place.shard.writer() as writer:
        with writer.batch(1, 20, part_bytes=1) as builder:
            builder.add([((5, "n2"), 1, -1), ((7, None), 2, 3), ((8, "late"), 9, 1)])
            batch = builder.finish()
        writer.compare_and_append_batches([batch], 1, 6)
        writer.compare_and_append([((9_000, "inline"), 6, 1)], 6, 7)
    for as_of in (0, 1, 2, 6):
        table = place.shard.snapshot(as_of).to_arrow()
        expected_rows = Counter(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
        for frame in (read(place.spark, place.shard, as_of), place.read(as_of=as_of)):
            assert Counter(map(tuple, frame.collect())) == expected_rows
    place.shard.compact(full=True)
    plan = read(place.spark, place.shard).where("id > 1990").select("id")
    assert plan.count() == 10


def test_a_dataframe_is_appended_natively(place: Place) -> None:
    assert append(place.shard, place.rows(1_000)) == 0
    assert append(place.shard, place.rows(10, 1_000)) == 1
    assert held(place.shard) == expected(*range(1_010))
    gone = place.rows(3).selectExpr("*", "-1 as _diff")
    assert append(place.shard, gone) == 2
    assert held(place.shard) == expected(*range(3, 1_010))
    place.shard.compact(full=True)
    assert held(place.shard) == expected(*range(3, 1_010))
    for _ in range(2):
        assert append(place.shard, place.rows(1, 5_000), writer="job", token="monday") == 3
        assert append(place.shard, place.rows(1, 6_000), token="of nobody") == 4
    assert held(place.shard) == expected(*range(3, 1_010), 5_000, 6_000)


def test_a_dataframe_is_appended_by_the_data_source(place: Place) -> None:
    rows = place.rows(50)
    for _ in range(2):  # with a token, the second one is none
        rows.write.format("strandline.shard").options(lake=place.url, token="t").mode("append").save("nyc/positions")
    assert held(place.shard) == expected(*range(50))
    with pytest.raises(Exception, match="cannot be overwritten"):
        rows.write.format("strandline.shard").options(lake=place.url).mode("overwrite").save("nyc/positions")


@pytest.mark.sessions
@pytest.mark.parametrize(
    "columns",
    [
        "id, name, 1 as more",
        "name, 1L as _time",
        "'x' as id, name",
        "id, name, 'x' as _diff",
        "1L as _diff",
        "id, name, id",
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_runs(place: Place, columns: str) -> None:
    wrong = place.rows(3).selectExpr(*columns.split(", "))
    with pytest.raises(SchemaMismatch):
        append(place.shard, wrong)
    assert place.shard.upper == Antichain(0)


@pytest.mark.sessions
def test_a_diff_that_is_null_fails_the_append(place: Place) -> None:
    with pytest.raises(StrandlineError, match="_diff is null"):
        append(place.shard, place.rows(3).selectExpr("*", "cast(null as bigint) as _diff"))
    assert place.shard.upper == Antichain(0)


# --- exactly once -----------------------------------------------------------------------------------------------------


def test_for_each_batch_appends_each_epoch_once(place: Place) -> None:
    first = append(place.shard, place.rows(5), writer="q", epoch=0)
    assert append(place.shard, place.rows(5), writer="q", epoch=0) is None
    assert append(place.shard, place.rows(5, 100), writer="other", epoch=0) == 1
    assert append(place.shard, place.rows(5, 5), writer="q", epoch=1) == 2
    assert (first, held(place.shard)) == (0, expected(*range(10), *range(100, 105)))
    with pytest.raises(UsageError, match="writer"):
        append(place.shard, place.rows(1), epoch=3)
    place.shard.finish()
    with pytest.raises(UpperMismatch):
        append(place.shard, place.rows(1), writer="q", epoch=9)


def test_a_stream_from_a_shard_into_another_over_restarts(place: Place) -> None:
    out = place.repo.shard("out", SCHEMA, key=["id"])
    append(place.shard, place.rows(20))
    frame = place.stream("copy").drop("_time")
    place.drain(frame, "c1", writer="copy")
    assert held(out) == expected(*range(20))
    append(place.shard, place.rows(20, 20))
    append(place.shard, place.rows(5).selectExpr("*", "-1 as _diff"))
    place.shard.compact(full=True)
    place.shard.collect()
    for _ in range(2):  # with availableNow the last commit of a source comes in the next run
        place.drain(place.stream("copy").drop("_time"), "c1", writer="copy")
    assert held(out) == expected(*range(5, 40))


@pytest.mark.sessions
def test_a_query_that_goes_on_lets_go_of_what_it_has_read(place: Place) -> None:
    out = place.repo.shard("out", SCHEMA, key=["id"])
    place.shard.writer().compare_and_append([], 0, 1)
    frame = place.stream("running").drop("_time")
    sink = frame.writeStream.format("strandline.shard").options(lake=place.url, path="nyc/out", writer="running")
    query = sink.option("checkpointLocation", str(place.folder / "c4")).start()
    ids: list[int] = []
    for number in range(4):
        append(place.shard, place.rows(5, number * 5))
        ids += range(number * 5, number * 5 + 5)
        query.processAllAvailable()
        assert held(out) == expected(*ids)
    query.stop()
    durable = place.shard.state.durable_readers[ReaderId("running")]
    assert durable.since > 0
    taken_over = place.shard.durable_reader("running")
    taken_over.claim("somebody else")
    place.drain(place.stream("running").drop("_time"), "c4", writer="running")  # comes after it, and takes it back
    assert held(out) == expected(*ids)


@pytest.mark.sessions
def test_the_end_of_a_finished_shard_leaves_it_readable(place: Place) -> None:
    out = place.repo.shard("out", SCHEMA, key=["id"])
    append(place.shard, place.rows(7))
    place.shard.finish()
    for _ in range(2):
        place.drain(place.stream("last").drop("_time"), "c5", writer="last")
    assert held(out) == expected(*range(7))
    assert held(place.shard) == expected(*range(7))


@pytest.mark.sessions
def test_a_checkpoint_that_is_older_than_what_the_reader_holds_is_refused(place: Place) -> None:
    for number in range(6):
        append(place.shard, place.rows(1, number))
    options = {"lake": place.url, "path": "nyc/positions", "reader": "q"}
    driver = _Driver(options, "q")
    driver.commit(6)
    place.shard.compact(full=True)
    with pytest.raises(BeforeSince):
        driver.partitions(3, 6)
    driver.close()


@pytest.mark.sessions
def test_a_null_that_may_not_be_fails_the_append(place: Place) -> None:
    strict = place.repo.shard("strict", pa.schema([pa.field("id", pa.int64(), False)]))
    with pytest.raises(StrandlineError, match="id is null"):
        append(strict, place.spark.sql("select cast(null as bigint) as id"))
    assert strict.upper == Antichain(0)


@pytest.mark.sessions
def test_a_stream_needs_its_names(place: Place) -> None:
    source = place.spark.readStream.format("strandline.shard").options(lake=place.url).load("nyc/positions")
    place.repo.shard("out", SCHEMA)
    with pytest.raises(Exception, match="reader"):
        place.drain(source.drop("_time"), "c2", writer="w")
    with pytest.raises(Exception, match="is not repository/shard"):
        place.spark.read.format("strandline.shard").options(lake=place.url).load("nyc").count()
    with pytest.raises(Exception, match="no shard"):
        place.spark.read.format("strandline.shard").options(lake=place.url).load("nyc/nothing").count()


@pytest.mark.sessions
def test_the_query_is_known_by_its_checkpoint(place: Place) -> None:
    out = place.repo.shard("out", SCHEMA, key=["id"])
    append(place.shard, place.rows(7))
    place.drain(place.stream("c").drop("_time"), "c3")
    assert held(out) == expected(*range(7))
    assert len(out.state.writers) == 1


# --- tables -----------------------------------------------------------------------------------------------------------


def test_contents_become_a_table_whose_commit_names_their_time(place: Place) -> None:
    main = place.repo.branch("main")
    append(place.shard, place.rows(30))
    append(place.shard, place.rows(10).selectExpr("*", "-1 as _diff"))
    first = materialise(place.spark, place.shard, main, "tables/positions", as_of=0)
    assert main.table("tables/positions").to_spark(place.spark).count() == 30
    done = materialise(place.spark, place.shard, main, "tables/positions")
    assert main.table("tables/positions").to_spark(place.spark).count() == 20
    commit = place.repo.get_commit(done.commit)
    assert commit.metadata["strandline.shard"] == "positions"
    assert commit.metadata["strandline.shard.time"] == "1"
    again = materialise(place.spark, place.shard, main, "tables/positions")
    assert again.commit == done.commit != first.commit
    append(place.shard, place.rows(1, 20))
    with pytest.raises(UsageError, match="is there 2 times"):
        materialise(place.spark, place.shard, main, "tables/positions")


def test_a_table_becomes_the_contents_of_a_shard(place: Place) -> None:
    main = place.repo.branch("main")
    table = main.table("tables/t")
    table.write(place.rows(10), mode="overwrite")
    main.commit("ten rows")
    assert absorb(place.spark, place.shard, main, "tables/t") == 0
    assert held(place.shard) == expected(*range(10))
    assert absorb(place.spark, place.shard, main, "tables/t") is None
    twice_and_null = place.rows(5, 5).union(place.rows(1, 5)).union(place.spark.sql("select null, null"))
    table.write(twice_and_null, mode="overwrite")
    main.commit("others")
    place.shard.writer().append_next([((77, "by others"), 0, 1)])
    assert absorb(place.spark, place.shard, main, "tables/t", writer="nightly") == 2
    assert held(place.shard) == expected(*range(5, 10)) + expected(5) + Counter({(None, None): 1})
    assert held(place.shard, 0) == expected(*range(10))
    table.write(place.rows(3), mode="overwrite")  # is no commit yet
    assert absorb(place.spark, place.shard, main, "tables/t", writer="nightly") is None
    main.commit("three rows")
    assert absorb(place.spark, place.shard, main, "tables/t", writer="nightly") == 3
    assert held(place.shard) == expected(*range(3))


@pytest.mark.sessions
def test_a_table_is_absorbed_beside_another_writer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is appended after the difference was looked at makes it be looked at again."""
    main = place.repo.branch("main")
    main.table("tables/t").write(place.rows(4), mode="overwrite")
    main.commit("four rows")
    others = [[((9, "others"), 0, 1)], [((0, "n0"), 0, 1)]]

    def written_late(*arguments: Any) -> Any:
        batch = written(*arguments)
        if others:
            place.shard.writer().append_next(others.pop())
        return batch

    monkeypatch.setattr("strandline.spark.shards.tables.written", written_late)
    assert absorb(place.spark, place.shard, main, "tables/t") == 2
    assert held(place.shard) == expected(*range(4))
    place.shard.finish()
    with pytest.raises(UpperMismatch):
        absorb(place.spark, place.shard, main, "tables/t")


def test_a_shard_is_compacted_by_a_job(place: Place) -> None:
    append(place.shard, place.rows(300))
    with place.shard.writer() as writer:
        for time in range(1, 6):
            writer.compare_and_append([((time, "x"), time, 1), ((1_000, None), time, 1)], time, time + 1)
        with writer.batch(6, 20) as builder:
            builder.add([((1, "x"), 6, -1), ((7, "late"), 7, 1), ((9, "outside"), 15, 1)])
            batch = builder.finish()
        writer.compare_and_append_batches([batch], 6, 9)
    before = {at: sorted(place.shard.snapshot(at).to_list(), key=str) for at in range(3, 9)}
    with place.shard.reader() as reader:
        reader.downgrade_since(3)
        done = compact(place.spark, place.shard)
        assert done is not None
        assert done.outcome is Merged.DONE
        assert len(place.shard.state.batches) == 1
        assert {at: sorted(place.shard.snapshot(at).to_list(), key=str) for at in range(3, 9)} == before
        assert place.shard.since == Antichain(3)
        assert compact(place.spark, place.shard) is None
        append(place.shard, place.rows(2, 5_000))
        place.shard.compact(full=True)
        assert place.shard.snapshot().to_arrow().num_rows == len(before[8]) + 2
