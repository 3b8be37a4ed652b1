"""What an object, a range, a node and a commit cost, and what a repository of a billion objects will cost by that.

`unit_costs` measures; `predicted` is arithmetic on what was measured, and docs/scale.md shows both.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Result, fill, one_entry, repository, result
from benchmarks.synthetic import Synthetic
from strandline.envelope import encode
from strandline.repository.repository import Repository
from strandline.tree.levels import MEAN_CHILDREN
from strandline.tree.node_file import NodeInfo
from strandline.tree.range_file import RangeInfo
from strandline.tree.store import TreeStore

CALLS = ("get", "get_many", "scan_page", "set", "set_if", "set_many", "set_many_while", "delete", "delete_many")
MOST_CUT = 50
LARGEST = 10**9
SIZES = (10**5, 10**6, 10**7)
COMMITS = 50
WHERE = "SQLite + files, not synced"


@dataclass(frozen=True)
class Plan:
    """What is asked of a repository.

    Attributes:
        commits_per_day, ranges_per_commit: and how many ranges of the tree each of them touches.
        days: for which commits are kept.
        cores: of all executors together.
        list_s, read_s: of an object store, for a page of 1,000 keys and for a range's file.
    """

    objects: int = 10**9
    commits_per_day: int = 10_000
    ranges_per_commit: int = 10
    days: int = 30
    cores: int = 400
    list_s: float = 0.1
    read_s: float = 0.03


def predicted(costs: Mapping[str, float], plan: Plan) -> dict[str, float]:
    """What a repository holds, and how long work on all of it takes.

    Args:
        costs: what `unit_costs` measured.

    Returns:
        Bytes, counts and seconds, by what they are.
    """
    ranges = plan.objects / costs["objects in a range"]
    commits = plan.commits_per_day * plan.days
    kept_ranges = ranges + commits * plan.ranges_per_commit
    range_bytes = costs["bytes of an object in a range"] * costs["objects in a range"]
    per_commit = plan.ranges_per_commit * range_bytes + plan.ranges_per_commit * 2 * costs["bytes of a node"]
    files = plan.objects + commits * plan.ranges_per_commit
    return {
        "bytes of one tree": plan.objects * costs["bytes of an object in a range"] + ranges * costs["bytes of a part"],
        "bytes of metadata that kept commits add": commits * per_commit,
        "ranges of all kept commits": kept_ranges,
        "bytes of the key-value store": commits * costs["bytes of a commit in the key-value store"],
        "key-value operations a second": plan.commits_per_day * costs["key-value operations of a commit"] / 86_400,
        "commits a second that one branch takes": 1 / costs["seconds of a commit"],
        "mark in one process, s": kept_ranges * (costs["seconds to mark a range"] + plan.read_s),
        "mark on the executors, s": kept_ranges * (costs["seconds to mark a range"] + plan.read_s) / plan.cores,
        "addresses that pass through the driver, bytes": files * costs["bytes of an address in memory"],
        "list of all files in one process, s": files / 1_000 * plan.list_s,
        "list of all files on the executors, s": files / 1_000 * plan.list_s / plan.cores,
        "import of all objects on the executors, s": plan.objects
        * (plan.list_s / 1_000 + costs["seconds to cut an object"])
        / plan.cores,
        "commit of all objects from staging, s": plan.objects * costs["seconds to commit a staged object"],
    }


def run() -> list[Result]:
    found = []
    costs: dict[str, float] = {}
    for objects in SIZES:
        costs = unit_costs(objects)
        found += [
            result(f"{name}, of {objects:,} objects", [value], "", None, "less", WHERE) for name, value in costs.items()
        ]
    told = predicted(costs, Plan())
    found += [result(f"predicted: {name}", [value], "", None, "less", "arithmetic") for name, value in told.items()]
    return found


def unit_costs(objects: int) -> dict[str, float]:
    """What things cost in a repository of so many objects."""
    with repository(False) as repo:
        main = repo.branch("main")
        core = repo._core
        started = time.perf_counter()
        fill(main, objects)
        committed_s = time.perf_counter() - started
        trees = core.stores.trees
        ranges = list(trees.ranges(core.commits.tree(main.commit_id)))
        sizes = [trees.blobs.head(info.address).size for info in ranges]
        before = _held_bytes(repo)
        began = time.perf_counter()
        with _counted(core.stores.kv) as calls:
            for turn in range(COMMITS):
                main.stage_each([(f"table/{turn:05d}/new-{turn}.parquet", one_entry(turn, turn + 1))])
                main.commit(f"commit {turn}")
        commit_s = (time.perf_counter() - began) / COMMITS
        marked_s, address_bytes = _marked(repo, ranges)
        return {
            "objects in a range": objects / len(ranges),
            "bytes of an object in a range": sum(sizes) / objects,
            "bytes of a part": _part_bytes(),
            "bytes of a node": _part_bytes() * MEAN_CHILDREN,
            "bytes of a commit in the key-value store": (_held_bytes(repo) - before) / COMMITS,
            "key-value operations of a commit": sum(calls.values()) / COMMITS,
            "seconds of a commit": commit_s,
            "seconds to mark a range": marked_s,
            "bytes of an address in memory": address_bytes,
            "seconds to commit a staged object": committed_s / objects,
            "seconds to cut an object": _cut_s(trees, ranges[:MOST_CUT]),
            "bytes of a branch record": float(len(encode(main._at.read().branch))),
        }


def _held_bytes(repo: Repository) -> int:
    """All keys and values in the key-value store, which is SQLite's."""
    (file,) = Path(repo._core.resolver.namespace.url.removeprefix("file://")).parents[1].glob("metadata.db")
    with closing(sqlite3.connect(file)) as opened:
        (total,) = opened.execute("SELECT sum(length(k) + length(v)) FROM kv").fetchone()
    return int(total)


@contextmanager
def _counted(store: Any) -> Iterator[Counter[str]]:
    calls: Counter[str] = Counter()

    def counting(name: str, action: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return action(*arguments, **options)

        return call

    for name in CALLS:
        setattr(store, name, counting(name, getattr(store, name)))
    try:
        yield calls
    finally:
        for name in CALLS:
            delattr(store, name)


def _marked(repo: Repository, ranges: Sequence[RangeInfo]) -> tuple[float, float]:
    """The seconds that a range takes, and the bytes that its addresses take each."""
    trees = TreeStore(repo._core.stores.trees.blobs, 1 << 20)
    started = time.perf_counter()
    total = count = 0
    for info in ranges[:MOST_CUT]:
        addresses = trees.rows(info).column("physical_address").combine_chunks()
        total, count = total + addresses.nbytes, count + len(addresses)
    return (time.perf_counter() - started) / min(len(ranges), MOST_CUT), total / count


def _part_bytes() -> float:
    """What a range takes in the list of its node, by the nodes of a billion objects."""
    with repository(False) as repo:
        trees = repo._core.stores.trees
        tree = Synthetic(trees, LARGEST).tree
        nodes = [part for part in tree.parts if isinstance(part, NodeInfo)]
        stored = sum(trees.blobs.head(node.address).size for node in nodes)
        return stored / sum(node.children for node in nodes)


def _cut_s(trees: TreeStore, ranges: Sequence[RangeInfo]) -> float:
    """The seconds that an object takes that is cut into a range which is written."""
    rows = [trees.rows(info) for info in ranges]
    started = time.perf_counter()
    for one in rows:
        trees.write_range(one, {})
    took = time.perf_counter() - started
    return took / sum(len(one) for one in rows)
