"""`strandline serve` as a process, for tests of its clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Served:
    """A server that runs.

    Attributes:
        key, secret: of the first admin; "" if it was made before.
    """

    address: str
    key: str
    secret: str
    folder: Path
    process: subprocess.Popen[str]

    @property
    def host(self) -> str:
        return self.address.partition("://")[2]


def start(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Served:
    """Start a server; its lake is the folder `lake`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | dict(environment or {})
    command = [sys.executable, "-m", "strandline.cli", "serve", "--json", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder)
    assert process.stdout is not None
    shown: dict[str, str] = {}
    while "url" not in shown:
        line = process.stdout.readline()
        if not line:
            process.wait()
            assert process.stderr is not None
            raise RuntimeError(process.stderr.read())
        shown |= json.loads(line)
    address = shown["url"]
    if "access_key_id" in shown:
        key, secret = shown["access_key_id"], shown["secret_access_key"]
        (folder / "keys").write_text(f"{key} {secret}")
    else:
        key, secret = (folder / "keys").read_text().split()
    return Served(address, key, secret, folder / "lake", process)


def stop(served: Served) -> int:
    """End a server as systemd does; returns its exit code."""
    served.process.terminate()
    try:
        code = served.process.wait(30)
    except subprocess.TimeoutExpired:
        served.process.kill()
        served.process.wait()
        raise
    finally:
        for pipe in (served.process.stdout, served.process.stderr):
            if pipe is not None:
                pipe.close()
    return code


@contextmanager
def serving(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server in a folder, with a lake of its own that does not wait for the disk."""
    served = start(folder, "--no-sync", *options, environment=environment)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            stop(served)
