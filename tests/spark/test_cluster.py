"""A cluster of several processes, PostgreSQL and S3, without shared local state: what runs on `local[*]` runs there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.blob import open_store
from tests.harness import cluster, servers

pytestmark = [pytest.mark.cluster, pytest.mark.server, pytest.mark.timeout(600)]
JOB = Path(__file__).with_name("cluster_job.py")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": servers.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET_KEY}


@pytest.fixture(scope="module")
def running() -> Iterator[cluster.Cluster]:
    with cluster.standalone(environment=CREDENTIALS) as made:
        yield made


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, s3_endpoint: str) -> Path:
    blob = f"s3://lake/cluster?endpoint={s3_endpoint}&region=us-east-1"
    file = tmp_path_factory.mktemp("cluster") / "lake.toml"
    file.write_text(f'kv = "{postgres_url}"\nblob = "{blob}"\n')
    return file


@pytest.fixture
def source(tmp_path: Path, s3_endpoint: str) -> str:
    """A prefix with more keys than a page of a list has, so that it is cut."""
    url = f"s3://lake/{tmp_path.name}-source?endpoint={s3_endpoint}&region=us-east-1"
    store = open_store(url)
    for number in range(1_200):
        store.put(f"day={number % 5}/{number:04}.csv", b"1")
    return url


def told(done: Any, out: Path) -> dict[str, Any]:
    assert out.exists(), (done.returncode, done.stdout[-1500:])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_all_that_runs_here_runs_on_a_cluster(
    running: cluster.Cluster, settings: Path, source: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    done = running.submit(
        JOB, str(settings), source, str(out), package=running.package(), more={}, environment=CREDENTIALS
    )
    found = told(done, out)
    assert "error" not in found, found
    assert found["executors"] == 2
    assert found["environment"] == ["AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY"]
    assert (found["rows"], found["kept"], found["by_format"]) == (2_000, 4_000, 100)
    assert found["imported"] == found["entries"] == 1_200
    with strandline.open(settings) as lake:
        here = lake.repository("here", create=True).branch("main")
        there = lake.repository("nyc").branch("main")
        commit = here.import_objects(source, "in/").commit
        assert commit is not None
        assert list(here.list("in/")) == list(there.list("in/"))


def test_a_worker_with_another_strandline_is_refused_at_the_start(
    running: cluster.Cluster, settings: Path, source: str, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    own = f"import sys\n\nsys.path.insert(0, {str(cluster.ROOT / 'src')!r})\n"  # else the driver takes what is shipped
    text = JOB.read_text().replace("import sys\n", own, 1)
    program.write_text(
        text.replace(
            "told: dict[str, Any] = everything(lake, spark, settings, source)",
            'lake.repository("other", create=True).branch("main").import_objects(source, spark=spark); told = {}',
        )
    )
    out = tmp_path / "out.json"
    shipped = {"spark.submit.pyFiles": str(running.package("another", "9.9.9"))}
    done = running.submit(program, str(settings), source, str(out), package=None, more=shipped, environment=CREDENTIALS)
    found = told(done, out)
    assert "has strandline 9.9.9" in found["error"]
    assert f"this driver is {strandline.__version__}" in found["error"]
