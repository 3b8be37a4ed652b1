from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from strandline.blob import open_store
from strandline.tree.apply import apply
from strandline.tree.rows import TOMBSTONE, Entry, Staged
from strandline.tree.store import EMPTY, TreeStore
from tests.tree.trees import FLAT, changes, entry, identities, make, memory_trees, ranges, read, small_ranges

PATHS = st.integers(0, 60).map(lambda n: f"k{n:02d}")
STEP = st.dictionaries(PATHS, st.one_of(st.integers(0, 5).map(entry), st.just(TOMBSTONE)), max_size=25)


def overlay(model: dict[str, Entry], step: dict[str, Staged]) -> None:
    for path, staged in step.items():
        if isinstance(staged, Entry):
            model[path] = staged
        else:
            model.pop(path, None)


@given(FLAT, st.lists(STEP, min_size=1, max_size=6), st.randoms())
def test_applying_changes_is_overlaying_a_dict_and_its_history_leaves_no_trace(
    flat_max: int, steps: list[dict[str, Staged]], rnd: random.Random
) -> None:
    with small_ranges(flat_max=flat_max):
        store, tree, model = memory_trees(), EMPTY, dict[str, Entry]()
        for step in steps:
            paths = sorted(step)
            batches = []
            while paths:
                size = rnd.randint(1, len(paths))
                batches.append(changes({path: step[path] for path in paths[:size]}))
                paths = paths[size:]
            tree = apply(store, tree, batches).tree
            overlay(model, step)
            assert identities(read(store, tree)) == identities(model)
        # the same content in one go, in another store, has the same id and the same ranges
        elsewhere = memory_trees()
        fresh = make(elsewhere, read(store, tree))
        assert fresh.id == tree.id
        assert [info.id for info in ranges(elsewhere, fresh)] == [info.id for info in ranges(store, tree)]


@given(FLAT, STEP, STEP)
def test_the_number_of_changes_counts_only_those_that_make_a_difference(
    flat_max: int, first: dict[str, Staged], second: dict[str, Staged]
) -> None:
    with small_ranges(flat_max=flat_max):
        store, model = memory_trees(), dict[str, Entry]()
        overlay(model, first)
        tree = make(store, model)
        before = identities(model)
        applied = apply(store, tree, [changes(second)])
        overlay(model, second)
        after = identities(model)
        assert applied.changed == sum(before.get(path) != after.get(path) for path in before.keys() | after.keys())
        if not applied.changed:
            assert applied.tree is tree


def test_a_copy_of_what_is_there_keeps_the_row_that_is_there() -> None:
    store = memory_trees()
    tree = make(store, {"a": entry(1)})
    again = Entry("data/elsewhere", 1, "sum:1", 99, None, None)
    assert apply(store, tree, [changes({"a": again})]).tree is tree


def test_ranges_without_changes_are_carried_over_unread() -> None:
    with small_ranges():
        store = memory_trees()
        tree = make(store, {f"k{i:03d}": entry(i) for i in range(300)})
        cold = TreeStore(store.blobs)
        opened: list[str] = []
        open_range = cold.open_range
        cold.open_range = lambda info: (opened.append(info.address), open_range(info))[1]  # type: ignore[method-assign]
        after = apply(cold, cold.tree(tree.ref), [changes({"k150": entry("new")})]).tree
        kept = {info.address for info in ranges(store, tree)} & {info.address for info in ranges(store, after)}
        assert len(ranges(store, tree)) > 30
        assert len(kept) >= len(ranges(store, tree)) - 2
        assert len(set(opened)) <= 2


def test_a_range_is_reused_only_from_the_base_and_never_because_it_exists(tmp_path: Path) -> None:
    store = TreeStore(open_store(str(tmp_path)))
    one, two = make(store, {"a": entry(1)}), make(store, {"a": entry(1)})
    assert one.id == two.id
    assert ranges(store, one)[0].address != ranges(store, two)[0].address
    assert one.ref != two.ref


def test_a_byte_cap_ends_a_range() -> None:
    store = memory_trees()
    large = {f"k{i:04d}": entry(i, metadata="m" * 100_000) for i in range(200)}
    tree = make(store, large)
    assert max(info.raw_bytes for info in ranges(store, tree)) < 9 << 20
    assert len(ranges(store, tree)) > 1
    assert identities(read(store, tree)) == identities(large)
