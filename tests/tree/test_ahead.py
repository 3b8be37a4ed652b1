"""What comes next is read beside what is worked on, where that gains time, and nothing is read that nobody wants."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline.errors import ObjectMissing
from strandline.tree.ahead import read_ahead
from strandline.tree.apply import apply
from strandline.tree.diff import diff
from strandline.tree.store import FromMemory, NotInMemory, Tree, TreeStore
from tests.tree.trees import changes, entry, identities, make, memory_trees, ranges, read, small_ranges

MODEL = {f"k{n:03d}": entry(n) for n in range(300)}


def cold(store: TreeStore, tree: Tree) -> tuple[TreeStore, Tree]:
    fresh = TreeStore(store.blobs)
    return fresh, fresh.tree(tree.ref)


class Meeting:
    """Lets reads of a store that threads make go on only when a second one has come."""

    def __init__(self, blobs: Any) -> None:
        self.threads: set[int] = set()
        self.keys: list[str] = []
        get, met = blobs.get, threading.Event()

        def meeting(key: str, *given: Any) -> bytes:
            self.keys.append(key)
            if threading.current_thread().name.startswith("strandline-read"):
                self.threads.add(threading.get_ident())
                if len(self.threads) > 1:
                    met.set()
                assert met.wait(timeout=60), "a reader was alone"
            content: bytes = get(key, *given)
            return content

        blobs.get = meeting


def test_differences_read_several_ranges_at_once() -> None:
    with small_ranges(4, 9):
        store = memory_trees()
        left = make(store, MODEL)
        right = apply(store, left, [changes({f"k{n:03d}": entry("x") for n in range(0, 300, 30)})]).tree
        store, left = cold(store, left)
        meeting = Meeting(store.blobs)
        found = [path for part in diff(store, left, store.tree(right.ref)) for path in part.paths.to_pylist()]
    assert found == [f"k{n:03d}" for n in range(0, 300, 30)]
    assert len(meeting.threads) > 1
    assert len(meeting.keys) == len(set(meeting.keys))  # nothing is read twice


@pytest.mark.parametrize("share", [0.3, 0.6, 4])
def test_nothing_is_read_twice_in_a_small_cache(share: float) -> None:
    with small_ranges(4, 9):
        store = memory_trees()
        left = make(store, MODEL)
        right = apply(store, left, [changes({path: entry("x") for path in MODEL})]).tree
        infos = ranges(store, left) + ranges(store, right)
        held = sum(store.rows(info).nbytes for info in infos)
        store = TreeStore(store.blobs, int(share * held))
        meeting = Meeting(store.blobs)
        assert sum(map(len, diff(store, store.tree(left.ref), store.tree(right.ref)))) == len(MODEL)
    assert len([key for key in meeting.keys if "/ranges/" in key]) == len(infos)


def test_a_commit_reads_what_it_touches_at_once() -> None:
    with small_ranges(4, 9):
        store = memory_trees()
        tree = make(store, MODEL)
        step = {f"k{n:03d}": entry("x") for n in range(0, 300, 30)} | {"z": entry("new")}
        store, tree = cold(store, tree)
        meeting = Meeting(store.blobs)
        changed = apply(store, tree, [changes(step)])
        assert identities(read(store, changed.tree)) == identities({**MODEL, **step})
    assert len(meeting.threads) > 1


def test_a_reader_that_wants_the_first_alone_reads_no_more() -> None:
    with small_ranges(4, 9):
        store, tree = cold(store := memory_trees(), make(store, MODEL))
        infos = ranges(store, tree)
        meeting = Meeting(store.blobs)
        wanted = read_ahead(store, infos, lambda info: (info,))
        assert next(wanted) == infos[0]
        assert meeting.keys == []
        wanted.close()


def test_no_thread_reads_for_one_that_must_not() -> None:
    with small_ranges(4, 9):
        store = memory_trees()
        left = make(store, MODEL)
        right = apply(store, left, [changes({"k007": entry("x"), "k207": entry("x")})]).tree
        store, left = cold(store, left)
        opened = store.tree(right.ref)
        for tree in (left, opened):
            assert store.find(tree, "k007") is not None  # the first difference is in memory
        meeting = Meeting(store.blobs)
        with FromMemory(), pytest.raises(NotInMemory):
            list(diff(store, left, opened))
    assert meeting.keys == []


def test_what_cannot_be_read_is_raised_where_it_is_wanted() -> None:
    with small_ranges(4, 9):
        store, tree = cold(store := memory_trees(), make(store, MODEL))
        infos = ranges(store, tree)
        store.blobs.delete_many([infos[3].address])
        wanted = read_ahead(store, infos, lambda info: (info,))
        assert [next(wanted) for _ in range(3)] == infos[:3]
        with pytest.raises(ObjectMissing, match=infos[3].id):
            next(wanted)
