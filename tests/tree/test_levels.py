"""Trees with levels are what flat trees are, whatever their history; a change reads and writes only what it touches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.blob import open_store
from strandline.errors import Corrupted, ObjectMissing
from strandline.ids import RangeId
from strandline.tree import chunking, levels
from strandline.tree.apply import apply
from strandline.tree.diff import diff
from strandline.tree.files import TreeFiles
from strandline.tree.merge import merge
from strandline.tree.node_file import NodeInfo, Part, levelled_id, write_parts
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import TOMBSTONE, Entry, Staged
from strandline.tree.store import EMPTY, METARANGES_FOLDER, NODES_FOLDER, Tree, TreeStore
from tests.tree.trees import changes, entry, identities, make, memory_trees, ranges, read, small_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATHS = st.integers(0, 300).map(lambda n: f"k{n:03d}")
MANY = st.integers(0, 2**32).map(
    lambda seed: {f"k{n:03d}": entry(n % 3) for n in random.Random(seed).sample(range(300), 200)}
)
EDIT = st.dictionaries(PATHS, st.one_of(st.integers(0, 5).map(entry), st.just(TOMBSTONE)), max_size=6)


def overlaid(model: dict[str, Entry], step: dict[str, Staged]) -> dict[str, Entry]:
    both: dict[str, Staged] = {**model, **step}
    return {path: one for path, one in both.items() if isinstance(one, Entry)}


def cold(store: TreeStore, tree: Tree) -> tuple[TreeStore, Tree]:
    """The tree in a process that has read nothing yet."""
    fresh = TreeStore(store.blobs)
    return fresh, fresh.tree(tree.ref)


def shape(store: TreeStore, tree: Tree) -> list[Any]:
    """All ids, as they lie below one another."""
    return [
        (part.id, shape(store, store.open_node(part)) if isinstance(part, NodeInfo) else None) for part in tree.parts
    ]


@settings(max_examples=15)
@given(MANY, st.lists(EDIT, min_size=1, max_size=4))
def test_a_tree_is_the_same_whatever_its_history(model: dict[str, Entry], steps: list[dict[str, Staged]]) -> None:
    """Around every kind of end: of rows, of nodes by their paths, and at the cap."""
    with small_ranges(2, 5, flat_max=3):
        store = memory_trees()
        tree = make(store, model)
        assert tree.height >= 3
        for step in steps:
            store, tree = cold(store, tree)
            tree = apply(store, tree, [changes(step)]).tree if step else tree
            model = overlaid(model, step)
        other = memory_trees()
        anew = make(other, model)
        assert tree.id == anew.id
        assert shape(store, tree) == shape(other, anew)
        assert identities(read(*cold(store, tree))) == identities(model)
        assert tree.count == len(model)


@settings(max_examples=15)
@given(MANY, st.lists(PATHS, min_size=1, max_size=3), st.integers(0, 299))
def test_trees_grow_and_shrink_over_the_limit(model: dict[str, Entry], few: list[str], last: int) -> None:
    with small_ranges(2, 5, flat_max=3):
        store = memory_trees()
        tree = make(store, model)
        left = {path: one for path, one in model.items() if path in few or path > f"k{last:03d}"}
        gone = dict.fromkeys(model.keys() - left.keys(), TOMBSTONE)
        small = apply(store, tree, [changes(gone)]).tree if gone else tree
        other = memory_trees()
        assert shape(store, small) == shape(other, make(other, left))
        back = apply(store, small, [changes({path: one for path, one in model.items() if path not in left})]).tree
        assert shape(store, back) == shape(store, tree)


@settings(max_examples=15)
@given(MANY, EDIT, EDIT)
def test_differences_and_merges_are_those_of_flat_trees(
    base: dict[str, Entry], ours: dict[str, Staged], theirs: dict[str, Staged]
) -> None:
    sides = [base, overlaid(base, theirs), overlaid(base, ours)]
    found = []
    for flat_max in (levels.FLAT_MAX, 3):
        with small_ranges(2, 5, flat_max=flat_max):
            store = memory_trees()
            trees = [make(store, sides[0])]
            for step in (theirs, ours):
                trees.append(apply(store, trees[0], [changes(step)]).tree if step else trees[0])
            store = TreeStore(store.blobs)
            first, second, third = (store.tree(tree.ref) for tree in trees)
            merged = merge(store, first, second, third, {"": "source-wins"})
            said = [
                (path, kind)
                for part in diff(store, second, third)
                for path, kind in zip(part.paths.to_pylist(), part.kinds.tolist(), strict=True)
            ]
            found.append((said, identities(read(store, merged.tree))))
            anew = memory_trees()
            assert shape(store, merged.tree) == shape(anew, make(anew, read(store, merged.tree)))
    assert found[0] == found[1]


def test_a_tree_that_grows_path_by_path_is_the_same_at_each_step() -> None:
    """The last node meets its cap with its last range open, and closed, and neither."""
    with small_ranges(2, 5, flat_max=3):
        store, other = memory_trees(), memory_trees()
        tree, model = EMPTY, {}
        for n in range(64):
            model[f"k{n:03d}"] = entry(n)
            tree = apply(store, tree, [changes({f"k{n:03d}": entry(n)})]).tree
            assert shape(store, tree) == shape(other, make(other, model))


class Counted:
    """Counts what a store reads and writes."""

    def __init__(self, store: TreeStore) -> None:
        self.read: list[str] = []
        self.written: list[str] = []
        get, put = store.blobs.get, store.blobs.put

        def counting(key: str, *given: Any, **more: Any) -> bytes:
            self.read.append(key)
            return get(key, *given, **more)

        def putting(key: str, *given: Any, **more: Any) -> None:
            self.written.append(key)
            put(key, *given, **more)

        store.blobs.get, store.blobs.put = counting, putting  # type: ignore[method-assign]


def test_a_change_reads_and_writes_one_way_from_the_root(tmp_path: Path) -> None:
    with small_ranges(2, 5, flat_max=3):
        store = TreeStore(open_store(str(tmp_path)))
        tree = make(store, {f"k{n:04d}": entry(n) for n in range(2_000)})
        store, tree = cold(store, tree)
        counted = Counted(store)
        after = apply(store, tree, [changes({"k1000": entry("new")})]).tree
        height = tree.height
        assert height > 4
        assert len(counted.read) <= height + 1  # a node a level and the range; the metarange was read before
        assert len(counted.written) == height + 2
        assert sum(key.startswith(METARANGES_FOLDER) for key in counted.written) == 1
        counted = Counted(store)
        (part,) = diff(store, tree, after)
        assert part.paths.to_pylist() == ["k1000"]
        assert counted.read == []
        found, again = cold(store, after)
        counted = Counted(found)
        assert found.find(again, "k0999") == entry(999)
        assert len(counted.read) == height + 1
        assert [len(rows) for rows in found.scan(again, "k1000", "k1001")] == [1]


def test_nothing_is_written_for_a_change_of_nothing() -> None:
    with small_ranges(2, 5, flat_max=3):
        store = memory_trees()
        tree = make(store, {f"k{n:04d}": entry(n) for n in range(500)})
        store, tree = cold(store, tree)
        counted = Counted(store)
        assert apply(store, tree, [changes({"k0007": entry(7)})]).tree is tree
        assert counted.written == []


def test_a_flat_tree_of_an_older_version_goes_over_as_it_grows() -> None:
    """It is read, is equal to the same with levels, and a commit of nothing does not rewrite it."""
    store = memory_trees()
    model = {f"k{n:04d}": entry(n) for n in range(500)}
    with small_ranges(2, 5):
        old = make(store, model)
    with small_ranges(2, 5, flat_max=3):
        assert old.height == 0
        assert identities(read(store, old)) == identities(model)
        assert apply(store, old, [changes({"k0007": entry(7)})]).tree is old
        grown = apply(store, old, [changes({"k0501": entry(1)})]).tree
        assert grown.height > 0
        other = memory_trees()
        assert shape(store, grown) == shape(other, make(other, {**model, "k0501": entry(1)}))
        same = make(store, model)
        assert same.id != old.id
        assert store.are_same(old, same)
        assert not store.are_same(old, grown)
        assert list(diff(store, old, same)) == []
        assert [info.id for info in ranges(store, old)] == [info.id for info in ranges(store, same)]


def test_a_merge_of_nothing_leaves_a_flat_tree_as_it_is() -> None:
    """The source changed something and took it back, by a version that makes nodes."""
    store = memory_trees()
    model = {f"k{n:04d}": entry(n) for n in range(300)}
    with small_ranges(2, 5):
        base = make(store, model)
    with small_ranges(2, 5, flat_max=3):
        changed = apply(store, base, [changes({"k0100": entry("else")})]).tree
        source = apply(store, changed, [changes({"k0100": entry(100)})]).tree
        assert source.id != base.id
        assert merge(store, base, source, base, {}).tree is base


def test_nodes_of_one_id_may_have_their_parts_in_different_files() -> None:
    """Files are needed by their addresses: with all other files deleted, both trees are still complete."""
    with small_ranges(2, 5, flat_max=3):
        store = memory_trees()
        model = {f"k{n:04d}": entry(n) for n in range(300)}
        one, two = make(store, model), make(store, model)
        make(store, {path: entry("else") for path in model})  # which nobody needs
        assert one.id == two.id
        assert {part.address for part in one.parts}.isdisjoint(part.address for part in two.parts)
        found = TreeFiles(store)
        fresh = found.add(one)
        assert len(found.add(two)) == len(fresh)
        assert found.add(two) == []
        needed = {*found.addresses, *(f"{METARANGES_FOLDER}/{tree.ref}.parquet" for tree in (one, two))}
        store.blobs.delete_many([key for key in store.blobs.list_keys("") if key not in needed])
        for tree in (one, two):
            assert identities(read(*cold(store, tree))) == identities(model)


@pytest.mark.parametrize("damage", ["gone", "broken", "another", "altered"])
def test_a_node_that_is_not_what_was_written_is_missed(damage: str, tmp_path: Path) -> None:
    with small_ranges(2, 5, flat_max=3):
        store = TreeStore(open_store(str(tmp_path)))
        tree = make(store, {f"k{n:04d}": entry(n) for n in range(300)})
        first = next(part for part in tree.parts if isinstance(part, NodeInfo) and part.children > 1)
        node, other = store.parts_of(first)[:2]
        file = tmp_path / node.address
        if damage == "gone":
            file.unlink()
        else:
            one, *more = store.parts_of(node) if isinstance(node, NodeInfo) else ()
            altered = write_parts([msgspec.structs.replace(one, raw_bytes=one.raw_bytes + 1), *more])
            contents = {"broken": b"broken", "another": (tmp_path / other.address).read_bytes(), "altered": altered}
            file.write_bytes(contents[damage])
        found, again = cold(store, tree)
        with pytest.raises((Corrupted, ObjectMissing), match=node.id):
            read(found, again)
        with pytest.raises((Corrupted, ObjectMissing), match=node.id):
            TreeFiles(found).add(again)
        broken: list[str] = []
        files = TreeFiles(found, lambda info, error: broken.append(info.address))
        files.add(again)
        assert broken == [node.address]
        assert other.address in files.nodes  # the others are looked at all the same
        assert found.find(again, other.min_path) is not None


def test_engines_read_nodes(tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    with small_ranges(2, 5, flat_max=3):
        store = TreeStore(open_store(str(tmp_path)))
        tree = make(store, {f"k{n:04d}": entry(n) for n in range(300)})
    nodes = f"{tmp_path}/{NODES_FOLDER}/*.parquet"
    found = TreeFiles(store)
    found.add(tree)
    level_one = [info for info in found.nodes.values() if info.height == 1]
    lowest = duckdb.execute(f"SELECT sum(count) FROM '{nodes}' WHERE height = 0").fetchone()[0]
    assert lowest == 300 == sum(info.count for info in level_one)
    assert polars.scan_parquet(nodes).filter(polars.col("height") == 0).collect().height == len(ranges(store, tree))


@pytest.mark.spark
def test_spark_reads_nodes(tmp_path: Path, spark: SparkSession) -> None:
    with small_ranges(2, 5, flat_max=3):
        store = TreeStore(open_store(str(tmp_path)))
        tree = make(store, {f"k{n:04d}": entry(n) for n in range(300)})
    frame = spark.read.parquet(f"{tmp_path}/{NODES_FOLDER}").where("height = 0")
    assert {row["id"] for row in frame.collect()} == {info.id for info in ranges(store, tree)}
    (top,) = spark.read.parquet(f"{tmp_path}/{METARANGES_FOLDER}").selectExpr("sum(count) AS count").collect()
    assert top["count"] == 300


def test_ids_of_nodes_never_change() -> None:
    """Of a list of ranges that exists nowhere, cut with the limits of the format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "THRESHOLD", np.uint32(2**32 - 1))  # as if each range ended where its path says
        infos = [
            RangeInfo(RangeId(f"{n:040x}"), f"somewhere/{n}", f"path/{n:06d}", f"path/{n:06d}/z", 7 + n % 3, 900 + n)
            for n in range(40_000)
        ]
        made: dict[str, NodeInfo] = {}

        def make_node(parts: Sequence[Part]) -> NodeInfo:
            info, _ = memory_trees().new_node(parts, {})
            made[info.id] = info
            return info

        found = levels.levelled(infos, lambda _: (), make_node)
    sizes = [info.children for info in made.values() if info.height == 1]
    assert (len(found), found[0].height, max(sizes)) == (17, 2, 256)
    assert sum(info.count for info in found) == sum(info.count for info in infos)
    assert levelled_id(found) == "3128e90569b911eac0c13e85210969571f8e9e45"
    assert [info.id for info in list(made.values())[:2]] == [
        "f411f8481623999bfac671bfa68c8481604bb332",
        "e09a5b6725a1f95b9cbe6c2338c238f0f4f35c94",
    ]
    assert [info.children for info in list(made.values())[:5]] == [29, 82, 24, 29, 56]
