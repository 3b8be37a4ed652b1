"""Declarative pipelines of Spark: published as a whole or not at all, by whichever run is the last one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import pipelines
from strandline.cli.app import run as command
from strandline.errors import AlreadyExists, Fenced, NotFound, RequirementFailed, UsageError
from strandline.iceberg import Catalog
from strandline.iceberg.tables import Tables
from strandline.lake import Lake
from tests.harness.sessions import IVY

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.jars.ivy": str(IVY)}
OPTIONS = pipelines.PipelineOptions(settings=SETTINGS)
SPEC = (
    "name: sums\nstorage: file:///unused\ncatalog: main\ndatabase: db\nlibraries:\n  - glob:\n      include: steps/**\n"
)
STEPS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table
def events():
    return spark.readStream.schema("k BIGINT, n BIGINT").json("{incoming}")


@dp.materialized_view
def sums():
    return spark.read.table("events").groupBy("k").agg(F.sum("n").alias("total"), F.count("*").alias("count"))
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "steps").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    (tmp_path / "steps" / "sums.py").write_text(STEPS.replace("{incoming}", str(tmp_path / "incoming")))
    IVY.mkdir(parents=True, exist_ok=True)
    return tmp_path / "spark-pipeline.yml"


@pytest.fixture
def open_lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as made:
        made.create_repository("nyc")
        yield made


def send(pipeline: Path, name: str, *rows: tuple[int, int]) -> None:
    """What the stream reads: a file that appears whole."""
    text = "".join(json.dumps({"k": k, "n": n}) + "\n" for k, n in rows)
    partial = pipeline.parent / f"{name}.part"
    partial.write_text(text)
    partial.rename(pipeline.parent / "incoming" / f"{name}.json")


def sums(ref: Any) -> dict[int, int]:
    rows = Catalog(ref).load_table("db.sums").scan().to_arrow().to_pylist()
    return {row["k"]: row["total"] for row in rows}


# --- what needs no Spark ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "- a", "name: [1]", "storage: x", "name: x\nunknown: 1", "name: a/b", "name: x\ncatalog: 1", "{", "name: ''"],
)
def test_files_that_describe_no_pipeline(text: str, pipeline: Path, open_lake: Lake) -> None:
    pipeline.write_text(text)
    before = open_lake.repository("nyc").branch("main").commit_id
    with pytest.raises(strandline.StrandlineError) as caught:
        pipelines.run(open_lake, "nyc/main", pipeline)
    assert "Nothing was changed" in str(caught.value)
    assert open_lake.repository("nyc").branch("main").commit_id == before
    assert list(open_lake.repository("nyc").branch("main").writers) == []


def test_what_is_read_of_a_description(pipeline: Path) -> None:
    found = pipelines.read_spec(pipeline)
    assert (found.name, found.catalog, found.database) == ("sums", "main", ("db",))
    pipeline.write_text("name: x\nschema: a.b")
    assert pipelines.read_spec(pipeline).database == ("a", "b")
    with pytest.raises(UsageError, match="cannot be read"):
        pipelines.read_spec(pipeline.with_name("no.yml"))


def test_a_branch_that_is_there_is_not_taken(pipeline: Path, open_lake: Lake) -> None:
    repository = open_lake.repository("nyc")
    repository.create_branch("review")
    with pytest.raises(AlreadyExists):
        pipelines.run(open_lake, "nyc/main", pipeline, new_branch="review")
    assert "review" in [one.name for one in repository.branches()]
    for place in ("nyc/none", "none/main", "nyc"):
        with pytest.raises((NotFound, strandline.StrandlineError)):
            pipelines.run(open_lake, place, pipeline)


def test_wrong_words_on_the_command_line(pipeline: Path, open_lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    lake = ["--lake", open_lake.place]
    assert command(["pipeline", "run", "nyc/main", "--spec", str(pipeline), "--expect", "nonsense", *lake]) == 2
    assert command(["pipeline", "run", "nyc/main", "--spec", str(pipeline), "--conf", "x", *lake]) == 2
    assert command(["pipeline", "run", "nyc/main", "--spec", str(pipeline), "--check", "no.py:f", *lake]) == 2
    check = pipeline.parent / "check.py"
    check.write_text("def other(tx): pass\n")
    assert command(["pipeline", "run", "nyc/main", "--spec", str(pipeline), "--check", f"{check}:f", *lake]) == 2
    shown = capsys.readouterr().err
    assert "It has other" in shown
    assert "Traceback" not in shown


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_runs_publish_all_or_nothing(pipeline: Path, open_lake: Lake) -> None:
    main = open_lake.repository("nyc").branch("main")
    send(pipeline, "one", (1, 10), (2, 20))
    repository, before = open_lake.repository("nyc"), main.commit_id
    done = pipelines.run(
        open_lake,
        "nyc/main",
        pipeline,
        new_branch="review",
        expect={"db.sums": ["total > 0"], "db.events": ["k < 3"]},
        options=OPTIONS,
    )
    review = repository.branch("review")
    assert (review.get_commit().parents, main.commit_id) == ((before,), before)
    assert (done.branch, done.commit) == ("review", review.commit_id)
    assert done.rows == {"db.sums": 2, "db.events": 2}
    main.merge("review")
    assert sums(main) == {1: 10, 2: 20}
    assert [row.path for row in main.list("pipelines/sums/")]

    # an expectation that does not hold: what the stream had read is read again by the next run
    send(pipeline, "two", (1, -100))
    before = main.commit_id
    with pytest.raises(RequirementFailed, match="1 of 2 rows of db.sums do not meet the expectation total > 0"):
        pipelines.run(open_lake, "nyc/main", pipeline, expect={"db.sums": ["total > 0"]}, options=OPTIONS)
    assert main.commit_id == before
    assert list(main.uncommitted()) == []
    seen: list[dict[int, int]] = []

    def judge(tx: Any) -> bool:
        seen.append(sums(tx))
        assert sums(main) == {1: 10, 2: 20}  # nobody else sees it
        return len(seen) > 1

    with pytest.raises(RequirementFailed, match="the check 'judge' does not hold"):
        pipelines.run(open_lake, "nyc/main", pipeline, check=judge, options=OPTIONS)
    assert main.commit_id == before
    pipelines.run(open_lake, "nyc/main", pipeline, check=judge, options=OPTIONS)
    assert seen == [{1: -90, 2: 20}] * 2
    assert sums(main) == {1: -90, 2: 20}  # each row of the stream once
    assert not list(pipeline.parent.glob(".strandline-*"))
    assert open_lake.repository("nyc").fsck().is_sound


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_run_that_fails_leaves_no_branch(pipeline: Path, open_lake: Lake) -> None:
    (pipeline.parent / "steps" / "sums.py").write_text("raise RuntimeError('broken')\n")
    with pytest.raises(RequirementFailed, match="spark-pipelines ended with"):
        pipelines.run(open_lake, "nyc/main", pipeline, new_branch="second", options=OPTIONS)
    assert [one.name for one in open_lake.repository("nyc").branches()] == ["main"]


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_a_killed_run_is_run_again_and_the_successor_wins(pipeline: Path, open_lake: Lake) -> None:
    """Killed when some of it is written: nothing is seen, and the next run makes all of it once."""
    main = open_lake.repository("nyc").branch("main")
    send(pipeline, "one", *((k, 1) for k in range(50)))
    command_line = [sys.executable, "-m", "strandline.cli", "pipeline", "run", "nyc/main", "--spec", str(pipeline)]
    for name, value in SETTINGS.items():
        command_line += ["--conf", f"{name}={value}"]
    process = subprocess.Popen(
        [*command_line, "--lake", open_lake.place],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    blobs = open_lake.repository("nyc")._core.resolver.namespace
    limit = time.monotonic() + 120
    while time.monotonic() < limit and not any(key.endswith(".parquet") for key in blobs.list_keys("ice/")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert any(key.endswith(".parquet") for key in blobs.list_keys("ice/"))
    assert Tables(main).namespaces() == []
    assert main.get_commit().message == "Repository created"

    # a zombie: begun, replaced while Spark runs, and fenced from then on
    started = threading.Event()
    failures: list[BaseException] = []

    def zombie(tx: Any) -> bool:
        started.set()
        time.sleep(3)
        return True

    def first() -> None:
        try:
            pipelines.run(open_lake, "nyc/main", pipeline, check=zombie, options=OPTIONS)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert started.wait(200)
    successor = subprocess.run(
        [sys.executable, "-c", _SUCCESSOR, open_lake.place], capture_output=True, text=True, timeout=60
    )
    assert successor.returncode == 0, successor.stderr
    thread.join()
    assert [type(one) for one in failures] == [Fenced]
    assert Tables(main).namespaces() == []
    pipelines.run(open_lake, "nyc/main", pipeline, options=OPTIONS)
    assert sums(main) == dict.fromkeys(range(50), 1)
    repository = open_lake.repository("nyc")
    repository.gc.run(grace_days=0)
    assert sums(main) == dict.fromkeys(range(50), 1)


_SUCCESSOR = """
import sys
import strandline

with strandline.open(sys.argv[1]) as lake:
    lake.repository("nyc").branch("main").transaction("sums").begin().abort()
"""
