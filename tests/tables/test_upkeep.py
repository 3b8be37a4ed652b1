"""Upkeep of tables by rule: which files are written together, and which are left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline
from strandline import Branch, UpkeepRule
from strandline.clock import SystemClock
from strandline.core.retention import DAY_US
from strandline.errors import UsageError
from strandline.results.rows import ObjectInfo
from strandline.tables.rewriting import Rewriting, chosen_groups
from strandline.tables.scan import TableFile


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Branch]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake.create_repository("nyc").branch("main")


def write(branch: Branch, path: str, count: int, **options: object) -> None:
    for n in range(count):
        rows = pa.table({"k": pa.array([n, 100 - n], pa.int64()), "m": pa.array([n % 2] * 2, pa.int32())})
        branch.table(path).write(rows, message="rows", **options)  # type: ignore[arg-type]


def test_the_first_rule_that_matches_counts(main: Branch) -> None:
    for path in ("hot/a", "hot/b", "cold/a"):
        write(main, path, 4)
    rules = [UpkeepRule(tables="hot/b", min_files=50), UpkeepRule(tables="hot/*", min_files=4)]
    dry = main.keep_up(rules, dry_run=True)
    assert [(one.path, one.before, one.after) for one in dry] == [("hot/a", 4, 0), ("hot/b", 0, 0)]
    head = main.commit_id
    assert [len(main.table(path).files()) for path in ("hot/a", "hot/b", "cold/a")] == [4, 4, 4]
    assert main.commit_id == head
    done = main.keep_up(rules)
    assert [(one.path, one.before, one.after, one.problem) for one in done] == [
        ("hot/a", 4, 1, ""),
        ("hot/b", 0, 0, ""),
    ]
    assert done[0].bytes_before > done[0].bytes_after > 0
    assert [len(main.table(path).files()) for path in ("hot/a", "hot/b", "cold/a")] == [1, 4, 4]
    assert main.table("hot/a").history(amount=1).to_arrow()["operation"].to_pylist() == ["rewrite"]
    assert main.keep_up(rules)[0].before == 0  # there is nothing left to do


def test_few_and_large_files_are_left(main: Branch) -> None:
    write(main, "t", 7, partition_by=["m"])  # four files in one partition, three in the other
    assert main.keep_up([UpkeepRule(min_files=4)])[0].before == 4
    assert sorted(file.partition["m"] for file in main.table("t").files()) == ["0", "1", "1", "1"]  # type: ignore[type-var]


def sized(*sizes: int) -> list[TableFile]:
    return [
        TableFile(ObjectInfo(f"t/{n}.parquet", f"data/{n}", size, "", 0), f"{n}.parquet", {})
        for n, size in enumerate(sizes)
    ]


def test_files_are_counted_by_partition_and_grouped_by_size() -> None:
    def taken(*sizes: int) -> list[int]:
        how = Rewriting(128, min_files=8, only_small=True)
        return [len(group) for group in chosen_groups(sized(*sizes), how)]

    assert taken(*[40] * 12) == [3, 3, 3, 3]  # enough of them, though few make a file
    assert taken(*[40] * 7) == []
    assert taken(*[40] * 7, *[96] * 20) == []  # those with three quarters of it are left
    assert taken(*[1] * 8, 96) == [8]


def test_young_files_are_left(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    write(main, "t", 3)
    assert main.keep_up([UpkeepRule(min_files=2, min_age_days=1)])[0].before == 0
    now = main._core.stores.clock.now_us()
    monkeypatch.setattr(SystemClock, "now_us", lambda clock: now + 2 * DAY_US)
    assert main.keep_up([UpkeepRule(min_files=2, min_age_days=1)], dry_run=True)[0].before == 3


def test_rows_get_an_order_once(main: Branch) -> None:
    write(main, "t", 3)
    rule = UpkeepRule(min_files=3, sort_by=("k",))
    assert main.keep_up([rule])[0].after == 1
    assert main.table("t").to_arrow()["k"].to_pylist() == [0, 1, 2, 98, 99, 100]
    assert main.keep_up([rule])[0].before == 0  # a single small file is not written every night


def test_what_is_not_ours_to_keep_is_left(main: Branch, tmp_path: Path) -> None:
    source = tmp_path / "rides"
    source.mkdir()
    for n in range(3):
        pq.write_table(pa.table({"k": [n]}), source / f"{n}.parquet")
    main.mirror_table(source, "mirror")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.csv").write_text("k\n1\n")
    main.mirror_table(tmp_path / "text", "text", columns=pa.schema([("k", pa.int64())]), options={"header": True})
    write(main, "u", 2)
    done = {one.path: one for one in main.keep_up([UpkeepRule(min_files=2)])}
    assert "somebody else's" in done["mirror"].left
    assert "csv are not written anew" in done["text"].left
    assert [one.problem for one in done.values()] == ["", "", ""]
    assert (done["u"].after, done["u"].problem) == (1, "")
    assert main.mirror_table(source, "mirror").commit is None


def test_one_table_that_fails_does_not_stop_the_others(main: Branch) -> None:
    write(main, "a", 2)
    write(main, "b", 2)
    rules = [UpkeepRule(tables="a", min_files=2, sort_by=("none",)), UpkeepRule(min_files=2)]
    first, second = main.keep_up(rules)
    assert "no column 'none'" in first.problem
    assert second.after == 1
    main._core.stores.trees.blobs.delete_many([main.table("a").files()[0].info.physical_address])
    assert "gone" in main.keep_up([UpkeepRule(min_files=2)])[0].problem


@pytest.mark.parametrize(
    "rule",
    [
        UpkeepRule(target_file_bytes=0),
        UpkeepRule(target_file_bytes="128"),  # type: ignore[arg-type]
        UpkeepRule(sort_by="id"),  # type: ignore[arg-type]
        UpkeepRule(sort_by=("a",), z_order_by=("b",)),
        UpkeepRule(min_files=1),
        UpkeepRule(min_age_days=-1),
        UpkeepRule(min_age_days=float("nan")),
        "tables/*",
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(main: Branch, rule: UpkeepRule) -> None:
    write(main, "t", 2)
    head = main.commit_id
    with pytest.raises(UsageError, match=r"cannot be followed|is a UpkeepRule|one order"):
        main.keep_up([rule])
    assert main.commit_id == head
