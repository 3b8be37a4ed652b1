"""The scripts for orchestrators load with what those offer, and do their work twice without harm."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from examples.orchestration import nightly

import strandline
from strandline.spark import job

ROOT = Path(__file__).parents[1]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    with strandline.open(tmp_path / "lake", create=True) as opened:
        opened.repository("nyc", create=True)
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_bytes(b"a")
    return str(tmp_path / "lake")


def test_a_night_may_be_run_again(lake: str, tmp_path: Path) -> None:
    name = commit = ""
    for _ in range(2):
        name = nightly.land(lake, str(tmp_path / "landing"), "2026-11-25")
        assert nightly.check(lake, name, "2026-11-25") == 1
        commit = nightly.publish(lake, name)
    assert nightly.publish(lake, name) == commit
    with strandline.open(lake) as opened:
        repository = opened.repository("nyc")
        assert repository.branch("main").read("raw/2026-11-25/a.csv") == b"a"
        assert [branch.name for branch in repository.branches()] == ["main"]


def test_a_night_without_files_is_not_published(lake: str) -> None:
    with strandline.open(lake) as opened:
        opened.repository("nyc").branch("main").create_branch("night-x")
    with pytest.raises(ValueError, match="Nothing has landed"):
        nightly.check(lake, "night-x", "x")


def test_cron_runs_it_as_a_program(lake: str, tmp_path: Path) -> None:
    import pyarrow as pa

    line = (ROOT / "examples" / "orchestration" / "crontab").read_text().splitlines()[-1]
    assert "python3 /opt/strandline/nightly.py" in line
    with strandline.open(lake) as opened:
        for n in range(3):
            opened.repository("nyc").branch("main").table("tables/rides").write(pa.table({"k": [n]}), message="row")
    program = ROOT / "examples" / "orchestration" / "nightly.py"
    command = [sys.executable, str(program), lake, str(tmp_path / "landing"), "2026-11-25", "tables/rides"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    with strandline.open(lake) as opened:
        tidied, published, *_ = opened.repository("nyc").branch("main").log()
        assert (tidied.message, published.id) == ("rewrite files of tables/rides", done.stdout.strip())


def _recorded(made: list[str]) -> Callable[..., Any]:
    def decorator(*functions: Callable[..., Any], **_: Any) -> Any:
        if not functions:
            return decorator
        made.append(functions[0].__name__)
        takes_day = "ds" in inspect.signature(functions[0]).parameters
        return partial(functions[0], ds="2026-11-25") if takes_day else functions[0]

    return decorator


def test_airflow_loads_its_dag(lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for Airflow's decorators, under which calling the DAG runs its tasks."""
    made: list[str] = []
    airflow, sdk = ModuleType("airflow"), ModuleType("airflow.sdk")
    sdk.dag = sdk.task = _recorded(made)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow", airflow)
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    monkeypatch.setenv("NIGHTLY_LAKE", lake)
    monkeypatch.setenv("NIGHTLY_SOURCE", str(tmp_path / "landing"))
    (tmp_path / "landing" / "2026-11-25").mkdir()
    (tmp_path / "landing" / "2026-11-25" / "b.csv").write_bytes(b"b")
    importlib.import_module("examples.orchestration.airflow_nightly")
    assert made == ["nightly_rides", "land", "check", "publish", "tidy"]
    with strandline.open(lake) as opened:
        assert opened.repository("nyc").branch("main").exists("raw/2026-11-25/b.csv")


def test_dagster_loads_its_assets(lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for what the script uses of Dagster."""
    made: list[str] = []
    dagster = ModuleType("dagster")
    for name in ("DailyPartitionsDefinition", "Definitions"):
        setattr(dagster, name, lambda **options: options)
    dagster.asset = _recorded(made)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dagster", dagster)
    monkeypatch.setenv("NIGHTLY_LAKE", lake)
    monkeypatch.setenv("NIGHTLY_SOURCE", str(tmp_path / "landing"))
    loaded = importlib.import_module("examples.orchestration.dagster_nightly")
    assert made == ["landed_rides", "published_rides"]
    (tmp_path / "landing" / "2026-11-25").mkdir()
    (tmp_path / "landing" / "2026-11-25" / "b.csv").write_bytes(b"b")

    class Context:
        partition_key = "2026-11-25"

    loaded.published_rides(loaded.landed_rides(Context()))
    with strandline.open(lake) as opened:
        assert opened.repository("nyc").branch("main").read("raw/2026-11-25/b.csv") == b"b"


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "/none/such", "nyc/main/in"],
        ["verify", "nyc"],
        ["verify", "nyc/main/none/"],
        ["rewrite", "nyc/main"],
        ["rewrite", "nyc/main/none"],
        ["gc", "none"],
        ["mirror", "/none/such", "nyc/main/t"],
        ["mirror", ".", "nyc/main"],
        ["commit", "nyc/main", "--message", "nothing"],
        ["compact", "nyc/none"],
        ["merge", "none", "nyc/main"],
        ["export", "nyc/main/none/", "file:///tmp/none"],
        ["copy", "none", "elsewhere"],
        ["backup", "s4://none"],
        ["keep-up", "nyc/main", "--min-files", "0"],
        ["diff", "nyc/main/none", "main", "to"],
        ["changes", "nyc/main/none", "to", "--key", "k"],
    ],
)
@pytest.mark.spark
def test_a_job_with_a_wrong_argument_says_so_and_has_an_exit_code(
    spark: Any, lake: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(["--lake", lake, *arguments])
    assert ended.value.code not in (0, None)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert told.err.strip()
    assert told.out == ""


@pytest.mark.spark
def test_jobs_do_their_work_and_say_what_they_did(
    spark: Any, lake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa

    def done(*arguments: str) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            job.main(["--lake", lake, *arguments])
        return int(str(ended.value.code)), json.loads(capsys.readouterr().out.splitlines()[-1])

    code, told = done("import", str(tmp_path / "landing"), "nyc/main/in", "--message", "landed")
    assert (code, told["objects"]) == (0, 1)
    assert done("import", str(tmp_path / "landing"), "nyc/main/in")[1]["commit"] is None
    with strandline.open(lake) as opened:
        main = opened.repository("nyc").branch("main")
        for n in range(3):
            main.table("t").write(pa.table({"k": [n]}), message="row")
    code, told = done("rewrite", "nyc/main/t", "--sort-by", "k")
    assert (code, told["before"], told["after"]) == (0, 3, 1)
    code, told = done("verify", "nyc/main", "--to", str(tmp_path / "verified"))
    assert (code, told["problems"]) == (0, 0)
    assert sum(told["compared"].values()) >= 3
    with pytest.raises(SystemExit) as ended:
        job.main(["--lake", lake, "verify", "nyc/main", "--to", str(tmp_path / "verified")])
    assert ended.value.code == job.SPARK_FAILED
    assert "Traceback" not in capsys.readouterr().err
    (tmp_path / "landing" / "a.csv").write_bytes(b"changed")
    assert done("verify", "nyc/main/in/")[0] == 11
    code, told = done("gc", "nyc")
    assert (code, told["deleted"]) == (0, False)


@pytest.mark.spark
def test_jobs_of_branches_tables_and_lakes(
    spark: Any, lake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def done(*arguments: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            job.main(["--lake", lake, *arguments])
        told = capsys.readouterr()
        assert ended.value.code == 0, told.err
        found: dict[str, Any] = json.loads(told.out.splitlines()[-1])
        return found

    monkeypatch.setattr("strandline.spark.folding.PART_KEYS", 10)
    (tmp_path / "rides" / "m=1").mkdir(parents=True)
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "rides" / "m=1" / "a.parquet")
    mirror = "mirror", str(tmp_path / "rides"), "nyc/main/rides", "--partition-types", "m=integer"
    assert done(*mirror)["objects"] == 1
    assert done(*mirror)["commit"] is None
    with strandline.open(lake) as opened:
        main = opened.repository("nyc").branch("main")
        dev = main.create_branch("dev")
        main.put_many({f"many/{n:03}": b"x" for n in range(40)})
        for n in range(3):
            dev.table("t").write(pa.table({"k": [n], "v": [n]}), message="row")
    told = done("compact", "nyc/main", "--force")
    assert (told["entries"], told["copied"]) == (40, 40)
    assert told["copied_per_second"] > 0
    assert done("commit", "nyc/main", "--message", "many")["commit"]
    assert done("keep-up", "nyc/dev", "--tables", "t", "--min-files", "3")["tables"][0]["after"] == 1
    assert done("merge", "dev", "nyc/main", "--message", "merged")["commit"]
    died = tmp_path / "rows" / "_temporary" / "0"
    died.mkdir(parents=True)
    (died / "part-00000.parquet").write_bytes(b"half")
    assert done("diff", "nyc/main~1/t", "main", str(tmp_path / "rows"), "--key", "k")["rows"] == 3
    again = ["--lake", lake, "diff", "nyc/main~1/t", "main", str(tmp_path / "rows"), "--key", "k"]
    with pytest.raises(SystemExit) as ended:  # what another run has ended is not written over
        job.main(again)
    assert ended.value.code == job.SPARK_FAILED
    (tmp_path / "rows" / "_temporary").mkdir()
    (tmp_path / "rows" / "mine.txt").write_text("not of a write")
    with pytest.raises(SystemExit):
        job.main(again)
    assert (tmp_path / "rows" / "mine.txt").exists()
    capsys.readouterr()
    told = done("changes", "nyc/main/t", str(tmp_path / "changes"), "--key", "k")
    assert told["rows"] == 3
    assert (
        done("changes", "nyc/main/t", str(tmp_path / "more"), "--key", "k", "--since", str(told["since"]))["rows"] == 0
    )
    assert done("export", "nyc/main/many/", f"file://{tmp_path}/exported")["objects"] == 40
    assert done("backup", f"file://{tmp_path}/saved")["saved"]["nyc"] > 40
    strandline.open(tmp_path / "other", create=True).close()
    assert done("copy", "nyc", str(tmp_path / "other"), "--as", "copied") == {"repository": "copied"}
