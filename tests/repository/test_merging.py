from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.errors import (
    MergeConflict,
    NothingToMerge,
    UncommittedChanges,
    UsageError,
)
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository


def contents(ref: object) -> dict[str, bytes]:
    return {info.path: ref.read(info.path) for info in ref.list()}  # type: ignore[attr-defined]


@pytest.fixture
def work(main: Branch) -> Branch:
    """A branch; both have a and b, main has changed a to 2 and work b to 2."""
    main.put_many({"a": b"1", "b": b"1"})
    main.commit("base")
    work = main.create_branch("work")
    main.put("a", b"2")
    main.commit("a on main")
    work.put("b", b"2")
    work.commit("b on work")
    return work


def test_m2_a_merge_brings_both_sides_together(main: Branch, work: Branch) -> None:
    commit = main.merge(work, "together", metadata={"ticket": "7"})
    assert contents(main) == {"a": b"2", "b": b"2"}
    assert (commit.message, commit.metadata) == ("together", {"ticket": "7"})
    assert len(commit.parents) == 2


def test_a_squash_has_one_parent(main: Branch, work: Branch) -> None:
    head = main.commit_id
    assert main.merge(work, squash=True).parents == (head,)
    assert contents(main) == {"a": b"2", "b": b"2"}


def test_m8_a_conflict_names_the_paths_and_changes_nothing(main: Branch, work: Branch) -> None:
    for n in range(8):
        main.put(f"c{n}", b"main")
        work.put(f"c{n}", b"work")
    main.commit("m")
    work.commit("w")
    head = main.commit_id
    with pytest.raises(MergeConflict, match="8 conflicts: 'c0'.*and 3 more") as conflict:
        main.merge(work)
    assert conflict.value.paths == tuple(f"c{n}" for n in range(8))
    assert main.commit_id == head


def test_m4_strategies_decide_for_all_or_for_a_prefix(main: Branch, work: Branch) -> None:
    for path in ("raw/x", "clean/x"):
        main.put(path, b"main")
        work.put(path, b"work")
    main.commit("m")
    work.commit("w")
    copy = main.create_branch("copy")
    with pytest.raises(MergeConflict) as conflict:
        copy.merge(work, strategy={"raw/": "source-wins"})
    assert conflict.value.paths == ("clean/x",)
    copy.merge(work, strategy={"raw/": "source-wins", "": "dest-wins"})
    assert (copy.read("raw/x"), copy.read("clean/x")) == (b"work", b"main")
    main.merge(work, strategy="source-wins")
    assert main.read("clean/x") == b"work"
    with pytest.raises(UsageError, match="source-wins or dest-wins"):
        main.merge(work, strategy="ours")  # type: ignore[arg-type]


def test_merging_what_is_there_already_says_so(main: Branch, work: Branch) -> None:
    main.merge(work)
    with pytest.raises(NothingToMerge, match="already has all its commits"):
        main.merge(work)
    with pytest.raises(NothingToMerge):
        main.merge("main~1")


def test_a_source_with_only_staged_changes_is_told_to_commit(main: Branch) -> None:
    work = main.create_branch("work")
    work.put("a", b"1")
    with pytest.raises(NothingToMerge, match="only uncommitted changes.*Commit on 'work' first"):
        main.merge(work)


def test_a_branch_cannot_be_merged_into_itself(main: Branch) -> None:
    with pytest.raises(UsageError, match="into itself"):
        main.merge("main")


def test_a_dirty_target_is_refused_with_its_paths(main: Branch, work: Branch) -> None:
    main.put("dirty", b"1")
    with pytest.raises(UncommittedChanges, match="'dirty'.*Commit or discard"):
        main.merge(work)
    with pytest.raises(UncommittedChanges):
        main.revert("main")
    with pytest.raises(UncommittedChanges):
        main.hard_reset("main~1")
    assert main.read("dirty") == b"1"


def test_the_base_and_the_merge_of_unrelated_deletes_and_adds(main: Branch) -> None:
    main.put_many({"a": b"a", "z/_SUCCESS": b""})
    main.commit("base")
    work = main.create_branch("work")
    work.put("y/_SUCCESS", b"")
    work.commit("y")
    main.delete("z/_SUCCESS")
    main.commit("no z")
    main.merge(work)
    assert contents(main) == {"a": b"a", "y/_SUCCESS": b""}


def test_a_revert_undoes_one_commit_and_keeps_later_ones(repo: Repository, main: Branch) -> None:
    main.put("a", b"1")
    first = main.commit("a")
    main.put("b", b"1")
    main.commit("b")
    reverted = main.revert(first.id)
    assert contents(main) == {"b": b"1"}
    assert reverted.message.startswith("Revert 'a'")
    main.revert("main")  # the revert of the revert
    assert contents(main) == {"a": b"1", "b": b"1"}


def test_a_revert_of_what_changed_since_is_a_conflict(main: Branch) -> None:
    main.put("a", b"1")
    first = main.commit("a")
    main.put("a", b"2")
    main.commit("a again")
    with pytest.raises(MergeConflict) as conflict:
        main.revert(first.id)
    assert conflict.value.paths == ("a",)


def test_a_merge_is_reverted_against_a_parent_that_is_named(main: Branch, work: Branch) -> None:
    merge = main.merge(work)
    with pytest.raises(UsageError, match="2 parents"):
        main.revert(merge.id)
    with pytest.raises(UsageError, match="not 3"):
        main.revert(merge.id, parent=3)
    main.revert(merge.id, parent=1)
    assert contents(main) == {"a": b"2", "b": b"1"}
    with pytest.raises(NothingToMerge):
        main.revert(merge.id, parent=1)
    with pytest.raises(UsageError, match="first commit"):
        main.revert(list(main.log())[-1].id)


def test_a_cherry_pick_takes_one_commit(main: Branch, work: Branch) -> None:
    work.put("c", b"1")
    work.commit("c on work")
    picked = main.cherry_pick("work~1")
    assert contents(main) == {"a": b"2", "b": b"2"}
    assert (picked.message, len(picked.parents)) == ("b on work", 1)
    with pytest.raises(NothingToMerge):
        main.cherry_pick("work~1")


def test_a_hard_reset_moves_the_head_anywhere(repo: Repository, main: Branch, work: Branch) -> None:
    main.hard_reset("main~1")
    assert contents(main) == {"a": b"1", "b": b"1"}
    main.hard_reset(work)
    assert contents(main) == {"a": b"1", "b": b"2"}
    main.put("dirty", b"1")
    main.hard_reset("main~1", force=True)
    assert contents(main) == {"a": b"1", "b": b"1"}
    assert list(main.uncommitted()) == []


def test_m1_the_result_depends_on_three_trees_and_not_on_how_they_came_about(repo: Repository, main: Branch) -> None:
    """The same changes in one commit or in many, staged, moved and taken back, with other addresses: one tree."""
    main.put_many({f"o/{number:04d}": f"{number}" for number in range(300)})
    main.commit("base")
    results = set()
    for way in ("at once", "one by one"):
        dest, source = (repo.create_branch(f"{name}-{way.replace(' ', '-')}", "main") for name in ("dest", "source"))
        for branch, first in ((dest, 0), (source, 1)):
            for number in range(first, 300, 7):
                branch.put(f"o/{number:04d}", f"{first} {number}")
                if way == "one by one":
                    branch.put("o/moved", b"x")
                    branch.commit("a step")
                    branch.delete("o/moved")
            branch.delete(f"o/{first + 2:04d}")
            branch.commit("all of it")
        strategies = {"o/00": "source-wins", "o/": "dest-wins"}
        dest.merge(source, strategy=strategies, take={"o/0003": "dest"})  # type: ignore[arg-type]
        results.add(tuple((info.path, dest.stat(info.path).checksum) for info in dest.list()))
    assert len(results) == 1
    (found,) = results
    assert len(found) == 299


def test_a_merge_of_nothing_new_commits_when_it_is_asked_to(repo: Repository, main: Branch, work: Branch) -> None:
    main.merge(work)
    before = main.get_commit()
    for source in (work, repo.ref(before.id)):
        made = main.merge(source, "nightly", metadata={"run": "7"}, allow_empty=True)
        assert (made.message, made.metadata) == ("nightly", {"run": "7"})
        assert len(made.parents) == 1
        assert made.tree_id == before.tree_id
    with pytest.raises(NothingToMerge):
        main.merge(work)
    work.put("new", b"1")
    work.commit("new")
    assert len(main.merge(work, allow_empty=True).parents) == 2
    assert main.read("new") == b"1"
    main.put("staged", b"1")
    with pytest.raises(UncommittedChanges):
        main.merge(work, allow_empty=True)


def test_a_revert_and_a_cherry_pick_take_what_a_commit_takes(repo: Repository, main: Branch, work: Branch) -> None:
    day = datetime(2026, 11, 1, tzinfo=UTC)
    work.put("picked", b"1")
    picked = work.commit("picked")
    options: dict[str, Any] = {"metadata": {"run": "7"}, "date": day, "committer": "ann"}
    for made in (main.cherry_pick(picked.id, **options), main.revert("main", **options)):
        assert (made.metadata, made.date, made.committer) == ({"run": "7"}, day, "ann")
    main.cherry_pick(picked.id)
    empty = main.cherry_pick(picked.id, allow_empty=True)
    assert empty.tree_id == repo.get_commit(empty.parents[0]).tree_id
    with pytest.raises(NothingToMerge):
        main.cherry_pick(picked.id)


def test_a_commit_without_a_message_is_made_for_programs_that_ask(main: Branch, work: Branch) -> None:
    work.put("quiet", b"1")
    for refused in ("", "  "):
        with pytest.raises(UsageError, match="needs a message"):
            work.commit(refused)
    made = work.commit("", allow_empty_message=True)
    assert made.message == ""
    assert main.cherry_pick(made.id).message == ""
    assert [commit.message for commit in work.log(amount=1)] == [""]
    with pytest.raises(UsageError, match="needs a message"):
        main.merge(work, "")
