"""A program for `spark-submit`: imports, verification, rewriting and collection, each ending in one swap or none.

Two lines make it a script: `from strandline.spark.job import main` and `main()`. The last line that it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import strandline
from strandline.errors import Corrupted, NotFound, StrandlineError, UsageError, kind_of
from strandline.lake import Lake
from strandline.places import Place, place_on_a_ref
from strandline.spark.session import configure, reason_of
from strandline.spark.verifying import verify

SPARK_FAILED = 70
"""An exit code of its own."""
SHOWN = 100
"""Problems that a verification prints; all of them are in what it writes with --to."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says, and end the process: 0 if all is well, else as the error's exit code says."""
    given = _parser().parse_args(arguments)
    try:
        with strandline.open(given.lake) as lake:
            spark = configure(SparkSession.builder, lake).getOrCreate()
            told: dict[str, Any] = given.run(lake, spark, given)
    except StrandlineError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except PySparkException as error:
        print(f"Spark failed: {reason_of(error)}.", file=sys.stderr)
        sys.exit(SPARK_FAILED)
    print(json.dumps(told))
    sys.exit(kind_of(Corrupted).exit_code if told.get("problems") else 0)


def _import(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = place_on_a_ref(given.place)
    branch = lake.repository(place.repository).branch(place.ref)
    done = branch.import_objects(
        given.source, place.path, given.message, replace=given.replace, progress=_said, spark=spark
    )
    return {"objects": done.objects, "commit": done.commit.id if done.commit else None}


def _verify(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = place_on_a_ref(given.place)
    found = verify(spark, lake.repository(place.repository).ref(place.ref), place.path).persist()
    if given.to:
        found.write.mode("errorifexists").parquet(given.to)
    counts = {row["how"]: row["count"] for row in found.groupBy("how").count().collect()}
    if place.path and not counts:
        raise NotFound(f"Nothing lies below {given.place!r}.", next="Check the prefix: a folder ends in a slash.")
    bad = found.where("problem IS NOT NULL")
    for row in bad.orderBy("path").limit(SHOWN).collect():
        print(row["problem"], file=sys.stderr)
    return {"compared": counts, "problems": bad.count()}


def _rewrite(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = _table(given.place)
    done = (
        lake.repository(place.repository)
        .branch(place.ref)
        .table(place.path)
        .rewrite_files(
            target_file_bytes=given.target_mib << 20,
            where=given.where,
            sort_by=_names(given.sort_by),
            z_order_by=_names(given.z_order_by),
            spark=spark,
            message=given.message,
            writer=given.writer,
        )
    )
    return msgspec.structs.asdict(done)


def _gc(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    gc = lake.repository(given.place).gc
    done = (gc.run if given.run_it else gc.plan)(progress=_said, spark=spark)
    return {"files": done.files, "bytes": done.bytes, "deleted": given.run_it}


def _said(what: str, done: int, total: int | None) -> None:
    print(f"{what}: {done:,}" + (f" of {total:,}" if total is not None else ""), file=sys.stderr, flush=True)


def _table(text: str) -> Place:
    place = place_on_a_ref(text)
    if not place.path:
        raise UsageError(f"{text!r} names no table.", next="Write repository/branch/path.")
    return place


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="strandline-job", description="Large jobs on the executors of Spark.")
    parser.add_argument("--lake", help="a folder or a settings file; by default the environment's")
    jobs = parser.add_subparsers(required=True, metavar="JOB")
    one = jobs.add_parser("import", help="commit references to all that lies below a prefix")
    one.add_argument("source", help="a URL such as s3://bucket/prefix")
    one.add_argument("place", help="repository/branch/path")
    one.add_argument("--replace", action="store_true", help="delete what else lies at the place")
    one.add_argument("--message")
    one.set_defaults(run=_import)
    one = jobs.add_parser("verify", help="compare the bytes of all that a ref reaches")
    one.add_argument("place", help="repository/ref, or repository/ref/prefix")
    one.add_argument("--to", help="a new folder for the outcome of each file, in Parquet")
    one.set_defaults(run=_verify)
    one = jobs.add_parser("rewrite", help="write a table's small files together, or its rows in another order")
    one.add_argument("place", help="repository/branch/path of the table")
    one.add_argument("--target-mib", type=int, default=128)
    one.add_argument("--where", help="SQL: only files that may have such rows")
    one.add_argument("--sort-by", default="", help="columns, with commas between them")
    one.add_argument("--z-order-by", default="", help="columns, with commas between them")
    one.add_argument("--message")
    one.add_argument("--writer", help="a name: a run that was declared dead and comes back is fenced")
    one.set_defaults(run=_rewrite)
    one = jobs.add_parser("gc", help="find files that nothing refers to")
    one.add_argument("place", help="the repository")
    one.add_argument("--run", dest="run_it", action="store_true", help="delete them; without it nothing is")
    one.set_defaults(run=_gc)
    return parser
