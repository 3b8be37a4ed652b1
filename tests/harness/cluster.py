"""A Spark standalone cluster of this machine: a master and workers, whose Python has the libraries, not strandline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from strandline.spark.session import s3_packages
from tests.harness import servers
from tests.harness.sessions import settings

ROOT = Path(__file__).parents[2]
WORKER_PYTHON = """#!/bin/sh
# without site packages' .pth files, so that what is installed for development is not found
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{libraries}"
exec {python} -S "$@"
"""


def _home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class Cluster:
    """A running cluster: what `submit` is given runs on it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"spark://127.0.0.1:{port}"
        self.python = folder / "python"
        self.python.write_text(WORKER_PYTHON.format(libraries=sysconfig.get_paths()["purelib"], python=sys.executable))
        self.python.chmod(0o755)

    def package(self, name: str = "strandline", version: str | None = None) -> Path:
        """The package as `spark-submit --py-files` takes it; perhaps with another version's number."""
        place = self.folder / name
        shutil.copytree(ROOT / "src", place, ignore=shutil.ignore_patterns("__pycache__"))
        if version is not None:
            init = place / "strandline" / "__init__.py"
            text = init.read_text()
            before = next(line for line in text.splitlines() if line.startswith("__version__ = "))
            init.write_text(text.replace(before, f'__version__ = "{version}"'))
        return Path(shutil.make_archive(str(self.folder / name), "zip", place))

    def submit(
        self,
        program: Path,
        *arguments: str,
        package: Path | None,
        more: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the driver of a job, to its end."""
        command = [str(_home() / "bin" / "spark-submit"), "--master", self.url, "--deploy-mode", "client"]
        for name, value in {**settings(self.folder), "spark.cores.max": "2", **more}.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--packages", ",".join(s3_packages())]
        if package is not None:
            command += ["--py-files", str(package)]
        command += [str(program), *arguments]
        told = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STRANDLINE_")},
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **environment,
        }
        return subprocess.run(command, env=told, capture_output=True, text=True, timeout=280, check=False)


@contextmanager
def standalone(workers: int = 2, environment: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A master and workers with a core each, in processes of their own.

    Args:
        environment: of the workers, and so of their executors: the credentials of the object store, and nothing else.
    """
    bare = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    bare |= {"SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})}

    def start(kind: str, *arguments: str) -> Sequence[str]:
        return [str(_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]

    with servers.data_folder() as folder, ExitStack() as running:
        port, ui = servers.free_port(), servers.free_port()
        cluster = Cluster(folder, port)
        (folder / "master").mkdir()
        master = start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
        running.enter_context(servers.running(master, folder / "master", port, env=bare))
        for number in range(workers):
            place = folder / f"worker{number}"
            place.mkdir()
            port = servers.free_port()
            ports = ["--port", str(servers.free_port()), "--webui-port", str(port)]
            room = ["--host", "127.0.0.1", "--cores", "1", "--memory", "2g", "--work-dir", str(place / "work")]
            worker = start("worker.Worker", *room, *ports, cluster.url)
            running.enter_context(servers.running(worker, place, port, env=bare))
        yield cluster
