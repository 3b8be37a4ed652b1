"""Real servers for tests: on free loopback ports, with temporary data folders, stopped by process id."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60.0


def needed(variable: str, what: str) -> str:
    """The path of a server program; its absence is a failure, not a skip."""
    path = os.environ.get(variable, "")
    if not path or not Path(path).exists():
        raise RuntimeError(f"{what} is needed for this test and was not found: run `make test`, which sets it up.")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if is_ready():
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text()[-2000:]}")


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def data_folder(owner: int | None = None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="strandline-test-"))
    try:
        if owner is not None:
            os.chown(folder, owner, -1)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(command: Sequence[str], folder: Path, port: int, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder, **options)  # type: ignore[call-overload]
    try:
        wait_until(lambda: accepts(port), process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class PostgresServer:
    """A server that can be stopped hard and started again on its port and data."""

    url: str
    start: Callable[[], AbstractContextManager[subprocess.Popen[bytes]]]
    running: AbstractContextManager[subprocess.Popen[bytes]] | None = None
    process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        self.running = self.start()
        self.process = self.running.__enter__()
        wait_until(lambda: _answers(self.url), self.process, Path(os.devnull))

    def crash(self) -> None:
        """Stop it without a checkpoint, as a failing machine would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(30)
        self.end()

    def end(self) -> None:
        if self.running is not None:
            self.running.__exit__(None, None, None)
        self.running = None


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL server; yields its URL."""
    with postgres_server() as server:
        yield server.url


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server. It refuses to run as root, so then it runs as another user."""
    binaries = needed("STRANDLINE_TEST_POSTGRES_BIN", "PostgreSQL")
    user = None
    if os.getuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody").pw_uid
    with data_folder(user) as folder:
        data, port = folder / "data", free_port()
        init = [f"{binaries}/initdb", "-D", str(data), "-U", "test", "--auth=trust", "-E", "UTF8", "--locale=C"]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, user=user)
        command = [f"{binaries}/postgres", "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "unix_socket_directories=", "-c", "max_connections=200"]
        url = f"postgresql://test@127.0.0.1:{port}/postgres"
        server = PostgresServer(url, lambda: running(command, folder, port, user=user))
        server.begin()
        try:
            yield server
        finally:
            server.end()


def _answers(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def redis(*, synced: bool = True, cluster: bool = False) -> Iterator[str]:
    """A Redis server; yields its URL."""
    program = needed("STRANDLINE_TEST_REDIS", "Redis")
    with data_folder() as folder:
        port = free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        if synced:
            command += ["--appendonly", "yes", "--appendfsync", "always"]
        if cluster:
            command += ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
        with running(command, folder, port):
            yield f"redis://127.0.0.1:{port}/0"


ACCESS_KEY, SECRET_KEY = "testaccess", "testsecret12345"


@contextmanager
def s3(log: Path | None = None) -> Iterator[str]:
    """A versitygw server with the bucket "lake"; yields its endpoint. It writes each request into the log."""
    program = needed("STRANDLINE_TEST_VERSITYGW", "versitygw")
    with data_folder() as folder:
        port = free_port()
        buckets = folder / "buckets"
        (buckets / "lake").mkdir(parents=True)
        (folder / "sidecar").mkdir()
        command = [program, "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--port", f"127.0.0.1:{port}", "--region"]
        command += [
            "us-east-1",
            "--access-log",
            str(log or folder / "requests"),
            "posix",
            "--sidecar",
            str(folder / "sidecar"),
            str(buckets),
        ]
        with running(command, folder, port):
            yield f"http://127.0.0.1:{port}"
