"""Ranges with ETags: another format and other ids, only where there are some; and no part in what is compared."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.blob import open_store
from strandline.tree.apply import apply
from strandline.tree.diff import are_alike, diff
from strandline.tree.range_file import RANGE_FORMAT, VERSION_KEY
from strandline.tree.rows import TOMBSTONE, Entry, Staged
from strandline.tree.store import RANGES_FOLDER, TreeStore
from tests.tree.trees import changes, entry, identities, make, memory_trees, ranges, read, small_ranges

names = st.sampled_from([f"k{number}" for number in range(12)])
tagged = st.builds(
    lambda content, etag: replace(entry(content), etag=etag), st.integers(0, 2), st.sampled_from([None, "x", "y"])
)


def expected(before: dict[str, Entry], after: dict[str, Staged]) -> tuple[dict[str, Entry], int]:
    """What a tree shows with changes over it, path by path, and how many of them count."""
    shown, count = dict(before), 0
    for path, new in after.items():
        old = before.get(path)
        if not isinstance(new, Entry):
            count += shown.pop(path, None) is not None
        elif old is None or old.identity != new.identity:
            shown[path] = new
            count += 1
        elif new.etag not in (None, old.etag):
            shown[path] = new
    return shown, count


@given(st.dictionaries(names, tagged), st.dictionaries(names, tagged | st.just(TOMBSTONE)))
def test_changes_apply_as_they_do_one_by_one(before: dict[str, Entry], after: dict[str, Staged]) -> None:
    with small_ranges():
        store = memory_trees()
        base = make(store, before)
        done = apply(store, base, [changes(after)])
        shown, count = expected(before, after)
        assert read(store, done.tree) == shown
        assert done.changed == count
        assert done.tree.id == make(store, shown).id  # whatever its history
        differing = {path for part in diff(store, base, done.tree) for path in part.paths.to_pylist()}
        old, new = identities(before), identities(shown)
        assert differing == {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        assert are_alike(store, base, done.tree) == (not differing)


def test_only_ranges_with_etags_are_of_the_newer_format(tmp_path: Path) -> None:
    store = TreeStore(open_store(str(tmp_path)))
    with small_ranges():
        model = {f"k{number:02d}": entry(number) for number in range(40)}
        plain = make(store, model)
        both = apply(store, plain, [changes({"k07": replace(entry(7), etag="x")})]).tree
    formats = set()
    for file in (tmp_path / RANGES_FOLDER).glob("*.parquet"):
        schema = pq.read_schema(file)
        formats.add((int(schema.metadata[VERSION_KEY]), "etag" in schema.names))
    assert formats == {(1, False), (RANGE_FORMAT, True)}
    assert sum(one.id != other.id for one, other in zip(ranges(store, plain), ranges(store, both), strict=True)) == 1
    fresh = TreeStore(open_store(str(tmp_path)))
    assert read(fresh, fresh.tree(both.ref)) == {**model, "k07": replace(entry(7), etag="x")}
    assert fresh.find(fresh.tree(both.ref), "k07") == replace(entry(7), etag="x")
    assert fresh.find(fresh.tree(both.ref), "k08") == entry(8)
