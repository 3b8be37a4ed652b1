"""Does the cost of a commit follow the change when a repository grows from a hundred thousand to a billion objects?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import strandline
from benchmarks.harness import Result, Took, folder, one_entry, result, seconds
from benchmarks.synthetic import Synthetic
from strandline.branch.commits import Commit
from strandline.branch.heads import NewHead, set_head
from strandline.repository.commits.drafts import make_draft
from strandline.testing.counting import CountingStore
from strandline.tree.apply import apply
from strandline.tree.node_file import LEVELS_FORMAT
from strandline.tree.rows import changes_from_staged, encode_staged
from strandline.tree.store import RANGES_FOLDER, Tree, TreeStore

SIZES = (10**5, 10**6, 10**7, 10**8, 10**9)
RUNS = 9
WHERE = "SQLite + files, not synced"


class Counted:
    """Counts what a store of trees reads and writes.

    Attributes:
        reads, writes: keys, and sizes of what was written.
        ranges_s: the time in which ranges were read and written.
    """

    def __init__(self, store: TreeStore) -> None:
        self.reads: list[str] = []
        self.writes: list[tuple[str, int]] = []
        self.ranges_s = 0.0
        self._store: Any = store

    @contextmanager
    def counting(self) -> Iterator[None]:
        blobs, store = self._store.blobs, self._store
        get, put = blobs.get, blobs.put

        def reading(key: str, *more: Any) -> bytes:
            self.reads.append(key)
            content: bytes = get(key, *more)
            return content

        def writing(key: str, content: bytes, *more: Any) -> None:
            self.writes.append((key, len(content)))
            started = time.perf_counter()
            put(key, content, *more)
            self.ranges_s += (time.perf_counter() - started) * key.startswith(RANGES_FOLDER)

        def timed(action: Any) -> Any:
            def run(*arguments: Any) -> Any:
                started = time.perf_counter()
                try:
                    return action(*arguments)
                finally:
                    self.ranges_s += time.perf_counter() - started

            return run

        blobs.get, blobs.put = reading, writing
        store.open_range, store.new_range = timed(store.open_range), timed(store.new_range)
        try:
            yield
        finally:
            del blobs.get, blobs.put, store.open_range, store.new_range

    def beside_ranges(self) -> list[tuple[str, int]]:
        """The nodes and the metarange that were written."""
        return [(key, size) for key, size in self.writes if not key.startswith(RANGES_FOLDER)]


def run() -> list[Result]:
    found: list[Result] = []
    with folder() as place:
        sizes = {objects: _Lake(place / f"{objects}", objects) for objects in SIZES}
        for lake in sizes.values():
            found += lake.changes()
        flat = _Lake(place / "flat", SIZES[-1], max_format=LEVELS_FORMAT - 1)
        found += flat.changes("flat, as before: ", aims=False)
        commits: dict[int, list[Took]] = {objects: [] for objects in sizes}
        for turn in range(RUNS + 1):  # in turn, so that the machine's mood is the same for all
            for objects, lake in sizes.items():
                commits[objects].append(lake.commit(turn))
        for objects, took in commits.items():
            found.append(_row("the whole commit of one change", objects, [one * 1000 for one in took[1:]], "ms"))
        pairs = zip(commits[SIZES[-1]][1:], commits[SIZES[0]][1:], strict=True)
        ratios = [float(large) / float(small) for large, small in pairs]
        found.append(_row("the whole commit, to one in 100,000 objects", SIZES[-1], ratios, "times", 1.3))
        for lake in (*sizes.values(), flat):
            lake.close()
    return found


def _row(name: str, objects: int, values: list[Any], unit: str, target: float | None = None) -> Result:
    return result(f"{name}, of {objects:,} objects", values, unit, target, "less", WHERE)


class _Lake:
    """A repository with a given number of objects, most of which are only names."""

    def __init__(self, place: Path, objects: int, **options: Any) -> None:
        self._objects = objects
        self._open = (place, options)
        self._lake = strandline.open(place, create=True, synced=False, **options)
        self._main = self._lake.repository("bench", create=True).branch("main")
        core = self._main._core
        self._store = core.stores.trees
        self._made_s = seconds(self._make)
        draft = make_draft(core, "made", None)

        def compute(head: Commit) -> NewHead:
            return NewHead(draft.commit(self._synthetic.tree, (head,)), self._synthetic.tree)

        set_head(self._main._at, lambda _: None, "import", compute)

    def _make(self) -> None:
        self._synthetic = Synthetic(self._store, self._objects)

    def close(self) -> None:
        self._lake.close()

    def changes(self, kind: str = "", *, aims: bool = True) -> list[Result]:
        """One change, by a process that has read the metarange, and nothing else."""
        own, sizes, requests, levels = [], [], [], self._synthetic.tree.height
        path = self._synthetic.paths[len(self._synthetic.paths) // 2]
        for turn in range(RUNS + 1):
            store = TreeStore(self._store.blobs, has_levels=self._store.has_levels)
            tree = store.tree(self._synthetic.tree.ref)
            counted = Counted(store)
            with counted.counting():
                took = seconds(lambda: _change(store, tree, path, turn))
            if turn:
                own.append(Took.of((float(took) - counted.ranges_s) * 1000, took.wall_s, took.processor_s))
                sizes.append(sum(size for _, size in counted.beside_ranges()) / 1000)
                requests.append((len(counted.writes) + len(counted.reads) - 2) / (2 * levels + 1))
        rows: list[tuple[str, list[Any], str, float]] = [
            (f"{kind}own time of one change", own, "ms", 5.0),
            (f"{kind}nodes and metarange written for one change", sizes, "KB", 100.0),
            (f"{kind}requests a level for one change, besides the range", requests, "requests", 1.0),
        ]
        blobs, kv = self._cold(path)
        rows.append((f"{kind}requests to the object store of a cold open and a look-up", [blobs], "requests", 6.0))
        made = [_row(name, self._objects, values, unit, aim if aims else None) for name, values, unit, aim in rows]
        made.append(_row(f"{kind}reads of records for it", self._objects, [kv], "requests"))
        return [*made, _row(f"{kind}the whole tree made", self._objects, [self._made_s], "s")]

    def _cold(self, path: str) -> tuple[float, float]:
        """How many requests the first look-up of a process makes of the object store, and of the other one."""
        place, options = self._open
        with strandline.open(place, synced=False, **options) as lake:
            kv = CountingStore(lake._kv)
            lake._kv = kv
            branch = lake.repository("bench").branch("main")
            counted = Counted(branch._core.stores.trees)
            with counted.counting():
                branch.stat(path)

            return float(len(counted.reads)), float(sum(kv.calls.values()))

    def commit(self, turn: int) -> Took:
        path = self._synthetic.paths[7 * turn]
        self._main.stage(path, one_entry(turn, 99 + turn))
        return seconds(lambda: self._main.commit("one"))


def _change(store: TreeStore, tree: Tree, path: str, turn: int) -> Tree:
    changes = changes_from_staged([path.encode()], [encode_staged(one_entry(turn, turn + 1))])
    return apply(store, tree, [changes]).tree
