"""A program for `spark-submit`: the large jobs, each ending in one swap or none.

Two lines make it a script: `from strandline.spark.job import main` and `main()`. The last line that it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

import strandline
from strandline.blob import open_store
from strandline.errors import Corrupted, NotFound, StorageError, StrandlineError, UsageError, kind_of
from strandline.lake import Lake
from strandline.places import Place, column_and_type, place_on_a_ref
from strandline.redaction import looks_like_url
from strandline.repository.branch import Branch
from strandline.spark.changes import changes
from strandline.spark.folding import COPYING
from strandline.spark.row_diff import row_diff
from strandline.spark.session import configure, is_of_spark, reason_of
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
    except Exception as error:
        if not is_of_spark(error):
            raise
        print(f"Spark failed: {reason_of(error)}.", file=sys.stderr)
        sys.exit(SPARK_FAILED)
    print(json.dumps(told))
    failed = kind_of(StorageError).exit_code if told.get("failed") else 0
    sys.exit(kind_of(Corrupted).exit_code if told.get("problems") else failed)


def _import(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = place_on_a_ref(given.place)
    branch = lake.repository(place.repository).branch(place.ref)
    done = branch.import_objects(
        given.source,
        place.path,
        given.message,
        replace=given.replace,
        progress=_said,
        spark=spark,
        job=given.job,
    )
    return {"objects": done.objects, "commit": done.commit.id if done.commit else None}


def _mirror(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = _table(given.place)
    types = dict(column_and_type(text) for text in _names(given.partition_types))
    done = _branch(lake, given.place).mirror_table(
        given.source,
        place.path,
        given.message,
        file_format=given.file_format,
        partition_types=types,
        progress=_said,
        spark=spark,
        job=given.job,
    )
    return {"objects": done.objects, "commit": done.commit.id if done.commit else None}


def _commit(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    copied = _Copied()
    done = _branch(lake, given.place).commit(given.message, progress=copied, spark=spark)
    return {"commit": done.id, **copied.told}


def _compact(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    copied = _Copied()
    done = _branch(lake, given.place).compact(force=given.force, progress=copied, spark=spark)
    return {"outcome": done.outcome, "entries": done.entries, "seconds": done.seconds, **copied.told}


def _merge(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    branch = _branch(lake, given.place)
    done = branch.merge(given.source, given.message, strategy=given.strategy, progress=_said, spark=spark)
    return {"commit": done.id}


def _export(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = place_on_a_ref(given.place)
    ref = lake.repository(place.repository).ref(place.ref)
    return {"objects": ref.export(given.target, place.path, progress=_said, spark=spark)}


def _copy(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    with strandline.open(given.target) as other:
        made = lake.copy_repository(given.place, other, name=given.known_as, check=False, progress=_said, spark=spark)
        return {"repository": made.name}


def _backup(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    saved = lake.backup(given.target, _names(given.repositories) or None, progress=_said, spark=spark)
    return {"saved": {one.record.name: one.files for one in saved.repositories}}


def _keep_up(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    rule = strandline.UpkeepRule(
        tables=given.tables,
        target_file_bytes=given.target_mib << 20,
        min_files=given.min_files,
        min_age_days=given.min_age_days,
        sort_by=tuple(_names(given.sort_by)),
        z_order_by=tuple(_names(given.z_order_by)),
    )
    done = _branch(lake, given.place).keep_up([rule], progress=_said, spark=spark)
    failed = sum(bool(one.problem) for one in done)
    return {"tables": [msgspec.structs.asdict(one) for one in done if one.before or one.problem], "failed": failed}


def _diff(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = _table(given.place)
    left = lake.repository(place.repository).ref(place.ref)
    return _written(row_diff(spark, left, given.other, place.path, key=_names(given.key) or None), given.to)


def _changes(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = _table(given.place)
    repository = lake.repository(place.repository)
    branch = repository.branch(place.ref)
    branch.feed.record()
    upto = branch.feed.shard.state.upper - 1
    print(f"since: {upto}", file=sys.stderr)  # a run that dies after its write does not print its last line
    frame = changes(spark, repository, branch, place.path, since=given.since, key=_names(given.key))
    return {**_written(frame, given.to), "since": upto}


def _written(frame: DataFrame, to: str) -> dict[str, Any]:
    frame.write.mode("overwrite" if _broke_off(to) else "errorifexists").parquet(to)
    return {"rows": frame.sparkSession.read.schema(frame.schema).parquet(to).count(), "to": to}


def _broke_off(to: str) -> bool:
    """Whether a folder holds a write of Spark that did not end, and nothing else."""
    try:
        keys = list(open_store(to).list_keys()) if looks_like_url(to) or Path(to).is_dir() else []
    except StrandlineError:  # Spark may know the place all the same
        return False
    names = {key.split("/")[0] for key in keys}
    return bool(names & UNDER_WAY) and all(name in UNDER_WAY or name.startswith(("part-", ".part-")) for name in names)


UNDER_WAY = {"_temporary", "__magic"}
"""Folders of Spark's committers, which go when a write ends."""


class _Copied:
    """Passes on how far a job is, and remembers how fast staged entries were copied."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.told: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what == COPYING:
            took = max(time.monotonic() - self._started, 1e-6)
            self.told = {"copied": done, "copied_per_second": round(done / took)}
        _said(what, done, total)


def _verify(lake: Lake, spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    place = place_on_a_ref(given.place)
    found = verify(spark, lake.repository(place.repository).ref(place.ref), place.path).persist()
    if given.to:
        found.write.mode("overwrite" if _broke_off(given.to) else "errorifexists").parquet(given.to)
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


def _branch(lake: Lake, text: str) -> Branch:
    place = place_on_a_ref(text)
    return lake.repository(place.repository).branch(place.ref)


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
    _add_arrivals(jobs)
    _add_trees(jobs)
    _add_copies(jobs)
    _add_tables(jobs)
    one = jobs.add_parser("verify", help="compare the bytes of all that a ref reaches")
    one.add_argument("place", help="repository/ref, or repository/ref/prefix")
    one.add_argument("--to", help="a new folder for the outcome of each file, in Parquet")
    one.set_defaults(run=_verify)
    one = jobs.add_parser("gc", help="find files that nothing refers to")
    one.add_argument("place", help="the repository")
    one.add_argument("--run", dest="run_it", action="store_true", help="delete them; without it nothing is")
    one.set_defaults(run=_gc)
    return parser


def _add_arrivals(jobs: Any) -> None:
    one = jobs.add_parser("import", help="commit references to all that lies below a prefix")
    one.add_argument("source", help="a URL such as s3://bucket/prefix")
    one.add_argument("place", help="repository/branch/path")
    one.add_argument("--replace", action="store_true", help="delete what else lies at the place")
    one.add_argument("--message")
    one.add_argument("--job", help="a name: a run of it that died is gone on with")
    one.set_defaults(run=_import)
    one = jobs.add_parser("mirror", help="commit a table whose files somebody else writes, or what changed in it")
    one.add_argument("source", help="the URL of a folder of one table")
    one.add_argument("place", help="repository/branch/path of the table")
    one.add_argument("--file-format", help="of its files; by default as the first one is named")
    one.add_argument("--partition-types", default="", help="of columns that folders name: year=integer,day=date")
    one.add_argument("--message")
    one.add_argument("--job", help="a name: a run of it that died is gone on with")
    one.set_defaults(run=_mirror)


def _add_trees(jobs: Any) -> None:
    one = jobs.add_parser("commit", help="commit what is staged on a branch")
    one.add_argument("place", help="repository/branch")
    one.add_argument("--message", required=True)
    one.set_defaults(run=_commit)
    one = jobs.add_parser("compact", help="fold what is staged into a tree")
    one.add_argument("place", help="repository/branch")
    one.add_argument("--force", action="store_true", help="even if another one began within a minute")
    one.set_defaults(run=_compact)
    one = jobs.add_parser("merge", help="merge a ref into a branch")
    one.add_argument("source", help="the ref, of the same repository")
    one.add_argument("place", help="repository/branch")
    one.add_argument("--strategy", choices=("source-wins", "dest-wins"))
    one.add_argument("--message")
    one.set_defaults(run=_merge)


def _add_copies(jobs: Any) -> None:
    one = jobs.add_parser("export", help="copy objects below a prefix of an object store")
    one.add_argument("place", help="repository/ref, or repository/ref/prefix")
    one.add_argument("target", help="a URL such as s3://bucket/prefix")
    one.set_defaults(run=_export)
    one = jobs.add_parser("copy", help="copy a repository into another lake")
    one.add_argument("place", help="the repository")
    one.add_argument("target", help="the other lake: a settings file")
    one.add_argument("--as", dest="known_as", help="its name there")
    one.set_defaults(run=_copy)
    one = jobs.add_parser("backup", help="save repositories while they are in use")
    one.add_argument("target", help="the URL of an object store")
    one.add_argument("--repositories", default="", help="with commas between them; by default all")
    one.set_defaults(run=_backup)


def _add_tables(jobs: Any) -> None:
    one = jobs.add_parser("diff", help="the rows in which a table differs between two refs")
    one.add_argument("place", help="repository/ref/path of the table")
    one.add_argument("other", help="the other ref")
    one.add_argument("to", help="a new folder for the rows, in Parquet")
    one.add_argument("--key", default="", help="columns that name a row, with commas between them")
    one.set_defaults(run=_diff)
    one = jobs.add_parser("changes", help="each key of a table that changed, as it is after its last change")
    one.add_argument("place", help="repository/branch/path of the table")
    one.add_argument("to", help="a new folder for the rows, in Parquet")
    one.add_argument("--key", required=True, help="columns that name a row, with commas between them")
    one.add_argument("--since", type=int, help="what an earlier run printed as since")
    one.set_defaults(run=_changes)
    one = jobs.add_parser("keep-up", help="write small files of tables together, by rule")
    one.add_argument("place", help="repository/branch")
    one.add_argument("--tables", default="*", help="a glob pattern of their paths")
    one.add_argument("--target-mib", type=int, default=128)
    one.add_argument("--min-files", type=int, default=8, help="small files of a partition that are worth a file")
    one.add_argument("--min-age-days", type=float, default=0.0, help="files that are younger are left")
    one.add_argument("--sort-by", default="", help="columns, with commas between them")
    one.add_argument("--z-order-by", default="", help="columns, with commas between them")
    one.set_defaults(run=_keep_up)
    one = jobs.add_parser("rewrite", help="write a table's small files together, or its rows in another order")
    one.add_argument("place", help="repository/branch/path of the table")
    one.add_argument("--target-mib", type=int, default=128)
    one.add_argument("--where", help="SQL: only files that may have such rows")
    one.add_argument("--sort-by", default="", help="columns, with commas between them")
    one.add_argument("--z-order-by", default="", help="columns, with commas between them")
    one.add_argument("--message")
    one.add_argument("--writer", help="a name: a run that was declared dead and comes back is fenced")
    one.set_defaults(run=_rewrite)
