"""Run commands at the same time: the first one shows what it says at once, the others when they have ended.

The exit code is 0 if all of them succeed. On two cores this takes the time of the longest, about.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import IO


def main(commands: list[str]) -> int:
    first, *others = commands
    with ExitStack() as files:
        running: list[tuple[str, IO[bytes], subprocess.Popen[bytes]]] = []
        for command in others:
            said = files.enter_context(tempfile.TemporaryFile())
            running.append((command, said, subprocess.Popen(shlex.split(command), stdout=said, stderr=said)))
        code = subprocess.call(shlex.split(first))
        for command, said, process in running:
            ended = process.wait()
            said.seek(0)
            print(f"\n=== {command}", flush=True)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
            code = code or ended
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
