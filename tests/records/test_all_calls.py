"""Every public call with values of every wrong kind: an error of ours, nothing written, every record still readable.

The calls are found by looking at the classes, so a new one is tried without being named here. What a call needs beside
the wrong value comes from `SAMPLES`; a parameter without a sample fails the test.
"""

from __future__ import annotations

import inspect
import math
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.lake import Lake, open_lake
from strandline.repository.branch import Branch
from strandline.settings import find_settings
from strandline.testing.clock import ManualClock

pytestmark = pytest.mark.beside

WRONG: dict[str, Any] = {
    "None": None,
    "an integer": 7,
    "a negative": -3,
    "huge": 10**30,
    "a boolean": True,
    "nan": math.nan,
    "infinity": math.inf,
    "a text": "xy",
    "nothing": "",
    "a surrogate": "\ud800",
    "controls": "a\x1b[31m\n\0b",
    "bytes": b"xy",
    "a list": ["x", "y"],
    "a list of integers": [1],
    "a map": {"a": 1},
    "an object": object(),
    "a path": Path("some/path"),
    "a URL": "s3://bucket/x",
    "a moment": datetime(2026, 1, 1, tzinfo=UTC),
}
SAMPLES: dict[str, Any] = {
    "address": "data/x",
    "amount": 1,
    "at": 0,
    "branch": "work",
    "branches": {"a": 3.0},
    "checksum": "blake3:x",
    "assignments": {"k": "x"},
    "closer": lambda: None,
    "on": "k",
    "where": "true",
    "columns": None,
    "commit": "main",
    "content": b"x",
    "changes": {"p": b"1"},
    "contents": {"p": b"1"},
    "expected": {"p": None},
    "data": None,
    "days": 3.0,
    "destination": "in/",
    "entries": [],
    "every_s": 1.0,
    "expression": "main",
    "file": "some-file",
    "folder": "some-folder",
    "id": "1",
    "ids": ["1"],
    "job": "job",
    "lake": None,
    "left": "main",
    "message": "a message",
    "name": "other",
    "node": "n",
    "other": "work",
    "overwrite": None,
    "owner": "me",
    "path": "a",
    "paths": ["a"],
    "pattern": "release-*",
    "physical_address": "data/x",
    "prefix": "t/",
    "ranges": "t/",
    "read_only": False,
    "ref": "work",
    "repository": "repo",
    "right": "work",
    "rules": [],
    "schema": pa.schema([("k", pa.string())]),
    "size": 1,
    "source": "work",
    "target": "some-target",
    "under": ["1"],
    "what": "t/",
    "writer": "w",
    "description": "for a test",
    "condition": "main",
    "why": "because",
    "wider": pa.schema([("k", pa.string()), ("more", pa.int64())]),
}
LEFT_OUT = {
    ("Lake", "close"),  # ends the lake that all others use
    ("Lake", "delete_repository"),
    ("Transaction", "require"),  # what it demands dooms the transaction
    ("Branch", "feed"),  # needs no arguments, and begins a shard
    ("Table", "to_spark"),  # engines: their own tests give them frames
    ("Table", "write"),
    ("Table", "to_duckdb"),
    ("Table", "to_pandas"),
    ("Table", "to_polars"),
    ("Shard", "listen"),  # waits for others
    ("Shard", "subscribe"),
}


INTERNAL = ("refuse_doomed", "writing", "stage", "stage_each", "stage_atomically", "stage_expecting", "facts", "adopt")
"""What tables and jobs call on a ref, with values that they made themselves; entries have tests of their own."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.chdir(tmp_path)
    settings = find_settings(kv=f"memory://{uuid.uuid4().hex}", blob=str(tmp_path / "data"), synced=False)
    with open_lake(settings, create=True, clock=ManualClock()) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        main.put_many({"a": b"1", "t/x": b"2"})
        main.commit("first")
        repo.create_branch("work").put("w", b"3")
        repo.create_tag("v1")
        repo.lock_owners.register("me", "for this test")
        repo.shard("s", SAMPLES["schema"])
        yield lake


def subjects(lake: Lake) -> dict[str, Any]:
    repo = lake.repository("nyc")
    main = repo.branch("main")
    return {
        "Lake": lake,
        "Repository": repo,
        "Branch": main,
        "Ref": repo.ref("v1"),
        "Transaction": main.transaction(f"job {uuid.uuid4().hex}", "m").begin(),
        "Table": main.table("t"),
        "GarbageCollection": repo.gc,
        "Locks": main.locks,
        "LockOwners": repo.lock_owners,
        "Writers": main.writers,
        "Transactions": main.transactions,
        "RangeJobs": main.range_jobs,
        "Shard": repo.shard("s"),
    }


KINDS = (
    "Lake",
    "Repository",
    "Branch",
    "Ref",
    "Transaction",
    "Table",
    "GarbageCollection",
    "Locks",
    "LockOwners",
    "Writers",
    "Transactions",
    "RangeJobs",
    "Shard",
)


def calls_of(kind: str, subject: Any) -> Iterator[tuple[str, inspect.Signature]]:
    for name, held in inspect.getmembers(type(subject), inspect.isfunction):
        if not name.startswith("_") and (kind, name) not in LEFT_OUT and name not in INTERNAL:
            parameters = list(inspect.signature(held).parameters.values())[1:]
            yield name, inspect.Signature(parameters)


def shown(lake: Lake) -> object:
    """All that anybody can see of the lake; a seal, or a note of what is looked at, is no change."""
    repo = lake.repository("nyc")
    branches = {
        ref.name: (ref.commit, [(i.path, getattr(i, "checksum", "")) for i in repo.branch(ref.name).list()])
        for ref in repo.branches()
    }
    tags = {ref.name: ref.commit for ref in repo.tags()}
    locks = [lock.id for lock in repo.branch("main").locks]
    writers = [(one.name, one.node, one.open) for one in repo.branch("main").writers]
    names = [record.name for record in lake.repositories()]
    return branches, tags, repo.settings, locks, writers, names, repo.shards()


def _only_by_place(signature: inspect.Signature) -> set[str]:
    return {p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY}


def attempt(subject: Any, name: str, arguments: dict[str, Any], signature: inspect.Signature) -> str:
    """Call it; what is wrong with the way in which it failed, or empty."""
    positional = [arguments[p.name] for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
    named = {
        key: value
        for key, value in arguments.items()
        if signature.parameters[key].kind is not inspect.Parameter.POSITIONAL_ONLY
    }
    try:
        found = getattr(subject, name)(*positional, **named)
        if isinstance(found, AbstractContextManager) and not isinstance(found, Path) and not hasattr(found, "read"):
            with found:
                pass
        elif isinstance(found, Iterator):
            for _ in zip(found, range(3), strict=False):
                pass
    except StrandlineError as error:
        return "" if str(error) else "its error says nothing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_argument_is_an_error_of_ours_and_changes_nothing(lake: Lake, kind: str) -> None:
    wrong: list[str] = []
    tried = 0
    for name, signature in calls_of(kind, subjects(lake)[kind]):
        parameters = [p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        needed = {}
        for one in parameters:
            if one.default is one.empty:
                if one.name not in SAMPLES:
                    pytest.fail(f"{kind}.{name} needs {one.name}: add a sample")
                needed[one.name] = SAMPLES[one.name]
        for one in parameters:
            for what, value in WRONG.items():
                repo = lake.repository("nyc")
                if repo.settings.read_only:
                    repo.set_read_only(False)
                for rule in repo.protections:
                    repo.unprotect(rule.pattern)
                subject = subjects(lake)[kind]
                before = shown(lake)
                tried += 1
                outcome = attempt(subject, name, {**needed, one.name: value}, signature)
                if outcome not in ("", "done"):
                    wrong.append(f"{kind}.{name}({one.name}={what}): {outcome}")
                elif outcome == "" and shown(lake) != before:
                    wrong.append(f"{kind}.{name}({one.name}={what}) was refused and has changed what is shown")
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n".join(wrong)
    repo = lake.repository("nyc")
    for branch in repo.branches():
        list(repo.branch(branch.name).list())
    repo.set_read_only(False)
    for rule in repo.protections:
        repo.unprotect(rule.pattern)
    main = repo.branch("main")
    main.locks.end([lock.id for lock in main.locks])
    main.put("still", b"1")
    with suppress(strandline.NothingToCommit):
        main.commit("it can be committed")
    assert repo.fsck().is_sound


def test_the_advice_names_the_class_that_the_caller_knows(main: Branch) -> None:
    """Methods stand in classes beneath the public ones."""
    with pytest.raises(StrandlineError, match=r"help\(RangeJobs\.load\)"):
        main.range_jobs.load("t/", "x", job=5, owner="ops")  # type: ignore[arg-type]
    with pytest.raises(StrandlineError, match=r"help\(Branch\.delete_many\)"):
        main.delete_many(5)  # type: ignore[arg-type]
    with pytest.raises(StrandlineError, match=r"help\(open\)"):
        strandline.open(5)  # type: ignore[arg-type]
