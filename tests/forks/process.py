"""A process that opens a lake, works in it, and forks; it and its child write down what was acknowledged to them.

It is started from a process that has no lake, so that it may end in any way: return, `os._exit`, or be killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import strandline
from strandline.errors import StrandlineError
from strandline.lake import Lake
from strandline.repository.branch import Branch

WRITES = 8
THREADS = 3
LIMIT_S = 30
"""After so long a process that hangs is ended, and what it did not write down is missed."""


@dataclass(frozen=True)
class Plan:
    """One case of the matrix.

    Attributes:
        lake: how it is opened.
        forker: "os.fork" or "multiprocessing".
        busy: whether threads write and read while the fork happens.
        first: who ends first, "parent" or "child".
        end: how it ends: "close", "return", "_exit" or "kill".
        handle: what the child works with: the "inherited" branch, or a lake "opened" there.
    """

    lake: Mapping[str, Any]
    forker: str
    busy: bool
    first: str
    end: str
    handle: str

    def __str__(self) -> str:
        state = "busy" if self.busy else "idle"
        return f"{self.forker}-{state}-{self.first} first: {self.end}-{self.handle}"


class Acknowledged:
    """A file that both processes append to; a line is written only after the call returned."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: str) -> None:
        os.write(self._file, ("\t".join(words) + "\n").encode())


def run(plan: Plan, log: str, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    signal.alarm(LIMIT_S)
    acked = Acknowledged(log)
    lake = strandline.open(**plan.lake)
    main = lake.repository("nyc").branch("main")
    write(main, acked, "before")
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(main, acked, f"thread{n}", stop)) for n in range(THREADS)]
    for thread in threads if plan.busy else []:
        thread.start()
    parent_ended, mine = os.pipe()  # whoever holds the other end open is alive

    def child() -> None:
        os.close(mine)
        signal.alarm(LIMIT_S)  # of the parent it is not inherited
        try:
            in_the_child(plan, lake, main, acked, parent_ended)
        except BaseException as error:
            acked.note("error", type(error).__name__, str(error).replace("\n", " "))

    wait = fork(plan.forker, child)
    if plan.first == "child":
        wait()
        write(main, acked, "after the child")
        commit(main, acked, "parent")
    else:
        write(main, acked, "beside the child")
    stop.set()
    for thread in threads if plan.busy else []:
        thread.join()
    end(plan.end if plan.first == "parent" else "close", lake)
    if plan.forker == "multiprocessing":
        os.close(mine)  # its parents wait for their children before they end: this one is done with the lake


def fork(forker: str, child: Callable[[], None]) -> Callable[[], None]:
    if forker == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        return process.join
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)

    def wait() -> None:
        os.waitpid(pid, 0)

    return wait


def in_the_child(plan: Plan, lake: Lake, main: Branch, acked: Acknowledged, parent_ended: int) -> None:
    if plan.handle == "opened":
        lake = strandline.open(**plan.lake)
        main = lake.repository("nyc").branch("main")
    try:
        write(main, acked, "child")
    except StrandlineError as error:
        acked.note("refused", error.what, error.next)
        return
    if plan.first == "parent":
        os.read(parent_ended, 1)  # until nobody holds the other end
        write(main, acked, "child alone")
        commit(main, acked, "child")
        write(main, acked, "child after its commit")
    else:
        commit(main, acked, "child")
        end(plan.end, lake)


def write(main: Branch, acked: Acknowledged, who: str) -> None:
    for n in range(WRITES):
        path = f"{who}/{n}"
        main.put(path, path.encode())
        acked.note("put", path)


def commit(main: Branch, acked: Acknowledged, who: str) -> None:
    commit = main.commit(f"by the {who}", allow_empty=True)
    acked.note("commit", commit.id)


def work(main: Branch, acked: Acknowledged, who: str, stop: threading.Event) -> None:
    n = 0
    try:
        while not stop.is_set():
            path = f"{who}/{n}"
            main.put(path, path.encode())
            acked.note("put", path)
            main.find(path)
            n += 1
            stop.wait(0.002)
    except BaseException as error:
        acked.note("error", type(error).__name__, str(error).replace("\n", " "))


def end(how: str, lake: Lake) -> None:
    if how == "close":
        lake.close()
    elif how == "_exit":
        os._exit(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
