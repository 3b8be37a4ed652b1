from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from strandline.tree.diff import Kind, diff, diff_of
from strandline.tree.rows import Entry, entries_of
from strandline.tree.store import EMPTY, TreeStore
from tests.tree.trees import FLAT, entry, make, memory_trees, read, small_ranges

PATHS = st.integers(0, 50).map(lambda n: f"k{n:02d}")
MODEL = st.dictionaries(PATHS, st.integers(0, 3).map(entry), max_size=40)


def expected(left: dict[str, Entry], right: dict[str, Entry]) -> list[tuple[str, Kind]]:
    found = []
    for path in sorted(left.keys() | right.keys()):
        if path not in left:
            found.append((path, Kind.ADDED))
        elif path not in right:
            found.append((path, Kind.REMOVED))
        elif left[path].identity != right[path].identity:
            found.append((path, Kind.CHANGED))
    return found


@given(FLAT, MODEL, MODEL, PATHS, PATHS)
def test_a_diff_tells_every_path_that_differs(
    flat_max: int, left: dict[str, Entry], right: dict[str, Entry], start: str, end: str
) -> None:
    with small_ranges(flat_max=flat_max):
        store = memory_trees()
        a, b = make(store, left), make(store, right)
        parts = list(diff(store, a, b))
        found = [
            (path, Kind(kind)) for part in parts for path, kind in zip(part.paths.to_pylist(), part.kinds, strict=True)
        ]
        assert found == expected(left, right)
        bounded = [path for part in diff(store, a, b, start, end) for path in part.paths.to_pylist()]
        assert bounded == [path for path, _ in found if start <= path < end]


@given(FLAT, MODEL, MODEL)
def test_the_changes_of_a_diff_make_the_left_into_the_right(
    flat_max: int, left: dict[str, Entry], right: dict[str, Entry]
) -> None:
    from strandline.tree.apply import apply

    with small_ranges(flat_max=flat_max):
        store = memory_trees()
        a, b = make(store, left), make(store, right)
        assert apply(store, a, (part.as_changes() for part in diff(store, a, b))).tree.id == b.id


def test_both_sides_are_in_a_diff() -> None:
    store = memory_trees()
    (part,) = diff(store, make(store, {"a": entry(1), "b": entry(2)}), make(store, {"b": entry(3), "c": entry(4)}))
    assert part.paths.to_pylist() == ["a", "b", "c"]
    assert part.left.column("checksum").to_pylist() == ["sum:1", "sum:2", None]
    assert part.right.column("checksum").to_pylist() == [None, "sum:3", "sum:4"]


def test_equal_trees_are_not_opened() -> None:
    store = memory_trees()
    a, b = make(store, {"a": entry(1)}), make(store, {"a": entry(1)})
    store.open_range = None  # type: ignore[method-assign,assignment]
    assert list(diff(store, a, b)) == []


def test_metadata_and_content_type_are_part_of_an_identity() -> None:
    store = memory_trees()
    plain = Entry("x", 1, "s", 1)
    for other in (Entry("x", 1, "s", 1, "text/plain"), Entry("x", 1, "s", 1, None, '{"a":"b"}'), Entry("x", 2, "s", 1)):
        assert len(next(diff(store, make(store, {"a": plain}), make(store, {"a": other})))) == 1
    moved = Entry("elsewhere", 1, "s", 99)
    assert list(diff(store, make(store, {"a": plain}), make(store, {"a": moved}))) == []


def test_a_scan_of_a_part_reads_that_part() -> None:
    with small_ranges():
        store = memory_trees()
        model = {f"k{i:02d}": entry(i) for i in range(60)}
        tree = make(store, model)
        found = [path for rows in store.scan(tree, "k10", "k20") for path, _ in entries_of(rows)]
        assert found == [f"k{i}" for i in range(10, 20)]
        assert read(store, EMPTY) == {}
        assert store.find(tree, "k33") == model["k33"]
        assert store.find(tree, "k33x") is None
        assert store.find(tree, "zzz") is None
        assert store.find(tree, "a") is None


@given(FLAT, MODEL, MODEL)
def test_differences_of_some_paths_are_some_of_the_differences(
    flat_max: int, left: dict[str, Entry], right: dict[str, Entry]
) -> None:
    def wanted(paths: pa.StringArray) -> pa.BooleanArray:
        return pc.ends_with(paths, "7")

    with small_ranges(flat_max=flat_max):
        store = memory_trees()
        a, b = make(store, left), make(store, right)
        for place in (store, TreeStore(store.blobs)):  # from memory, and from files of which the paths are read first
            found = [path for part in diff_of(place, a, b, wanted) for path in part.paths.to_pylist()]
            assert found == [path for part in diff(place, a, b) for path in part.paths.to_pylist() if path[-1] == "7"]
