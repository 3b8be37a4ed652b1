from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from strandline.errors import InvalidRef, RefNotFound, UsageError
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.testing.clock import ManualClock


@pytest.fixture
def history(main: Branch, clock: ManualClock) -> list[str]:
    """Commits c1, c2, c3 on main, an hour apart; their ids."""
    ids: list[str] = []
    for n in "123":
        clock.advance_s(3600)
        main.put(f"f{n}", n)
        ids.append(main.commit(f"c{n}").id)
    return ids


def test_expressions_name_commits(repo: Repository, history: list[str]) -> None:
    repo.create_tag("v1", history[0])
    for expression, expected in {
        "main": 2,
        "main@": 2,
        "main~": 1,
        "main~0": 2,
        "main~2": 0,
        "main^": 1,
        "main^1": 1,
        "main^^": 0,
        "main~1^1": 0,
        "v1": 0,
        history[1]: 1,
        history[1][:12]: 1,
        f"{history[2][:8]}~1": 1,
        "main@{30 minutes ago}": 1,
        "main@{2 hours ago}": 0,
        "main@{0 seconds ago}": 2,
        "main@{30 minutes ago}~1": 0,
    }.items():
        assert repo.ref(expression).commit_id == history[expected], expression


def test_a_time_may_be_written_as_a_date(repo: Repository, main: Branch) -> None:
    for day in (1, 2, 3):
        main.put("a", str(day))
        main.commit(f"day {day}", date=datetime(2026, 11, day, 12, tzinfo=UTC))
    assert repo.get_commit("main@{2026-11-02T12:00Z}").message == "day 2"
    assert repo.get_commit("main@{2026-11-02T13:00+02:00}").message == "day 1"
    assert repo.get_commit("main@{2026-11-03}").message == "day 2"
    assert main.log().first().date == datetime(2026, 11, 3, 12, tzinfo=UTC)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "bad", ["", "~1", "main~x", "main@{", "main@{soon}", "main@{yesterday}", "a/b", "main$~1", "v$", "main^{}", "ma in"]
)
def test_an_expression_that_cannot_be_parsed_is_refused(repo: Repository, history: list[str], bad: str) -> None:
    repo.create_tag("v", "main")
    with pytest.raises(InvalidRef):
        repo.ref(bad)


@pytest.mark.parametrize(
    "missing", ["nope", "main~9", "main^2", "main@{3 weeks ago}", "0" * 40, "0123abcd", "main^1^2"]
)
def test_an_expression_that_names_nothing_says_why(repo: Repository, history: list[str], missing: str) -> None:
    with pytest.raises(RefNotFound):
        repo.ref(missing)


def test_an_ambiguous_beginning_of_an_id_is_refused(repo: Repository, main: Branch) -> None:
    seen: dict[str, str] = {}
    commit = main.commit("first", allow_empty=True)
    while commit.id[:4] not in seen:  # some hundreds of turns, and one for each beginning at most
        seen[commit.id[:4]] = commit.id
        commit = main.commit("another", allow_empty=True)
    with pytest.raises(InvalidRef, match="more than one"):
        repo.ref(commit.id[:4])


def test_a_name_wins_over_the_beginning_of_an_id(repo: Repository, history: list[str]) -> None:
    repo.create_tag(history[0][:6], history[2])
    assert repo.ref(history[0][:6]).commit_id == history[2]


def test_a_branch_shows_what_is_staged_its_head_does_not_and_the_staged_part_only_that(
    repo: Repository, main: Branch, history: list[str]
) -> None:
    main.put("new", b"n")
    main.put("f1", b"changed")
    main.delete("f2")
    assert [info.path for info in repo.ref("main").list()] == ["f1", "f3", "new"]
    assert [info.path for info in repo.ref("main@").list()] == ["f1", "f2", "f3"]
    assert [info.path for info in repo.ref("main$").list()] == ["f1", "new"]
    assert repo.ref("main$").read("f1") == b"changed"
    assert repo.ref("main$").find("f3") is None
    assert repo.ref("main@").read("f1") == b"1"


def test_a_ref_to_a_commit_stays_where_it_is(repo: Repository, main: Branch, history: list[str]) -> None:
    ref = repo.ref("main~1")
    main.put("x", b"1")
    main.commit("c4")
    assert ref.commit_id == history[1]


def test_a_log_is_filtered(repo: Repository, main: Branch, history: list[str], clock: ManualClock) -> None:
    def said(**filters: object) -> list[str]:
        return [commit.message for commit in main.log(**filters)]  # type: ignore[arg-type]

    assert said() == ["c3", "c2", "c1", "Repository created"]
    assert said(amount=2) == ["c3", "c2"]
    assert said(paths=["f2"]) == said(paths="f2") == ["c2"]
    assert said(prefixes=["f"]) == ["c3", "c2", "c1"]
    assert said(paths=["f1"], prefixes=["f3"]) == ["c3", "c1"]
    assert said(since="61 minutes ago") == ["c3", "c2"]
    assert said(until="2 hours ago") == ["c1", "Repository created"]
    assert said(until=datetime.fromtimestamp(0, UTC) + timedelta(microseconds=clock.now_us()), amount=1) == ["c3"]
    main.delete("f2")
    main.commit("gone")
    assert said(paths=["f2"]) == ["gone", "c2"]
    assert said(paths=["nothing"]) == []


def test_a_log_of_merges_has_every_commit_once_and_children_first(repo: Repository, main: Branch) -> None:
    work = main.create_branch("work")
    for i in range(3):
        work.put(f"w{i}", b"1")
        work.commit(f"w{i}")
        main.put(f"m{i}", b"1")
        main.commit(f"m{i}")
        main.merge(work, f"merge {i}")
        work.merge(main, f"back {i}")
    found = list(main.log())
    assert len({commit.id for commit in found}) == len(found) == 1 + 3 * 3 + 2
    position = {commit.id: i for i, commit in enumerate(found)}
    assert all(position[commit.id] < position[parent] for commit in found for parent in commit.parents)
    first = [commit.message for commit in main.log(first_parent=True)]
    assert first == ["merge 2", "m2", "merge 1", "m1", "merge 0", "m0", "Repository created"]


def test_the_merge_base_is_the_best_common_ancestor(repo: Repository, main: Branch, history: list[str]) -> None:
    work = repo.create_branch("work", "main~1")
    work.put("w", b"1")
    work.commit("w")
    assert repo.merge_base(main, work).id == history[1]  # type: ignore[union-attr]
    assert repo.merge_base("main", "main~1").id == history[1]  # type: ignore[union-attr]
    assert repo.merge_base("main", "main").id == history[2]  # type: ignore[union-attr]
    merged = main.merge(work)
    assert repo.merge_base(main, work).id == work.commit_id  # type: ignore[union-attr]
    assert merged.parents == (history[2], work.commit_id)


def test_a_criss_cross_history_gives_the_same_base_from_both_sides(repo: Repository, main: Branch) -> None:
    work = main.create_branch("work")
    main.put("m", b"1")
    left = main.commit("m")
    work.put("w", b"1")
    right = work.commit("w")
    main.merge(right.id)
    work.merge(left.id)
    assert repo.merge_base(main, work) == repo.merge_base(work, main)
    assert repo.merge_base(main, work).id in (left.id, right.id)  # type: ignore[union-attr]


def test_a_commit_needs_a_message_and_small_text_metadata(main: Branch) -> None:
    main.put("a", b"1")
    for message in ("", "  \n", "x" * 10_001, None):
        with pytest.raises(UsageError, match="message"):
            main.commit(message)  # type: ignore[arg-type]
    for metadata in ({"a": 1}, {1: "a"}, {"a": "x" * 9000}):
        with pytest.raises(UsageError, match="metadata"):
            main.commit("m", metadata=metadata)  # type: ignore[arg-type]
    assert [change.path for change in main.uncommitted()] == ["a"]


def test_refs_of_another_repository_are_refused(main: Branch, lake: object) -> None:
    other = lake.repository("other", create=True).branch("main")  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="another repository"):
        main.merge(other)
    with pytest.raises(UsageError, match="another repository"):
        main.diff(other)
