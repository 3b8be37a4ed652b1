"""One scenario through Spark, PyIceberg, DuckDB and Polars, as a program: it needs a session of Spark of its own.

Arguments: the URL of the key-value store, and that of the object store; both empty for a lake in the folder `lake`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import strandline
import strandline.iceberg
from strandline.iceberg import Catalog
from strandline.lake import Lake
from strandline.server.embedded import serve_catalog
from strandline.spark import configure
from tests.harness import servers, sessions


def sql(spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(text).collect()]


def duck(lake: Lake, *warehouses: str, endpoint: str = "") -> duckdb.DuckDBPyConnection:
    import importlib

    served = serve_catalog(lake)
    session = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        package = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
        session.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
    if endpoint:
        host = endpoint.partition("://")[2]
        session.execute(
            f"CREATE SECRET store (TYPE s3, KEY_ID '{servers.ACCESS_KEY}', SECRET '{servers.SECRET_KEY}', "
            f"ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
        )
    session.execute(f"CREATE SECRET catalog (TYPE iceberg, TOKEN '{served.token.reveal()}')")
    for name in warehouses:
        more = ", ACCESS_DELEGATION_MODE 'none'" if endpoint else ""
        session.execute(
            f"ATTACH 'nyc/{name}' AS nyc_{name} (TYPE iceberg, ENDPOINT '{served.uri}', SECRET catalog{more})"
        )
    return session


def main(kv: str, blob: str, endpoint: str) -> None:
    lake = strandline.open(kv=kv, blob=blob, create=True) if kv else strandline.open("lake", create=True, synced=False)
    with lake:
        repository = lake.repository("nyc", create=True)
        main = repository.branch("main")
        dev = main.create_branch("dev")
        tx = main.transaction("job").begin()
        builder = SparkSession.builder.master("local[2]")
        for name, value in sessions.settings(Path.cwd()).items():
            builder.config(name, value)
        spark = configure(builder, lake, catalogs={"main": main, "dev": dev, "job": tx}).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            by_transaction(spark, lake, tx, endpoint)
            by_turns(spark, lake, endpoint)
            deletion_vectors(spark, lake, endpoint)
            views(spark)
            native(spark, lake, endpoint)
            counts = {name: sql(spark, f"SELECT count(*) FROM main.db.{name}") for name in ("t", "v2", "v3")}
            for _ in range(3):
                repository.gc.run(grace_days=0)
            for name, count in counts.items():
                assert sql(spark, f"SELECT count(*) FROM main.db.{name}") == count
                assert sql(spark, f"SELECT count(*) FROM main.db.{name}.all_data_files")[0][0] > 0
            assert repository.fsck().is_sound
        finally:
            spark.stop()


def by_transaction(spark: SparkSession, lake: Lake, tx: Any, endpoint: str) -> None:
    """What engines write in an open transaction is seen by nobody else, until all of it is."""
    sql(spark, "CREATE NAMESPACE job.db")
    sql(spark, "CREATE TABLE job.db.t (k BIGINT, s STRING, p STRING) PARTITIONED BY (p)")
    sql(spark, "INSERT INTO job.db.t VALUES (1, 'a', 'x'), (2, 'b', 'x'), (3, 'c', 'y'), (4, 'd', 'y')")
    assert sql(spark, "SHOW NAMESPACES IN main") == []
    tx.put("beside.txt", b"x")
    tx.commit()
    assert sql(spark, "SELECT count(*) FROM main.db.t") == [(4,)]
    assert lake.repository("nyc").branch("main").read("beside.txt") == b"x"


def by_turns(spark: SparkSession, lake: Lake, endpoint: str) -> None:
    """Each engine changes the same table in turn, and sees what those before it did."""
    main, dev = (lake.repository("nyc").branch(name) for name in ("main", "dev"))
    dev.merge("main")
    catalog = load_catalog(
        "main",
        type="rest",
        uri=serve_catalog(lake).uri,
        warehouse="nyc/main",
        token=serve_catalog(lake).token.reveal(),
    )
    table = catalog.load_table("db.t")
    table.append(pa.table({"k": [5], "s": ["by PyIceberg"], "p": ["x"]}))
    sql(
        spark,
        "MERGE INTO main.db.t t USING (SELECT 1 AS k, 'by Spark' AS s) u ON t.k = u.k "
        "WHEN MATCHED THEN UPDATE SET s = u.s",
    )
    with duck(lake, "main", "dev", endpoint=endpoint) as session:
        session.execute("INSERT INTO nyc_main.db.t VALUES (6, 'by DuckDB', 'z')")
        assert session.execute("SELECT count(*) FROM nyc_main.db.t").fetchone() == (6,)
        assert session.execute("SELECT count(*) FROM nyc_dev.db.t").fetchone() == (4,)
    store = {"aws_endpoint_url": endpoint, "aws_region": "us-east-1", "aws_allow_http": "true"} if endpoint else None
    polars = pl.scan_iceberg(catalog.load_table("db.t"), storage_options=store).select("k", "s").collect().sort("k")
    assert polars.rows() == sql(spark, "SELECT k, s FROM main.db.t ORDER BY k")
    assert dict(polars.rows())[1] == "by Spark"
    # row-level changes of files that main did not touch, and an append by another engine, come together
    sql(spark, "DELETE FROM dev.db.t WHERE k = 3")
    sql(spark, "INSERT INTO dev.db.t VALUES (7, 'on dev', 'y')")
    main.merge("dev")
    assert [row[0] for row in sql(spark, "SELECT k FROM main.db.t ORDER BY k")] == [1, 2, 4, 5, 6, 7]


def deletion_vectors(spark: SparkSession, lake: Lake, endpoint: str) -> None:
    """Tables of version 3, and merge-on-read in version 2: what is deleted on both sides stays deleted."""
    repository = lake.repository("nyc")
    main = repository.branch("main")
    for version in (2, 3):
        name = f"db.v{version}"
        sql(
            spark,
            f"CREATE TABLE main.{name} (k BIGINT, part STRING) PARTITIONED BY (part) TBLPROPERTIES ("
            f"'format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')",
        )
        sql(spark, f"INSERT INTO main.{name} SELECT id, 'a' FROM range(10)")
        sql(spark, f"INSERT INTO main.{name} SELECT id, 'b' FROM range(10, 20)")
        sql(spark, f"DELETE FROM main.{name} WHERE k = 9")
        repository.delete_branch("dev")
        main.create_branch("dev")
        sql(spark, f"DELETE FROM dev.{name} WHERE k IN (11, 12)")
        sql(spark, f"INSERT INTO dev.{name} VALUES (100, 'c')")
        sql(spark, f"DELETE FROM main.{name} WHERE k = 1")
        sql(spark, f"INSERT INTO main.{name} VALUES (200, 'a')")
        main.merge("dev")
        wanted = sorted({*range(20), 100, 200} - {1, 9, 11, 12})
        assert [row[0] for row in sql(spark, f"SELECT k FROM main.{name} ORDER BY k")] == wanted, version
        with duck(lake, "main", endpoint=endpoint) as session:
            found = session.execute(f"SELECT k FROM nyc_main.{name} ORDER BY k").fetchall()
            assert [row[0] for row in found] == wanted, version
        if version == 3:
            ids = sql(spark, f"SELECT _row_id FROM main.{name}")
            assert len({row[0] for row in ids}) == len(wanted)
            kept = sql(spark, f"SELECT k, _row_id FROM main.{name} WHERE k < 9 ORDER BY k")
            assert kept == [(k, k) for k in range(9) if k != 1]  # rows keep their ids through a merge
        # deletes in one file on both sides are a conflict, and the table goes on after it
        sql(spark, f"DELETE FROM dev.{name} WHERE k = 2")
        sql(spark, f"DELETE FROM main.{name} WHERE k = 3")
        with pytest.raises(strandline.MergeConflict) as caught:
            main.merge("dev")
        assert list(caught.value.reasons) == [f"tables/db/v{version}"]
        sql(spark, f"CALL main.system.rewrite_data_files('{name}')")
        sql(spark, f"UPDATE main.{name} SET part = 'z' WHERE k = 200")
        assert sql(spark, f"SELECT count(*) FROM main.{name}") == [(len(wanted) - 1,)]
        strandline.iceberg.expire(main, name, keep=1)
        if version == 2:
            assert Catalog(main).load_table(name).scan().to_arrow().num_rows == len(wanted) - 1


def native(spark: SparkSession, lake: Lake, endpoint: str) -> None:
    """Files of a native table as those of an Iceberg table, and the other way round, through each engine."""
    main = lake.repository("nyc").branch("main")
    table = main.table("plain")
    frame = spark.sql(
        "SELECT id AS k, CAST(id AS SMALLINT) AS n, id % 3 AS p, TIMESTAMP'2024-01-01' AS t FROM range(9)"
    )
    table.write(frame, partition_by="p", message="native")
    table.to_iceberg("db.taken")
    sql(spark, "MERGE INTO main.db.taken t USING (SELECT 4 AS k) u ON t.k = u.k WHEN MATCHED THEN DELETE")
    sql(spark, "UPDATE main.db.taken SET n = -1 WHERE p = 2")
    wanted = [(k, -1 if k % 3 == 2 else k, k % 3) for k in range(9) if k != 4]
    assert sql(spark, "SELECT k, n, p FROM main.db.taken ORDER BY k") == wanted
    with duck(lake, "main", endpoint=endpoint) as session:
        assert session.execute("SELECT k, n, p FROM nyc_main.db.taken ORDER BY k").fetchall() == wanted
    assert table.count() == 9
    # rows that are deleted by positions are in the files still: the table is not taken before they are rewritten
    sql(spark, "ALTER TABLE main.db.v2 SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    sql(spark, "DELETE FROM main.db.v2 WHERE k = 5")
    with pytest.raises(strandline.UsageError, match="files of deletes"):
        main.table("back").from_iceberg("db.v2")
    sql(spark, "CALL main.system.rewrite_data_files('db.v2', options => map('rewrite-all', 'true'))")
    main.table("back").from_iceberg("db.v2")
    rows = sql(spark, "SELECT k, part FROM main.db.v2 ORDER BY k")
    assert [(row.k, row.part) for row in main.table("back").to_spark(spark).orderBy("k").collect()] == rows
    assert sorted(main.table("back").to_arrow()["k"].to_pylist()) == [k for k, _ in rows]
    assert len(main.table("back").files("part = 'z'")) == 1


def views(spark: SparkSession) -> None:
    sql(spark, "CREATE VIEW main.db.few AS SELECT k FROM main.db.t WHERE k < 3")
    assert sql(spark, "SELECT count(*) FROM main.db.few") == [(2,)]
    assert [row[1] for row in sql(spark, "SHOW VIEWS IN main.db")] == ["few"]
    sql(spark, "DROP VIEW main.db.few")


if __name__ == "__main__":
    main(*sys.argv[1:])
