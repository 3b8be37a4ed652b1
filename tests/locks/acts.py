"""What the tests of range locks do, and what they look at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.errors import StrandlineError
from strandline.repository.branch import Branch
from tests.harness.clients import Client

PATHS = ("a/1", "b/1", "b/2", "c/1")


@pytest.fixture
def content(first: Client) -> None:
    first.main.put_many({path: path for path in PATHS})
    first.main.commit("content")
    first.repo.lock_owners.register("ops", "repairs")
    first.repo.lock_owners.register("load", "backfills")


def shown(driver: Client) -> dict[str, bytes]:
    return {info.path: driver.main.read(info.path) for info in driver.main.list()}


def held(driver: Client) -> list[tuple[str, str]]:
    return [(str(lock.ranges[0]), lock.owner) for lock in driver.main.locks]


def refused(what: type[StrandlineError], act: Callable[[], object], match: str | None = None) -> None:
    with pytest.raises(what, match=match):
        act()


WRITES: dict[str, Callable[[Branch], object]] = {
    "put": lambda main: main.put("b/1", b"x"),
    "put of a new path": lambda main: main.put("b/9", b"x"),
    "put many": lambda main: main.put_many({"a/1": b"x", "b/1": b"x"}, atomic=False),
    "atomic put": lambda main: main.put_many({"a/1": b"x", "b/1": b"x"}),
    "conditional put": lambda main: main.put("b/9", b"x", create=True),
    "delete": lambda main: main.delete("b/1"),
    "delete many": lambda main: main.delete_many(["a/1", "b/1"]),
    "delete prefix": lambda main: main.delete_prefix("b/"),
    "delete everything": lambda main: main.delete_prefix(""),
    "rename out": lambda main: main.rename("b/1", "d/1"),
    "rename in": lambda main: main.rename("a/1", "b/9"),
    "copy in": lambda main: main.copy("a/", "b/"),
    "reset": lambda main: main.discard(),
    "reset of a prefix": lambda main: main.discard(prefix="b/"),
    "reset of a path": lambda main: main.discard("b/2"),
    "hard reset": lambda main: main.hard_reset("main~1"),
    "forced hard reset": lambda main: main.hard_reset("main", force=True),
    "merge": lambda main: main.merge("work"),
    "cherry-pick": lambda main: main.cherry_pick("work"),
    "revert": lambda main: main.revert("main"),
    "publish": lambda main: published(main),
}


def published(main: Branch) -> None:
    with main.transaction("other") as tx:
        tx.put("b/9", b"x")
        tx.put("a/9", b"x")


def prepared(driver: Client) -> None:
    """A branch with other content, and a head whose last commit touched the range."""
    work = driver.main.create_branch("work")
    work.put("b/1", b"of work")
    work.put("c/1", b"of work")
    work.commit("work")
    driver.main.put("b/2", b"later")
    driver.main.commit("later")
