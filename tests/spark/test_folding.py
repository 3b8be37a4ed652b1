"""Commits, compactions and merges by Spark's executors are those of one process, id for id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline import Branch, Repository
from strandline.errors import MergeConflict, NothingToCommit, ObjectMissing, StorageError, UsageError
from strandline.spark import folding
from strandline.tree.rows import Entry

pytestmark = [pytest.mark.spark]


@pytest.fixture
def repo(lake_url: str) -> Iterator[Repository]:
    with strandline.open(lake_url, create=True) as lake:
        yield lake.create_repository("nyc")


def staged(branch: Branch, numbers: Iterable[int], value: str) -> None:
    branch.stage_each([(f"k{n:06d}", Entry(f"data/{value}/{n}", 1, f"sum:{value}{n}", 0, None, None)) for n in numbers])


@pytest.mark.everywhere
def test_a_commit_is_that_of_one_process(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "PART_KEYS", 10_000)
    main = repo.branch("main")
    here = main.create_branch("here")
    told: list[tuple[str, int, int | None]] = []
    for branch, session in ((main, spark), (here, None)):
        staged(branch, range(50_000), "a")
        branch.commit("many", spark=session)
        staged(branch, range(0, 60_000, 3), "b")
        for n in range(1_000, 9_000, 100):
            branch.delete(f"k{n:06d}")
        branch.commit("more", spark=session, progress=lambda *step: told.append(step))
    assert [step for step in told if step[0] == "copying what is staged"] == [
        ("copying what is staged", 10_000, None),
        ("copying what is staged", 20_000, None),
        ("copying what is staged", 20_054, None),
    ]
    assert main.get_commit().tree_id == here.get_commit().tree_id
    assert not list(repo._core.stores.trees.blobs.list_keys("_strandline/txn/"))
    with pytest.raises(NothingToCommit):
        main.commit("nothing", spark=spark)


def test_a_compaction_is_that_of_one_process(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "PART_KEYS", 5_000)
    main = repo.branch("main")
    staged(main, range(30_000), "a")
    told: list[str] = []
    done = main.compact(spark=spark, force=True, progress=lambda what, *_: told.append(what))
    assert "writing ranges" in told
    assert (done.outcome, done.entries) == ("done", 30_000)
    assert main.compact(spark=spark, force=True).entries == 0
    here = main.create_branch("here")
    main.commit("all")
    staged(here, range(30_000), "a")
    here.commit("all")
    assert main.get_commit().tree_id == here.get_commit().tree_id


def test_few_entries_are_folded_here(spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_done", None)  # no task is run
    main = repo.branch("main")
    main.put("a", b"x")
    main.commit("one", spark=spark)
    dev = main.create_branch("dev")
    dev.put("b", b"y")
    dev.commit("two", spark=spark)
    main.merge(dev, spark=spark)
    assert [info.path for info in main.list()] == ["a", "b"]


@pytest.mark.everywhere
def test_a_merge_is_that_of_one_process(spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FEW_STRETCHES", 1)
    monkeypatch.setattr(folding, "STRETCHES_PER_TASK", 1)
    main = repo.branch("main")
    staged(main, range(60_000), "a")
    main.commit("many")
    dev = main.create_branch("dev")
    staged(dev, range(0, 60_000, 500), "b")
    dev.commit("theirs")
    staged(main, range(1, 60_000, 700), "c")
    main.put("t/_strandline_table.json", b"{}")
    main.commit("ours")
    here = main.create_branch("here")
    told: list[str] = []
    done = main.merge(dev, "merged", spark=spark, progress=lambda what, *_: told.append(what))
    assert {"looking for changes of tables", "merging ranges"} <= set(told)  # tasks did it
    assert done.tree_id == here.merge(dev, "merged").tree_id
    staged(dev, range(2_000), "d")
    dev.commit("all of the first")
    staged(main, range(0, 2_000, 900), "e")
    main.commit("some of the first")
    with pytest.raises(MergeConflict) as caught:
        main.merge(dev, spark=spark)
    assert sorted(caught.value.reasons) == [f"k{n:06d}" for n in (0, 1, 701, 900, 1401, 1800)]
    main.merge(dev, strategy="source-wins", spark=spark)
    assert main.stat("k000900").checksum == "sum:d900"


def test_a_task_that_fails_changes_nothing(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "PART_KEYS", 5_000)
    main = repo.branch("main")
    staged(main, range(20_000), "a")
    head = main.commit_id
    copied = folding._copied

    def broken(*arguments: object) -> object:
        part = copied(*arguments)  # type: ignore[arg-type]
        repo._core.stores.trees.blobs.delete_many([part.file])
        return part

    with monkeypatch.context() as patch:
        patch.setattr(folding, "_copied", broken)
        with pytest.raises(StorageError, match="everything that was staged still is"):
            main.commit("many", spark=spark)
    assert main.commit_id == head
    assert len(list(main.list())) == 20_000
    main.commit("many", spark=spark)
    assert len(list(repo.ref("main@").list())) == 20_000


def test_a_progress_that_ends_the_work_is_not_sparks_failure(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "PART_KEYS", 5_000)
    main = repo.branch("main")
    staged(main, range(20_000), "a")

    def stop(what: str, *_: object) -> None:
        if what == "writing ranges":
            raise ValueError("the user pressed stop")

    with pytest.raises(ValueError, match="pressed stop"):
        main.commit("many", spark=spark, progress=stop)
    assert len(list(main.uncommitted())) == 20_000


def test_a_base_that_went_is_not_sparks_failure(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "PART_KEYS", 5_000)
    main = repo.branch("main")
    staged(main, range(5_000), "a")
    main.commit("some")
    infos = list(repo._core.stores.trees.ranges(repo._core.commits.tree(main.commit_id)))
    staged(main, range(20_000), "b")
    repo._core.stores.trees.blobs.delete_many([info.address for info in infos])
    with pytest.raises(ObjectMissing):
        main.commit("many", spark=spark)


def test_what_is_no_session_is_refused(repo: Repository) -> None:
    main = repo.branch("main")
    main.put("a", b"x")
    calls: list[Any] = [partial(main.commit, "x"), main.compact, partial(main.merge, "main~0")]
    for call in calls:
        with pytest.raises(UsageError):
            call(spark="no")
    assert len(list(main.uncommitted())) == 1
