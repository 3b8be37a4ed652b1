"""Spark sessions for tests: in this process, on a Connect server, and with S3A."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IVY = Path(__file__).parents[2] / ".cache" / "ivy"
"""A resolver folder of our own: Spark's resolver stumbles over a POM without its JAR in the user's."""


def settings(folder: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.jars.ivy": str(IVY),
    }


@contextmanager
def local(folder: Path, url: str | None = None, master: str = "local[2,4]", **more: str) -> Iterator[SparkSession]:
    """A session in this process, which tries tasks four times; with the URL of an object store, one that reaches it."""
    from pyspark.sql import SparkSession

    from strandline.spark import configure

    IVY.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master(master)
    for name, value in {**settings(folder), **more}.items():
        builder = builder.config(name, value)
    session = configure(builder, url, avro=url is not None).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def connected(folder: Path) -> Iterator[SparkSession]:
    """A session on a Connect server of its own."""
    from pyspark.sql import SparkSession

    with connect_server(folder) as url:
        session = SparkSession.builder.remote(url).getOrCreate()
        yield session
        session.stop()


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Connect server; yields its URL."""
    server = ConnectServer(folder)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


class ConnectServer:
    """A Connect server that may be killed and started again: the driver of what runs on it."""

    def __init__(self, folder: Path, master: str = "local[2,4]", **more: str) -> None:
        self.folder = folder
        self.master = master
        self.more = more
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        port = servers.free_port()
        options = {
            **settings(self.folder),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            **self.more,
        }
        command = [str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", self.master]
        for name, value in options.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parents[2]),  # data sources of the tests
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.folder / "work"),
        }
        log = self.folder / "connect.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        servers.wait_until(lambda: servers.accepts(port), self.process, log)
        self.url = f"sc://127.0.0.1:{port}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def kill(self) -> None:
        """Kill it at once, with all that it has started."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def executors(self) -> list[int]:
        """The processes of executors, where the master is a cluster of this machine."""
        assert self.process is not None
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                command = (status.parent / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.process.pid and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(status.parent.name))
        return found
