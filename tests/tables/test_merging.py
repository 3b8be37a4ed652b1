"""Merges of tables: what both sides did, what a person decides, and what comes out, row by row."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.cli import run
from strandline.errors import MergeConflict, UsageError
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.tables.merging import Clash, merged_record
from strandline.tables.record import RECORD_NAME, TableRecord, decode_record, encode_record

BASE = [{"id": number, "month": number % 3} for number in range(6)]
Rows = list[dict[str, Any]]


def data(rows: Rows, **more: pa.Array) -> pa.Table:
    held = {
        "id": pa.array([row["id"] for row in rows], pa.int64()),
        "month": pa.array([row["month"] for row in rows], pa.int32()),
    }
    return pa.table({**held, **more})


def made(first: int, month: int, count: int = 2) -> pa.Table:
    return data([{"id": first + number, "month": month} for number in range(count)])


def rows_of(branch: Any, path: str = "t") -> Rows:
    table = branch.table(path)
    if not table.exists():
        return []
    found = [{k: v for k, v in row.items() if v is not None} for row in table.to_arrow().to_pylist()]
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True, default=str))


OPERATIONS: dict[str, tuple[Callable[[Branch, int], object], set[int], set[int]]] = {
    # what it does with ids from a number on; partitions that it replaces; partitions that it adds rows to
    "append 1": (lambda b, n: b.table("t").write(made(n, 1), schema="merge"), set(), {1}),
    "append 2": (lambda b, n: b.table("t").write(made(n, 2), schema="merge"), set(), {2}),
    "replace 1": (lambda b, n: b.table("t").write(made(n, 1), mode="overwrite_partitions", schema="merge"), {1}, {1}),
    "replace 2": (lambda b, n: b.table("t").write(made(n, 2), mode="overwrite_partitions", schema="merge"), {2}, {2}),
    "replace all": (lambda b, n: b.table("t").write(made(n, 0), mode="overwrite", schema="merge"), {0, 1, 2}, {0}),
    "repair 1": (
        lambda b, n: b.table("t").write(
            made(n, 1, 1), mode="overwrite", schema="merge", where="month = 1 and (id = 1 or id > 50)"
        ),
        {1},
        {1},
    ),
    "add a": (
        lambda b, n: b.table("t").write(data(made(n, 1).to_pylist(), a=pa.array([n, n])), schema="merge"),
        set(),
        {1},
    ),
    "add b": (
        lambda b, n: b.table("t").write(data(made(n, 2).to_pylist(), b=pa.array(["x", "y"])), schema="merge"),
        set(),
        {2},
    ),
    "other object": (lambda b, n: b.put(f"o{n}", b"x"), set(), set()),
}


def exclude(one: str, other: str) -> bool:
    """Whether one replaced a partition that the other one touched: no order of the two would have left both."""
    _, replaced, added = OPERATIONS[one]
    _, theirs, more = OPERATIONS[other]
    return bool(replaced & (theirs | more) or theirs & (replaced | added))


@pytest.fixture
def sides(repo: Repository, main: Branch) -> tuple[Branch, Branch]:
    main.table("t").write(data(BASE), partition_by="month", message="base")
    return main, repo.create_branch("work", "main")


def record_of(kinds: dict[str, str]) -> TableRecord:
    fields = ({"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items())
    return TableRecord(fields=tuple(fields))


def act(branch: Branch, operation: str, first: int) -> None:
    OPERATIONS[operation][0](branch, first)
    branch.commit(operation)


@pytest.mark.parametrize(("one", "other"), list(product(OPERATIONS, OPERATIONS)))
def test_m6_a_merge_is_what_one_after_the_other_would_have_left(
    repo: Repository, sides: tuple[Branch, Branch], one: str, other: str
) -> None:
    """Or a conflict that names the table or partition; and then each decision leaves what it says."""
    main, work = sides
    act(main, one, 100)
    act(work, other, 200)
    ours, theirs = rows_of(main), rows_of(work)
    if not exclude(one, other):
        after = repo.create_branch("after", "main~1")
        act(after, one, 100)
        act(after, other, 200)
        main.merge(work)
        assert rows_of(main) == rows_of(after)
        return
    before = main.commit_id
    with pytest.raises(MergeConflict) as conflict:
        main.merge(work)
    assert main.commit_id == before
    paths = conflict.value.paths
    assert paths
    assert all(path == "t" or path.startswith("t/month=") for path in paths)
    assert "_strandline" not in str(conflict.value)
    preview = main.preview_merge(work)
    assert tuple(preview.conflicts) == paths
    assert not preview.is_clean
    for decisions, expected in (
        ({"take": {"t": "dest"}}, ours),
        ({"take": {"t": "source"}}, theirs),
    ):
        branch = repo.create_branch(f"decided-{expected is ours}", "main")
        branch.merge(work, **decisions)  # type: ignore[arg-type]
        assert rows_of(branch) == expected
    for strategy, side, others in (("source-wins", theirs, ours), ("dest-wins", ours, theirs)):
        branch = repo.create_branch(strategy, "main")
        branch.merge(work, strategy=strategy)  # type: ignore[arg-type]
        assert_taken(rows_of(branch), side, others, paths)


def assert_taken(found: Rows, side: Rows, other: Rows, paths: tuple[str, ...]) -> None:
    """Where the sides conflict, rows are those of one side: none doubled, none of the other."""
    for month in range(3):
        if "t" in paths or f"t/month={month}" in paths:
            assert [row for row in found if row["month"] == month] == [row for row in side if row["month"] == month]


@pytest.mark.parametrize(("one", "other"), [(a, b) for a, b in product(OPERATIONS, OPERATIONS) if exclude(a, b)])
def test_m7_conflicts_settle_and_stay_settled(sides: tuple[Branch, Branch], one: str, other: str) -> None:
    """By hand: bring the branch into the state that it is to have, commit, take it; the next merge brings only news."""
    main, work = sides
    act(main, one, 100)
    act(work, other, 200)
    main.table("t").write(made(900, 1), mode="overwrite", schema="merge", message="by hand")
    main.merge(work, take={"t": "dest"})
    assert rows_of(main) == rows_of_table(made(900, 1))
    work.put("news", b"x")
    work.commit("news")
    main.merge(work)
    assert main.exists("news")
    assert rows_of(main) == rows_of_table(made(900, 1))


def rows_of_table(table: pa.Table) -> Rows:
    return sorted(table.to_pylist(), key=lambda row: json.dumps(row, sort_keys=True))


def test_rows_that_were_appended_can_be_kept(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    act(main, "replace 1", 100)
    act(work, "append 1", 200)
    with pytest.raises(MergeConflict, match=r"partition month=1 of table 't': .* the source added some"):
        main.merge(work)
    main.merge(work, appended="keep")
    assert {row["id"] for row in rows_of(main) if row["month"] == 1} == {100, 101, 200, 201}


def test_m3_the_longest_path_that_was_taken_counts(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    for branch, first in ((main, 100), (work, 200)):
        act(branch, "replace 1", first)
        act(branch, "replace 2", first + 10)
        branch.put("t2", str(first))
        branch.commit("an object whose name begins like the table's")
    with pytest.raises(MergeConflict) as conflict:
        main.merge(work, take={"t": "dest", "t/month=1": "source"})
    assert conflict.value.paths == ("t2",)
    main.merge(work, take={"t": "dest", "t/month=1": "source", "t2": "source"})
    assert {row["id"] for row in rows_of(main)} == {0, 3, 200, 201, 110, 111}
    assert main.read("t2") == b"200"


def test_m3_a_take_needs_no_conflict_and_covers_objects(repo: Repository, main: Branch) -> None:
    for path in ("a", "a/x", "a/y", "ab", "b/z", "c/z"):
        main.put(path, b"0")
    main.commit("base")
    work = repo.create_branch("work", "main")
    for path in ("a", "a/x", "ab", "b/z"):
        work.put(path, b"work")
    work.delete("a/y")
    work.put("a/new", b"work")
    work.commit("work")
    for path in ("a/x", "c/z"):
        main.put(path, b"main")
    main.put("c/new", b"main")
    main.commit("main")
    only_below = repo.create_branch("below", "main")
    only_below.merge(work, take={"a/": "dest", "c": "source"})
    assert {info.path: only_below.read(info.path) for info in only_below.list()} == {
        "a": b"work", "a/x": b"main", "a/y": b"0", "ab": b"work", "b/z": b"work", "c/z": b"0"
    }  # fmt: skip
    main.merge(work, take={"a": "dest", "a/new": "source", "c/new": "dest", "c/": "source"})
    assert {info.path: main.read(info.path) for info in main.list()} == {
        "a": b"0", "a/new": b"work", "a/x": b"main", "a/y": b"0", "ab": b"work", "b/z": b"work",
        "c/new": b"main", "c/z": b"0"
    }  # fmt: skip


def test_m9_a_dry_run_shows_what_the_merge_does(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    act(main, "append 1", 100)
    act(work, "add a", 200)
    before = main.commit_id
    preview = main.preview_merge(work)
    shown = [(change.kind, change.path) for change in preview.changes]
    assert preview.is_clean
    assert main.commit_id == before
    main.merge(work)
    assert [(change.kind, change.path) for change in main._other(before).diff(main)] == shown


def test_words_that_mean_nothing_are_refused(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    act(work, "append 1", 200)
    wrong: list[dict[str, Any]] = [
        {"take": {"t": "ours"}},
        {"take": {"\0": "dest"}},
        {"appended": "drop"},
        {"strategy": "theirs"},
        {"take": "t"},
    ]
    for decisions in wrong:
        with pytest.raises(UsageError):
            main.merge(work, **decisions)
        with pytest.raises(UsageError):
            main.preview_merge(work, **decisions)


def test_a_table_that_one_side_removed_is_not_left_without_its_record(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    main.delete_prefix("t/")
    main.commit("gone")
    act(work, "append 1", 200)
    with pytest.raises(MergeConflict, match="the branch removed the table") as conflict:
        main.merge(work)
    assert conflict.value.paths == ("t",)
    main.merge(work, strategy="source-wins")
    assert len(rows_of(main)) == 8


def test_reverting_the_making_of_a_table_asks_about_later_rows(main: Branch) -> None:
    """Its record would go and leave files that the next write takes for its own."""
    main.table("t").write(data(BASE), partition_by="month", message="made")
    first = main.commit_id
    main.table("t").write(made(100, 1), message="more")
    with pytest.raises(MergeConflict, match="removed the table"):
        main.revert(first)
    main.revert(first, take={"t": "source"})
    assert not main.list().first()


def test_m5_a_column_that_both_sides_added_is_one(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    act(main, "add a", 100)
    act(work, "add a", 200)
    main.merge(work)
    assert [field["name"] for field in main.table("t").record.fields] == ["id", "month", "a"]
    assert {row["a"] for row in rows_of(main) if "a" in row} == {100, 200}


def test_m5_columns_of_both_sides_come_in_order(sides: tuple[Branch, Branch]) -> None:
    """The base's, then the destination's, then the source's; whoever makes it."""
    main, work = sides
    act(main, "add b", 100)
    act(work, "add a", 200)
    main.merge(work)
    assert list(main.table("t").record.names) == ["id", "month", "b", "a"]
    assert len(rows_of(main)) == 10


@pytest.mark.parametrize("how", ["another partition", "another type", "made again"])
@pytest.mark.parametrize("appended", ["fail", "keep"])
def test_m10_rows_never_come_under_a_record_that_reads_them_otherwise(
    repo: Repository, main: Branch, how: str, appended: Any
) -> None:
    main.table("t").write(data(BASE), message="base")
    work = repo.create_branch("work", "main")
    if how == "made again":
        work.delete_prefix("t/")
        work.table("t").write(data(BASE), partition_by="month")
    elif how == "another partition":
        work.table("t").write(data(BASE), mode="overwrite", schema="replace", partition_by="month")
    else:
        changed = pa.table({"id": ["x"], "month": pa.array([1], pa.int32())})
        work.table("t").write(changed, mode="overwrite", schema="replace")
    work.commit(how)
    act(main, "append 1", 100)
    ours, theirs = rows_of(main), rows_of(work)
    with pytest.raises(MergeConflict) as conflict:
        main.merge(work, appended=appended)
    assert conflict.value.paths == ("t",)
    for strategy, expected in (("source-wins", theirs), ("dest-wins", ours)):
        branch = repo.create_branch(strategy, "main")
        branch.merge(work, strategy=strategy, appended=appended)  # type: ignore[arg-type]
        assert rows_of(branch) == expected


def test_a_picked_append_can_be_kept_beside_a_replacement(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    act(main, "replace 1", 100)
    act(work, "append 1", 200)
    with pytest.raises(MergeConflict):
        main.cherry_pick(work)
    main.cherry_pick(work, appended="keep")
    assert {row["id"] for row in rows_of(main) if row["month"] == 1} == {100, 101, 200, 201}


def test_reverting_a_replacement_asks_about_later_rows(sides: tuple[Branch, Branch]) -> None:
    """The first replacement of a partition as well as the second one."""
    main, _ = sides
    for number in range(2):
        act(main, "replace 1", 100 * number)
        replaced = main.commit_id
        act(main, "append 1", 500 + 100 * number)
        with pytest.raises(MergeConflict, match="replaced its rows"):
            main.revert(replaced)


def test_a_record_that_is_none_is_a_conflict(repo: Repository, main: Branch) -> None:
    work = repo.create_branch("work", "main")
    for branch, text in ((main, '{"format": 2, "fields": [{"x": 0}]}'), (work, "[" * 100_000)):
        branch.put(f"t/{RECORD_NAME}", text)
        branch.commit("not a record")
    with pytest.raises(MergeConflict) as conflict:
        main.merge(work)
    assert conflict.value.paths == ("t",)


def test_statistics_of_a_dropped_column_are_dropped() -> None:
    base = record_of({"a": "long", "x": "long"})
    source, dest = record_of({"a": "long"}), msgspec.structs.replace(base, statistics=("x",))
    merged = decode_record(merged_record("t", *map(encode_record, (base, source, dest))), "t")
    assert merged.statistics == ()


def test_columns_of_csv_lie_by_their_places() -> None:
    base, a, b = (
        msgspec.structs.replace(record_of(kinds), file_format="csv")
        for kinds in ({"id": "long"}, {"id": "long", "a": "long"}, {"id": "long", "b": "long"})
    )
    with pytest.raises(Clash, match="by their places"):
        merged_record("t", *map(encode_record, (base, a, b)))
    assert decode_record(merged_record("t", *map(encode_record, (base, a, base))), "t").names == ("id", "a")


@pytest.mark.parametrize(("strategy", "kind"), [("source-wins", "string"), ("dest-wins", "long")])
def test_columns_that_differ_are_named(sides: tuple[Branch, Branch], strategy: Any, kind: str) -> None:
    main, work = sides
    act(main, "add a", 100)
    work.table("t").write(data(made(200, 2).to_pylist(), a=pa.array(["x", "y"])), schema="merge", message="text")
    with pytest.raises(
        MergeConflict, match=r"table 't': column 'a' is long on the branch and string in the source"
    ) as conflict:
        main.merge(work)
    assert conflict.value.reasons == {"t": "column 'a' is long on the branch and string in the source"}
    main.merge(work, strategy=strategy)
    assert main.table("t").record.fields[2]["type"] == kind


NAMES = st.sampled_from("abcd")
KINDS = st.sampled_from(["integer", "long", "string"])
RECORDS = st.dictionaries(NAMES, KINDS, min_size=1).map(record_of)


def attempt(base: TableRecord | None, source: TableRecord, dest: TableRecord) -> dict[str, Any] | None:
    sides = encode_record(source), encode_record(dest)
    try:
        raw = merged_record("t", None if base is None else encode_record(base), *sides)
    except Clash:
        return None
    return {field["name"]: field["type"] for field in decode_record(raw, "t").fields}


@given(RECORDS, RECORDS, RECORDS)
def test_m5_records_merge_column_by_column(base: TableRecord, source: TableRecord, dest: TableRecord) -> None:
    """As the definition says, of each column alone; and the same whichever side is which."""
    held, theirs, ours = ({f["name"]: f["type"] for f in record.fields} for record in (base, source, dest))
    expected: dict[str, Any] | None = {}
    for name in {*held, *theirs, *ours}:
        sides = [side.get(name) for side in (theirs, ours) if side.get(name) != held.get(name)]
        if len(set(sides)) > 1:
            expected = None
            break
        kind = sides[0] if sides else held.get(name)
        if kind is not None:
            assert expected is not None
            expected[name] = kind
    assert attempt(base, source, dest) == (expected or None)
    assert attempt(base, dest, source) == (expected or None)
    if expected:
        assert attempt(base, source, base) == theirs
        assert attempt(base, base, dest) == ours


def test_the_command_line_settles_too(
    sides: tuple[Branch, Branch], capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LAKE", str(tmp_path / "cli"))
    with strandline.open(tmp_path / "cli", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.table("t").write(data(BASE), partition_by="month", message="base")
        work = main.create_branch("work")
        act(main, "replace 1", 100)
        act(work, "append 1", 200)
    assert run(["merge", "nyc/work", "nyc/main", "--dry-run"]) == 5
    assert capsys.readouterr().out == ("conflict\tt/month=1\tthe branch replaced its rows, and the source added some\n")
    assert run(["merge", "nyc/work", "nyc/main"]) == 5
    shown = capsys.readouterr()
    assert "--take t/month=1=source" in shown.err
    assert run(["merge", "nyc/work", "nyc/main", "--take", "t/month=1"]) == 2
    capsys.readouterr()
    assert run(["merge", "nyc/work", "nyc/main", "--take", "t/month=1=source", "--dry-run", "--json"]) == 0
    assert {json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()} == {"added", "removed"}
    assert run(["merge", "nyc/work", "nyc/main", "--take", "t/month=1=source"]) == 0
    with strandline.open(tmp_path / "cli") as lake:
        branch = lake.repository("nyc").branch("main")
        assert {row["id"] for row in rows_of(branch) if row["month"] == 1} == {1, 4, 200, 201}
        assert branch.exists(f"t/{RECORD_NAME}")


def test_m3_a_side_is_not_taken_of_what_is_nowhere(sides: tuple[Branch, Branch]) -> None:
    """A misspelled path would decide nothing without a word. What only one side has, or only the base, is somewhere."""
    main, work = sides
    act(main, "replace 1", 100)
    act(work, "append 1", 200)
    before = main.commit_id
    for path in ("t/month=01", "t/month", "u", "t/month=1/none", "other object/", "o10"):
        with pytest.raises(UsageError, match="has anything there") as refused:
            main.merge(work, take={path: "source"})
        assert path in refused.value.what
    assert main.commit_id == before
    work.put("only there", b"x")
    work.commit("more")
    main.merge(work, take={"t/": "dest", "only there": "dest"})
    assert not main.exists("only there")


def test_m9_a_dry_run_shows_what_lies_beside_the_conflicts(sides: tuple[Branch, Branch]) -> None:
    main, work = sides
    act(main, "replace 1", 100)
    act(work, "append 1", 200)
    act(work, "append 2", 300)
    work.put("beside", b"x")
    work.commit("more")
    preview = main.preview_merge(work)
    assert tuple(preview.conflicts) == ("t/month=1",)
    shown = [(change.kind, change.path) for change in preview.changes]
    assert len(shown) == 2
    before = main.commit_id
    main.merge(work, take={"t/month=1": "dest"})
    assert [(change.kind, change.path) for change in main._other(before).diff(main)] == shown
