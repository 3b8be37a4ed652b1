"""Trees that are put together of stretches which others made are the trees that one process makes, id for id."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.tree.apply import apply
from strandline.tree.diff import diff, diff_of
from strandline.tree.merge import merge
from strandline.tree.rows import TOMBSTONE, Staged
from strandline.tree.splice import join
from strandline.tree.store import Tree, TreeStore
from tests.tree.trees import FLAT, changes, entry, make, memory_trees, small_ranges

PATHS = st.integers(0, 120).map(lambda n: f"k{n:03d}")
MODEL = st.dictionaries(PATHS, st.integers(0, 3).map(entry), max_size=80)
EDIT = st.dictionaries(PATHS, st.one_of(st.integers(0, 5).map(entry), st.just(TOMBSTONE)), max_size=30)
CUTS = st.lists(PATHS, max_size=5, unique=True).map(sorted)


def parts(edit: dict[str, Staged], cuts: list[str]) -> list[dict[str, Staged]]:
    paths = sorted(edit)
    at = [0, *(bisect_left(paths, cut) for cut in cuts), len(paths)]
    return [{path: edit[path] for path in paths[first:last]} for first, last in pairwise(at)]


def over(store: TreeStore, tree: Tree, edit: dict[str, Staged]) -> Tree:
    return apply(store, tree, [changes(edit)]).tree if edit else tree


@settings(max_examples=120)
@given(MODEL, EDIT, CUTS, FLAT)
def test_parts_of_changes_make_the_tree_of_all_of_them(
    model: dict[str, Staged], edit: dict[str, Staged], cuts: list[str], flat: int
) -> None:
    with small_ranges(flat_max=flat):
        store = memory_trees()
        base = make(store, model)
        pieces = [
            (over(store, base, part).ref, start) for part, start in zip(parts(edit, cuts), ["", *cuts], strict=True)
        ]
        assert join(TreeStore(store.blobs), pieces).id == over(store, base, edit).id


@settings(max_examples=120)
@given(MODEL, EDIT, EDIT, CUTS, FLAT, st.sampled_from([None, "source-wins", "dest-wins"]))
def test_parts_of_a_merge_make_the_merge(
    model: dict[str, Staged], theirs: dict[str, Staged], ours: dict[str, Staged], cuts: list[str], flat: int, say: str
) -> None:
    with small_ranges(flat_max=flat):
        store = memory_trees()
        base = make(store, model)
        source, dest = over(store, base, theirs), over(store, base, ours)
        strategies = {"": say}
        whole = merge(store, base, source, dest, strategies)  # type: ignore[arg-type]
        ends = [*cuts, None]
        found = [
            merge(store, base, source, dest, strategies, (start, end))  # type: ignore[arg-type]
            for start, end in zip(["", *cuts], ends, strict=True)
        ]
        conflicts = {path: why for one in found for path, why in one.conflicts.items()}
        assert conflicts == whole.conflicts
        if not conflicts:
            pieces = [(one.tree.ref, start) for one, start in zip(found, ["", *cuts], strict=True)]
            assert join(TreeStore(store.blobs), pieces).id == whole.tree.id


@settings(max_examples=60)
@given(MODEL, EDIT, CUTS, FLAT)
def test_parts_of_a_search_find_what_the_whole_finds(
    model: dict[str, Staged], edit: dict[str, Staged], cuts: list[str], flat: int
) -> None:
    with small_ranges(flat_max=flat):
        store = memory_trees()
        base = make(store, model)
        side = over(store, base, edit)

        def odd(paths):  # type: ignore[no-untyped-def]
            import pyarrow.compute as pc

            return pc.match_substring_regex(paths, "[13579]$")

        whole = [path for one in diff_of(store, base, side, odd) for path in one.paths.to_pylist()]
        found = [
            path
            for start, end in zip(["", *cuts], [*cuts, None], strict=True)
            for one in diff_of(store, base, side, odd, start, end)
            for path in one.paths.to_pylist()
        ]
        assert found == whole
        every = [path for one in diff(store, base, side) for path in one.paths.to_pylist()]
        assert whole == [path for path in every if path[-1] in "13579"]


def test_a_part_of_a_merge_reads_only_what_it_is_about() -> None:
    with small_ranges(flat_max=3):
        store = memory_trees()
        model: dict[str, Staged] = {f"k{n:03d}": entry(n) for n in range(300)}
        base = make(store, model)
        source = over(store, base, {f"k{n:03d}": entry("a") for n in range(0, 300, 20)})
        dest = over(store, base, {f"k{n:03d}": entry("b") for n in range(1, 300, 20)})
        cold = TreeStore(store.blobs)
        opened: list[str] = []
        rows = cold.rows
        cold.rows = lambda info: opened.append(info.min_path) or rows(info)  # type: ignore[method-assign]
        merge(cold, base, source, dest, {}, ("k100", "k140"))
        assert opened
        assert all("k080" <= path <= "k150" for path in opened)
