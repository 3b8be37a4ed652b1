"""Two branches change one table: what is joined is what the same statements make one after the other, or a conflict."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog as AnyCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

import strandline
import strandline.iceberg
from strandline.errors import Conflict, Corrupted, MergeConflict, NothingToMerge
from strandline.iceberg import Catalog, settled
from strandline.iceberg.row_merging import JOINED
from strandline.iceberg.tables import TableChange, Tables
from strandline.lake import Lake
from tests.iceberg.branches import SCHEMA, T, keys, rows, some, started

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


# --- every pair of changes ----------------------------------------------------------------------------------------


def named(table: Table, *keys: int) -> pa.Table:
    """Rows for a table whose columns may have other names by now."""
    return some(*keys).rename_columns([field.name for field in table.schema().fields[:2]])


def _append(catalog: AnyCatalog, side: int) -> None:
    table = catalog.load_table(T)
    table.append(named(table, 100 + side))


def _delete_low(catalog: AnyCatalog, side: int) -> None:
    catalog.load_table(T).delete("k = 1")


def _delete_high(catalog: AnyCatalog, side: int) -> None:
    catalog.load_table(T).delete("k = 11")


def _overwrite_low(catalog: AnyCatalog, side: int) -> None:
    table = catalog.load_table(T)
    table.overwrite(named(table, 2000 + side), "k < 4")


def _drop_file(catalog: AnyCatalog, side: int) -> None:
    catalog.load_table(T).delete("k > 10 and k < 20")


def _add_column(catalog: AnyCatalog, side: int) -> None:
    with catalog.load_table(T).update_schema() as update:
        update.add_column(f"n{side}", LongType())


def _rename_column(catalog: AnyCatalog, side: int) -> None:
    with catalog.load_table(T).update_schema() as update:
        update.rename_column(catalog.load_table(T).schema().find_field(2).name, f"text{side}")


def _partition(catalog: AnyCatalog, side: int) -> None:
    with catalog.load_table(T).update_spec() as update:
        update.add_field(catalog.load_table(T).schema().find_field(2).name, IdentityTransform(), f"by{side}")


def _property(catalog: AnyCatalog, side: int) -> None:
    with catalog.load_table(T).transaction() as update:
        update.set_properties({f"own{side}": "x"})


def _same_property(catalog: AnyCatalog, side: int) -> None:
    with catalog.load_table(T).transaction() as update:
        update.set_properties({"owner": f"side {side}"})


def _no_property(catalog: AnyCatalog, side: int) -> None:
    table = catalog.load_table(T)
    if "owner" in table.properties:
        with table.transaction() as update:
            update.remove_properties("owner")


def _tag(catalog: AnyCatalog, side: int) -> None:
    table = catalog.load_table(T)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, f"tag{side}").commit()


def _tag_after_append(catalog: AnyCatalog, side: int) -> None:
    _append(catalog, side)
    _tag(catalog, side)


def _expire(catalog: AnyCatalog, side: int) -> None:
    strandline.iceberg.expire(catalog._tables._ref, T, older_than=datetime.now(UTC) + timedelta(days=1))  # type: ignore[attr-defined]


def _nothing(catalog: AnyCatalog, side: int) -> None:
    pass


Change = Callable[[AnyCatalog, int], None]
CHANGES: dict[str, Change] = {
    "nothing": _nothing,
    "append": _append,
    "delete-low": _delete_low,
    "delete-high": _delete_high,
    "overwrite-low": _overwrite_low,
    "drop-file": _drop_file,
    "add-column": _add_column,
    "rename-column": _rename_column,
    "partition": _partition,
    "property": _property,
    "same-property": _same_property,
    "no-property": _no_property,
    "tag": _tag,
    "tag-after-append": _tag_after_append,
    "expire": _expire,
}
EXCLUDES = [
    {"delete-low", "overwrite-low"},
    {"delete-low"},
    {"overwrite-low"},
    {"delete-high", "drop-file"},
    {"drop-file"},
    {"delete-high"},
    {"add-column"},
    {"rename-column"},
    {"add-column", "rename-column"},
    {"partition"},
    {"same-property"},
    {"same-property", "no-property"},
]
"""Changes that cannot be joined: a set of one stands for that change on both sides."""


def excludes(ours: str, theirs: str) -> bool:
    return {ours, theirs} in EXCLUDES


def state(ref: Any) -> dict[str, Any]:
    """All that a user can see of a table, but for ids that are drawn."""
    table = Catalog(ref).load_table(T)
    read = {name: table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for name, one in table.refs().items()}
    hidden = ("gc.enabled", "write.metadata.delete-after-commit.enabled", JOINED)
    return {
        "rows": sorted(rows(ref), key=str),
        "columns": [(field.field_id, field.name, str(field.field_type)) for field in table.schema().fields],
        "spec": [field.name for field in table.spec().fields],
        "properties": {name: value for name, value in table.properties.items() if name not in hidden},
        "refs": {name: count for name, count in read.items() if name != "main"},
        "version": table.format_version,
    }


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ours", CHANGES)
def test_each_pair_of_changes(ours: str, version: int, lake: Lake) -> None:
    repository, main = started(lake, version)
    first = main.commit_id
    for number, theirs in enumerate(CHANGES):
        left = repository.create_branch(f"left{number}", first)
        right = repository.create_branch(f"right{number}", first)
        CHANGES[ours](Catalog(left), 1)
        CHANGES[theirs](Catalog(right), 2)
        before = left.commit_id
        if excludes(ours, theirs):
            with pytest.raises(MergeConflict) as caught:
                left.merge(right.name)
            assert list(caught.value.reasons) == ["tables/db/t"], (ours, theirs)
            assert left.commit_id == before
            taken = left.merge(right.name, strategy={"tables/db/t/": "source-wins"})
            assert state(left) == state(right), taken
            continue
        with suppress(NothingToMerge):
            left.merge(right.name)
        sequence = repository.create_branch(f"sequence{number}", first)
        CHANGES[ours](Catalog(sequence), 1)
        CHANGES[theirs](Catalog(sequence), 2)
        got, wanted = state(left), state(sequence)
        if theirs in ("tag", "tag-after-append"):  # the tag is of what the source saw
            wanted["refs"]["tag2"] = state(right)["refs"]["tag2"]
        assert got == wanted, (ours, theirs)
    assert repository.fsck().is_sound


# --- laws ---------------------------------------------------------------------------------------------------------


def test_appends_are_repeated_one_by_one(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    table = Catalog(dev).load_table(T)
    table.append(some(21), snapshot_properties={"spark.sql.streaming.queryId": "q"})
    table.append(some(22))
    Catalog(main).load_table(T).append(some(31))
    main.merge("dev")
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21, 22, 31]
    merged = Catalog(main).load_table(T)
    *_, first, second = merged.snapshots()
    sources = [one.snapshot_id for one in table.refresh().snapshots()[-2:]]
    assert first.summary is not None
    assert second.summary is not None
    assert [first.summary["source-snapshot-id"], second.summary["source-snapshot-id"]] == [str(one) for one in sources]
    assert first.summary["spark.sql.streaming.queryId"] == "q"
    assert (first.summary["added-records"], first.summary["total-records"]) == ("1", "8")
    assert (second.summary["total-records"], second.summary["total-data-files"]) == ("9", "5")
    assert first.parent_snapshot_id == merged.snapshots()[-3].snapshot_id
    assert len({one.sequence_number for one in merged.snapshots()}) == 5
    data = {file["file_path"] for file in merged.inspect.files().to_pylist()}
    assert len(data) == 5  # no data was written anew
    merged.append(some(41))  # and the table goes on
    assert keys(main)[-1] == 41


@pytest.mark.parametrize("seed", range(8))
def test_merges_to_and_fro_lose_and_double_nothing(seed: int, lake: Lake) -> None:
    """dev → main → dev → main in any order, criss-cross too: each row is there once, and a deleted one is not."""
    chance = random.Random(seed)
    repository, main = started(lake, chance.choice([1, 2]))
    branches = {"main": main} | {name: main.create_branch(name) for name in ("a", "b")}
    alive = {name: {1, 2, 3, 11, 12, 13} for name in branches}
    gone: dict[str, set[int]] = {name: set() for name in branches}
    own: dict[str, set[int]] = {name: set() for name in branches}
    fresh = itertools.count(1_000)
    merged = 0
    for _ in range(40):
        name = chance.choice(sorted(branches))
        kind = chance.choice(["append", "append", "delete", "merge", "merge", "expire"])
        table = Catalog(branches[name]).load_table(T)
        if kind == "append":
            key = next(fresh)
            table.append(some(key, key + 500_000))
            alive[name] |= {key, key + 500_000}
            own[name] |= {key, key + 500_000}
        elif kind == "delete" and (mine := sorted(alive[name] & own[name])):
            key = chance.choice(mine)  # only the branch that wrote a row deletes it
            table.delete(f"k = {key}")
            alive[name].discard(key)
            gone[name].add(key)
        elif kind == "expire":
            strandline.iceberg.expire(branches[name], older_than=datetime.now(UTC) + timedelta(days=1))
        elif kind == "merge":
            source = chance.choice(sorted(set(branches) - {name}))
            try:
                branches[name].merge(source)
            except NothingToMerge:
                continue
            except MergeConflict:
                assert keys(branches[name]) == sorted(alive[name])
                continue
            merged += 1
            gone[name] |= gone[source]
            alive[name] = (alive[name] | alive[source]) - gone[name]
        assert keys(branches[name]) == sorted(alive[name])
    assert merged >= 4
    assert repository.fsck().is_sound


def test_a_merge_back_brings_nothing_twice(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    for turn in range(3):
        Catalog(dev).load_table(T).append(some(100 + turn))
        Catalog(main).load_table(T).append(some(200 + turn))
        main.merge("dev")
        dev.merge("main")
        assert keys(main) == keys(dev)
        assert len(keys(main)) == 6 + 2 * (turn + 1)
    assert state(main) == state(dev)


def test_cherry_pick_and_revert_know_tables(lake: Lake) -> None:
    repository, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).append(some(21))
    picked = dev.commit_id
    Catalog(dev).load_table(T).append(some(22))
    Catalog(main).load_table(T).append(some(31))
    main.cherry_pick(picked)
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21, 31]
    appended = main.commit_id
    Catalog(main).load_table(T).append(some(41))
    main.revert(appended)
    assert keys(main) == [1, 2, 3, 11, 12, 13, 31, 41]
    Catalog(main).load_table(T).delete("k = 2")
    deletion = main.commit_id
    Catalog(main).load_table(T).append(some(51))
    main.revert(deletion)
    assert keys(main) == [1, 2, 3, 11, 12, 13, 31, 41, 51]
    Catalog(main).load_table(T).append(some(61, 62))
    appended = main.commit_id
    Catalog(main).load_table(T).delete("k = 61")
    with pytest.raises(MergeConflict):
        main.revert(appended)  # its file was written anew without a row
    assert repository.fsck().is_sound


def test_rows_that_a_cherry_pick_brought_and_the_branch_deleted_stay_deleted(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).append(some(21))
    picked = dev.commit_id
    Catalog(main).load_table(T).append(some(31))
    main.cherry_pick(picked)
    Catalog(main).load_table(T).delete("k = 21")
    Catalog(dev).load_table(T).append(some(22))
    main.merge("dev")
    assert keys(main) == [1, 2, 3, 11, 12, 13, 22, 31]


def test_rows_that_both_have_are_there_once_though_nothing_says_how_they_came(lake: Lake) -> None:
    """Both got a file by the same snapshot, which is expired: only that the file is live on both tells it."""
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).append(some(21))
    main.cherry_pick(dev.commit_id)
    for branch, key in ((main, 31), (dev, 41)):
        Catalog(branch).load_table(T).append(some(key))
        strandline.iceberg.expire(branch, older_than=datetime.now(UTC) + timedelta(days=1))
    main.merge("dev")
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21, 31, 41]


def test_statistics_come_with_their_snapshots(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    table = Catalog(dev).load_table(T)
    table.append(some(21))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    about = {
        "snapshot-id": snapshot.snapshot_id,
        "statistics-path": f"{table.location()}/metadata/x.stats",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    change = TableChange(("db", "t"), [], [{"action": "set-statistics", "statistics": about}])
    Tables(dev).commit([change])
    with Catalog(main).load_table(T).transaction() as update:
        update.set_properties({"x": "1"})
    main.merge("dev")
    (got,) = Tables(main).load(("db", "t")).metadata["statistics"]
    assert got["snapshot-id"] == snapshot.snapshot_id
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21]


def test_what_was_brought_as_one_and_deleted_in_part_is_not_guessed_at(lake: Lake) -> None:
    """The branch has picked and deleted one of two changes that another branch got in one snapshot of a merge."""
    _, main = started(lake, 2)
    dev, third = main.create_branch("dev"), main.create_branch("third")
    Catalog(dev).load_table(T).append(some(21))
    picked = dev.commit_id
    Catalog(dev).load_table(T).append(some(22))
    Catalog(dev).load_table(T).delete("k = 1")  # so that a merge makes one snapshot of all
    Catalog(third).load_table(T).append(some(41))
    third.merge("dev")
    Catalog(main).load_table(T).append(some(31))
    main.cherry_pick(picked)
    Catalog(main).load_table(T).delete("k = 21")
    before = main.commit_id
    with pytest.raises(MergeConflict, match="cannot be told which"):
        main.merge("third")
    assert main.commit_id == before


def test_tables_that_are_not_the_same(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).drop_table(T)
    Catalog(dev).create_table(T, SCHEMA).append(some(1))
    Catalog(main).load_table(T).append(some(2))
    with pytest.raises(MergeConflict, match="made it anew"):
        main.merge("dev")
    other = main.create_branch("other")
    for branch in (main, other):
        Catalog(branch).create_table("db.new", SCHEMA)
    with pytest.raises(MergeConflict, match="both sides made a table"):
        main.merge("other")
    third = main.create_branch("third")
    Catalog(third).drop_table("db.new")
    Catalog(main).load_table("db.new").append(some(1))
    with pytest.raises(MergeConflict, match="the source deleted it"):
        main.merge("third")


def test_many_tables_are_joined_in_one_merge(lake: Lake) -> None:
    _, main = started(lake, 2)
    for number in range(4):
        Catalog(main).create_table(f"db.more{number}", SCHEMA).append(some(number))
    dev = main.create_branch("dev")
    for branch, key in ((dev, 70), (main, 80)):
        for number in range(4):
            Catalog(branch).load_table(f"db.more{number}").append(some(key))
    before = main.commit_id
    main.merge("dev")
    assert main.get_commit().parents == (before, dev.commit_id)
    for number in range(4):
        assert [row["k"] for row in rows(main, f"db.more{number}")] == [number, 70, 80]


def test_a_preview_shows_what_a_merge_would_do(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).append(some(21))
    Catalog(main).load_table(T).append(some(31))
    before = main.commit_id
    preview = main.preview_merge("dev")
    assert preview.is_clean
    assert [change.path for change in preview.changes] == ["tables/db/t/_iceberg.metadata.json"]
    assert main.commit_id == before
    Catalog(dev).load_table(T).delete("k = 1")
    Catalog(main).load_table(T).delete("k = 2")
    conflicts = main.preview_merge("dev").conflicts
    assert list(conflicts) == ["tables/db/t"]
    assert "1 data file with 3 rows" in conflicts["tables/db/t"]


def test_a_broken_manifest_stops_a_merge(lake: Lake) -> None:
    repository, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).append(some(21))
    Catalog(main).load_table(T).append(some(31))
    blobs = repository._core.resolver.namespace
    (key,) = [key for key in blobs.list_keys("ice/") if key.endswith("-m0.avro") and f"/{dev.branch_id}/" in key]
    blobs.put(key, b"broken")
    before = main.commit_id
    with pytest.raises(Corrupted, match=key):
        main.merge("dev")
    assert main.commit_id == before


def test_what_others_do_during_a_merge_is_joined_too(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head moves while the merge is computed: it is computed again, on what is there by then."""
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).append(some(21))
    Catalog(main).load_table(T).append(some(31))
    join, calls = settled.merged_entry, 0

    def once(*rest: Any) -> Any:
        nonlocal calls
        calls += 1
        made = join(*rest)
        if calls == 1:
            Catalog(lake.repository("nyc").branch("main")).load_table(T).append(some(41))
        return made

    monkeypatch.setattr(settled, "merged_entry", once)
    main.merge("dev")
    assert calls == 2
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21, 31, 41]
    assert Tables(main).load(("db", "t")).metadata["last-sequence-number"] == 5


def test_two_jobs_that_append_to_one_table_both_publish(lake: Lake) -> None:
    repository, main = started(lake, 2)
    with main.transaction("first") as first, main.transaction("second") as second:
        Catalog(first).load_table(T).append(some(21))
        Catalog(second).load_table(T).append(some(31))
        Catalog(second).create_table("db.own", SCHEMA)
        Catalog(main).load_table(T).append(some(41))
        second.put("beside", b"x")
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21, 31, 41]
    assert main.read("beside") == b"x"
    assert Catalog(main).table_exists("db.own")
    third = main.transaction("third").begin()
    Catalog(third).load_table(T).delete("k = 1")
    Catalog(main).load_table(T).delete("k = 2")
    with pytest.raises(Conflict, match="tables/db/t/"):
        third.commit()
    third.abort()
    strict = main.transaction("strict", expect_unchanged=["tables/db/"]).begin()
    Catalog(strict).load_table(T).append(some(51))
    Catalog(main).load_table(T).append(some(61))
    with pytest.raises(Conflict):
        strict.commit()
    strict.abort()
    assert keys(main) == [1, 3, 11, 12, 13, 21, 31, 41, 61]
    assert repository.fsck().is_sound
