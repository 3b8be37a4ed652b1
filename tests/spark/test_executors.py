"""What executors get, on executors that are processes of their own: the keys of the object store, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import UsageError

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
SECRET = "pl4nted-s3cret"
SCRIPT = """
import os, pickle, sys
from pathlib import Path
import strandline
from tests.harness import sessions

folder, endpoint, postgres = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
blob = f"s3://lake/executors?endpoint={endpoint}&region=us-east-1"
logs = folder / "events"
logs.mkdir()
options = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{logs}", "spark.executor.memory": "512m"}
with sessions.local(folder, blob, "local-cluster[2,1,768]", **options) as spark:
    spark.sparkContext.setLogLevel("INFO")
    # metadata in the memory of this process: no other process can reach it
    with strandline.open(kv="memory://driver", blob=blob, create=True) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        table = main.table("t")
        table.write(spark.range(100).selectExpr("id", "id % 4 as k"), partition_by="k")
        main.commit("t")
        assert table.to_spark(spark, where="id < 50").count() == 50
    # a secret in the URL of the metadata: it must not travel
    with strandline.open(kv=postgres, blob=blob, tenant="secretive", create=True) as lake:
        main = lake.repository("second", create=True).branch("main")
        table = main.table("t")
        table.write(spark.range(100), file_format="json")
        frame = table.to_spark(spark, where="id < 50")
        assert frame.count() == 50
        (folder / "pickles").write_bytes(b"".join(pickle.dumps(one) for one in (lake, main)))
        names = spark.sparkContext.parallelize(range(2), 2).map(lambda _: repr(dict(os.environ))).collect()
        (folder / "environments").write_text("\\n".join(names))
        processes = set(spark.sparkContext.parallelize(range(4), 4).map(lambda _: os.getppid()).collect())
        assert os.getpid() not in processes
print("done")
"""


@pytest.mark.s3
@pytest.mark.timeout(280)
def test_executors_need_no_metadata_and_no_secret_travels(tmp_path: Path, s3_endpoint: str, postgres_url: str) -> None:
    url = postgres_url.replace("test@", f"test:{SECRET}@")
    environment = {
        **os.environ,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), s3_endpoint, url],
        capture_output=True,
        text=True,
        env=environment,
        timeout=270,
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]
    texts = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".jar"}
    assert any("events" in str(path) for path in texts)
    for path, text in texts.items():
        assert SECRET.encode() not in text, path
    assert SECRET not in done.stdout + done.stderr


def test_a_session_without_the_file_system_says_what_to_do(spark: SparkSession, s3_endpoint: str) -> None:
    blob = f"s3://lake/plain-session?endpoint={s3_endpoint}&region=us-east-1"
    with strandline.open(kv="memory://plain-session", blob=blob, create=True) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        with pytest.raises(UsageError, match="cannot reach .*without its file system.*strandline.spark.configure"):
            main.table("t").write(spark.range(3))
        assert list(main.list()) == []
