"""The reflog: each move of a head, once, in order, however many there were and whoever died."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.branch import reflog
from strandline.branch.rules.record import MOVES_KEPT
from strandline.errors import NothingToCommit, StoreUnavailable
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared, link


def moves(branch: Branch) -> list[tuple[str, str, str]]:
    return [(move.verb, move.before, move.after) for move in branch.reflog()]


def commit(client: Client, number: int) -> str:
    link(client.main, f"k{number % 7}", number)
    return client.main.commit(f"{number}").id


def test_each_way_of_moving_a_head_is_named(repo: Repository, main: Branch, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x").write_text("x")
    main.put("a", "1")
    first = main.commit("a", committer="ana").id
    work = main.create_branch("work")
    work.put("b", "1")
    work.commit("b")
    main.merge("work")
    main.revert("main", parent=1)
    main.cherry_pick("work")
    main.import_objects(tmp_path / "files")
    main.hard_reset(first)
    shown = list(main.reflog())
    assert [move.verb for move in shown] == ["reset", "import", "cherry-pick", "revert", "merge", "commit", "create"]
    assert shown[0].after == shown[5].after == first
    assert shown[5].by == "ana"
    assert all(newer.before == older.after for newer, older in pairwise(shown))
    assert [move.verb for move in work.reflog()] == ["commit", "create"]
    assert main.reflog().to_arrow().num_rows == 7


def test_moves_beyond_the_record_are_kept_in_blocks(one: Client) -> None:
    made = [commit(one, number) for number in range(60)]
    assert [after for _, _, after in moves(one.main)][:-1] == made[::-1]
    assert len(one.main._core.cell("main").read().branch.moves) <= MOVES_KEPT


def test_the_history_is_bounded(one: Client, shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflog, "_BLOCKS_KEPT", 2)
    made = [commit(one, number) for number in range(80)]
    kept = [after for _, _, after in moves(one.main)]
    assert kept == made[::-1][: len(kept)]
    assert 2 * reflog.BLOCK_MOVES <= len(kept) <= 3 * reflog.BLOCK_MOVES + MOVES_KEPT
    blocks = [key for held in shared.kv._partitions.values() for key in held.values if key.startswith(b"reflog/")]
    assert len(blocks) <= 3


def test_two_that_race_for_the_swap_write_no_move_that_never_was(one: Client, two: Client) -> None:
    made: list[str] = []
    for number in range(40):
        link(one.main, "mine", number)
        one.before("set_if", 2, lambda number=number: made.append(commit(two, number)))
        with suppress(NothingToCommit):  # the other one took all
            made.append(one.main.commit(f"one {number}").id)
    assert [after for _, _, after in moves(one.main)][:-1] == made[::-1]


@pytest.mark.parametrize("outcome", [Outcome.NOT_DONE, Outcome.DONE_BUT_LOST, Outcome.LATE])
def test_a_move_with_a_lost_reply_is_there_once_or_not_at_all(one: Client, two: Client, outcome: Outcome) -> None:
    for number in range(40):
        link(one.main, "mine", number)
        one.meet("set_if", 2, outcome)
        try:
            one.main.commit(f"{number}")
        except (StoreUnavailable, NothingToCommit):
            pass
    chain = [record.id for record in two.main.log()]
    assert [after for _, _, after in moves(two.main)] == chain


def test_a_deleted_branch_leaves_no_reflog(one: Client, shared: Shared) -> None:
    work = one.repo.create_branch("work")
    for number in range(30):
        link(work, "a", number)
        work.commit(f"{number}")
    assert len(moves(work)) == 31
    one.repo.delete_branch("work")
    keys = [key for held in shared.kv._partitions.values() for key in held.values]
    assert not [key for key in keys if key.startswith(b"reflog/" + work.branch_id.encode())]
    assert [verb for verb, _, _ in moves(one.repo.create_branch("work"))] == ["create"]
