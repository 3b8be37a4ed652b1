"""Spark sessions for tests: in this process, on a Connect server, and with S3A."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests import servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IVY = Path(__file__).parents[1] / ".cache" / "ivy"
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
def local(folder: Path, url: str | None = None, master: str = "local[2]", **more: str) -> Iterator[SparkSession]:
    """A session in this process; with the URL of an object store, one that reaches it."""
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
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    port = servers.free_port()
    options = {
        **settings(folder),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in options.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    log = folder / "connect.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        servers.wait_until(lambda: servers.accepts(port), process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
