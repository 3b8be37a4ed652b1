"""What this process and this thread are called in records that others read."""

from __future__ import annotations

import os
import re
import socket
import threading
from functools import cache

from strandline.branch.rules.writers import UNNAMED
from strandline.ids import new_id

NODE_VARIABLE = "STRANDLINE_NODE"


def this_node() -> str:
    """The name of the machine, as assignments of writers know it; the environment's STRANDLINE_NODE comes first."""
    return os.environ.get(NODE_VARIABLE) or socket.gethostname()


def this_process() -> str:
    return f"process {os.getpid()}"


def this_thread() -> str:
    """A writer's name for jobs that have none: no two of them run at once under it."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", this_node())[:64]
    return f"{UNNAMED}{host} {os.getpid()}-{_incarnation()} {threading.get_native_id()}"


def one_write() -> str:
    """A writer's name for a write that has none, and goes through several processes: no other one is called so."""
    return f"{UNNAMED}{new_id()}"


@cache
def _incarnation() -> str:
    """Tells processes apart that have the same number: containers all begin with 1."""
    return new_id()[:8]
