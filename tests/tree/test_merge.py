from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.tree.merge import merge, strategy_for
from strandline.tree.rows import Entry
from strandline.tree.store import TreeStore
from tests.tree.trees import FLAT, entry, identities, make, memory_trees, read, small_ranges

PATHS = st.integers(0, 30).map(lambda n: f"k{n:02d}")
MODEL = st.dictionaries(PATHS, st.integers(0, 2).map(entry), max_size=25)
Model = dict[str, Entry]
DONE = {
    (False, True, True): "both sides added it differently",
    (True, True, True): "both sides changed it differently",
    (True, False, True): "the source deleted it, and the branch changed it",
    (True, True, False): "the branch deleted it, and the source changed it",
}
"""What a conflict says, by where the object is: in the base, the source, the branch."""


def oracle(base: Model, source: Model, dest: Model) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Path by path, as the definition of a three-way merge says."""
    result: dict[str, object] = {}
    conflicts = []
    b, s, d = identities(base), identities(source), identities(dest)
    for path in sorted(b.keys() | s.keys() | d.keys()):
        ours = d.get(path)
        if s.get(path) != b.get(path):
            if d.get(path) == b.get(path):
                ours = s.get(path)
            elif d.get(path) != s.get(path):
                conflicts.append((path, DONE[path in b, path in s, path in d]))
        if ours is not None:
            result[path] = ours
    return result, conflicts


@given(FLAT, MODEL, MODEL, MODEL)
def test_a_merge_is_decided_path_by_path(flat_max: int, base: Model, source: Model, dest: Model) -> None:
    with small_ranges(flat_max=flat_max):
        store = memory_trees()
        b, s, d = (make(store, model) for model in (base, source, dest))
        merged = merge(store, b, s, d, {})
        result, conflicts = oracle(base, source, dest)
        assert list(merged.conflicts.items()) == conflicts
        if not conflicts:
            assert identities(read(store, merged.tree)) == result
            assert merged.tree.id == make(memory_trees(), read(store, merged.tree)).id


@given(FLAT, MODEL, MODEL, MODEL)
def test_strategies_decide_conflicts_and_nothing_else(flat_max: int, base: Model, source: Model, dest: Model) -> None:
    with small_ranges(flat_max=flat_max):
        store = memory_trees()
        b, s, d = (make(store, model) for model in (base, source, dest))
        plain, conflicts = oracle(base, source, dest)
        for strategy, winner in (("source-wins", source), ("dest-wins", dest)):
            merged = merge(store, b, s, d, {"": strategy})  # type: ignore[dict-item]
            assert merged.conflicts == {}
            expected = dict(plain)
            for path, _ in conflicts:
                expected.pop(path, None)
                if path in winner:
                    expected[path] = winner[path].identity
            assert identities(read(store, merged.tree)) == expected


def merged(base: Model, source: Model, dest: Model) -> tuple[dict[str, Entry], dict[str, str]]:
    store = memory_trees()
    result = merge(store, make(store, base), make(store, source), make(store, dest), {})
    return read(store, result.tree), result.conflicts


def test_equal_content_under_another_path_is_another_object() -> None:
    empty, a = entry("empty"), entry("a")
    base = {"a": a, "z/_SUCCESS": empty}
    result, conflicts = merged(base, {**base, "y/_SUCCESS": empty}, {"a": a})
    assert conflicts == {}
    assert sorted(result) == ["a", "y/_SUCCESS"]


def test_a_path_that_both_sides_add_differently_conflicts_even_if_it_equals_the_next_path_of_the_base() -> None:
    base = {"m": entry("next")}
    _, conflicts = merged(base, {"k": entry("next"), **base}, {"k": entry("other"), **base})
    assert conflicts == {"k": "both sides added it differently"}


def test_the_longest_prefix_decides() -> None:
    strategies = {"": "dest-wins", "raw/": "source-wins", "raw/x/": "dest-wins"}
    assert strategy_for("raw/a", strategies) == "source-wins"  # type: ignore[arg-type]
    assert strategy_for("raw/x/a", strategies) == "dest-wins"  # type: ignore[arg-type]
    assert strategy_for("other", strategies) == "dest-wins"  # type: ignore[arg-type]
    assert strategy_for("other", {"raw/": "dest-wins"}) is None


def test_whole_ranges_are_taken_by_reference_where_one_side_did_not_move() -> None:
    with small_ranges():
        store = memory_trees()
        base = {f"k{i:03d}": entry(i) for i in range(200)}
        source = {**base, **{f"k{i:03d}": entry(f"new{i}") for i in range(50, 150)}}
        dest = {**base, "k000": entry("dest")}
        b, s, d = (make(store, model) for model in (base, source, dest))
        cold = TreeStore(store.blobs)
        opened: list[str] = []
        open_range = cold.open_range
        cold.open_range = lambda info: (opened.append(info.address), open_range(info))[1]  # type: ignore[method-assign]
        result = merge(cold, cold.tree(b.ref), cold.tree(s.ref), cold.tree(d.ref), {})
        assert len(opened) == 0
        assert identities(read(cold, result.tree)) == identities({**source, "k000": entry("dest")})
