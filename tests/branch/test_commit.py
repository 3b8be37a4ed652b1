"""The commit protocol, case by case: what others do in between is done at an exact call of the store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from strandline.branch.attempts import update
from strandline.branch.rules.record import WRITE_IDS_KEPT, BranchRecord, Verdict, decide_commit, fold
from strandline.errors import NothingToCommit, OutcomeUnknown, StoreUnavailable
from strandline.ids import BranchId, CommitId, StagingToken
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared, content, link

# of the calls of a lone commit: set_if 1 seals, set_if 2 swaps; get 1 is before the seal, get 2 after the scan
SEAL, SWAP = 1, 2


def messages(client: Client) -> list[str]:
    return [commit.message for commit in client.main.log()][:-1]


def test_everything_staged_is_in_the_commit_and_nothing_is_staged_after(one: Client) -> None:
    link(one.main, "a", 1)
    link(one.main, "b", 2)
    commit = one.main.commit("first", metadata={"k": "v"})
    assert list(one.main.uncommitted()) == []
    assert [info.path for info in one.repo.ref(commit.id).list()] == ["a", "b"]
    assert (commit.message, commit.metadata, commit.committer, commit.generation) == ("first", {"k": "v"}, "tester", 2)


def test_a_commit_that_loses_to_newer_seals_swaps_again(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    # another writer's atomic put attaches a token, while the commit is under way
    one.before("set_if", SWAP, lambda: two.main.put_many({"b": b"2"}))
    one.main.commit("first")
    assert messages(one) == ["first"]
    assert [change.path for change in one.main.uncommitted()] == ["b"]


def test_a_commit_that_loses_to_an_earlier_commit_is_not_recomputed(one: Client, two: Client) -> None:
    """`two` seals T1, `one` seals T2 and builds its tree of both; then `two` takes T1 first."""
    link(one.main, "a", 1)
    ready, go = threading.Event(), threading.Event()

    def stop_here() -> None:
        ready.set()
        assert go.wait(10)

    two.before("set_if", SWAP, stop_here)
    with ThreadPoolExecutor(1) as pool:
        tail = pool.submit(lambda: two.main.commit("tail"))
        assert ready.wait(10)
        link(one.main, "b", 2)

        def let_the_other_one_win() -> None:
            go.set()
            tail.result(10)
            scans.append(one_scans())

        calls: list[str] = []
        plan = one.store.plan
        one.store.plan = lambda call, partition, key: (calls.append(call), plan(call, partition, key))[1]

        def one_scans() -> int:
            return calls.count("scan_page")

        scans: list[int] = []
        one.before("set_if", SWAP, let_the_other_one_win)
        commit = one.main.commit("both")
    assert messages(one) == ["both", "tail"]
    assert one_scans() == scans[0]  # nothing was scanned again after the other one had won
    assert commit.parents == (tail.result().id,)
    assert [change.path for change in one.repo.ref(tail.result().id).diff(commit.id)] == ["b"]
    assert list(one.main.uncommitted()) == []


def test_a_commit_of_whose_tokens_a_later_commit_took_all_has_nothing_left(one: Client, two: Client) -> None:
    link(one.main, "a", 1)

    def later() -> None:
        link(one.main, "b", 2)
        one.main.commit("both")

    two.before("set_if", SWAP, later)
    with pytest.raises(NothingToCommit, match="Somebody else committed"):
        two.main.commit("mine")
    assert messages(one) == ["both"]
    assert {path: content(one.main, path) for path in "ab"} == {"a": "1", "b": "2"}


def test_a_commit_does_not_believe_in_a_token_that_was_emptied_meanwhile(one: Client, two: Client) -> None:
    """Found by the simulator at seed 2,002,111: a compaction folded the token and a sweep emptied it."""
    link(two.main, "a", 1)

    def fold_and_empty() -> None:
        two.main.compact(force=True)
        two.repo.sweep(after_s=0, again_after_s=1e12, private_after_s=0)

    one.before("scan_page", 1, fold_and_empty)
    one.main.commit("mine")
    assert messages(one) == ["mine"]
    assert list(two.main.uncommitted()) == []
    assert content(two.main, "a") == "1"


def record(**fields: object) -> BranchRecord:
    base = BranchRecord(
        branch_id=BranchId("b"), head=CommitId("h0"), staging_token=StagingToken("s"), created_at=0, sealed_tokens=()
    )
    return replace(base, **fields)


T = [StagingToken(f"t{i}") for i in range(6)]


@pytest.mark.parametrize(
    ("now", "is_complete", "verdict", "left"),
    [
        ({"sealed_tokens": (T[1], T[0])}, True, Verdict.SWAP, (T[1], T[0])),
        ({"sealed_tokens": (T[2], T[1], T[0])}, True, Verdict.SWAP, (T[1], T[0])),
        ({"sealed_tokens": (T[2], T[1], T[0])}, False, Verdict.SWAP, (T[1], T[0])),
        ({"sealed_tokens": (T[1],), "head": "h1"}, True, Verdict.REPARENT, (T[1],)),
        ({"sealed_tokens": (T[2], T[1]), "head": "h1"}, True, Verdict.REPARENT, (T[1],)),
        ({"sealed_tokens": (T[1],), "head": "h1", "attaches": 1}, True, Verdict.RECOMPUTE, (T[1],)),
        ({"sealed_tokens": (T[1], T[3], T[0]), "attaches": 1}, True, Verdict.RECOMPUTE, (T[1], T[0])),
        ({"sealed_tokens": (T[3], T[1], T[0]), "attaches": 1}, True, Verdict.SWAP, (T[1], T[0])),
        ({"sealed_tokens": (T[1],), "head": "h1"}, False, Verdict.RECOMPUTE, (T[1],)),
        ({"sealed_tokens": (), "head": "h1"}, True, Verdict.LOOK_FOR_MINE, ()),
        ({"sealed_tokens": (T[2],), "head": "h1"}, True, Verdict.LOOK_FOR_MINE, ()),
        ({"sealed_tokens": (), "compacted": "c", "content_epoch": 1}, True, Verdict.RECOMPUTE, ()),
        ({"sealed_tokens": (T[1],), "compacted": "c", "content_epoch": 1}, True, Verdict.RECOMPUTE, (T[1],)),
        ({"sealed_tokens": (T[1], T[0]), "content_epoch": 1}, True, Verdict.RECOMPUTE, (T[1], T[0])),
        ({"sealed_tokens": (T[1], T[0]), "head": "h1"}, True, Verdict.REPARENT, (T[1], T[0])),
        ({"sealed_tokens": (), "content_epoch": 1}, True, Verdict.LOOK_FOR_MINE, ()),
    ],
)
def test_the_verdict_on_every_record_that_a_committer_can_meet(
    now: dict[str, object], is_complete: bool, verdict: Verdict, left: tuple[str, ...]
) -> None:
    seen = record(sealed_tokens=(T[1], T[0]))
    assert decide_commit(seen, (T[1], T[0]), is_complete, record(**now)) == (verdict, left)


def test_a_commit_over_a_compacted_base_is_never_reparented() -> None:
    seen = record(sealed_tokens=(T[1], T[0]), compacted="c")
    now = record(sealed_tokens=(T[1],), head=CommitId("h1"))
    assert decide_commit(seen, (T[1], T[0]), True, now)[0] is Verdict.RECOMPUTE


def test_a_commit_whose_tokens_were_folded_meanwhile_is_computed_again(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    link(one.main, "b", 2)
    # a reset of a path folds the sealed tokens into a compacted tree
    one.before("set_if", SWAP, lambda: two.main.discard("a"))
    one.main.commit("first")
    assert [info.path for info in one.main.list()] == ["b"]
    assert messages(one) == ["first"]
    assert list(one.main.uncommitted()) == []


def test_a_commit_whose_tokens_were_all_reset_says_that_there_is_nothing(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    one.before("set_if", SWAP, lambda: two.main.discard())
    with pytest.raises(NothingToCommit):
        one.main.commit("first")
    assert list(one.main.list()) == []


def test_a_commit_does_not_bring_back_what_a_hard_reset_threw_away(one: Client, two: Client) -> None:
    work = two.repo.create_branch("work")
    link(work, "w", 1)
    work.commit("work")
    link(one.main, "a", 1)
    one.before("set_if", SWAP, lambda: two.main.hard_reset("work", force=True))
    with pytest.raises(NothingToCommit):
        one.main.commit("first")
    assert [info.path for info in one.main.list()] == ["w"]


def test_an_incomplete_scan_is_not_trusted(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    link(one.main, "b", 2)

    def commit_and_delete() -> None:
        two.main.commit("other")
        two.repo.sweep(after_s=0, again_after_s=0)

    # after the seal and before the scan another committer takes the tokens and their entries are deleted
    one.before("scan_page", 1, commit_and_delete)
    with pytest.raises(NothingToCommit):
        one.main.commit("first")
    assert messages(one) == ["other"]
    assert {info.path for info in one.main.list()} == {"a", "b"}


@pytest.mark.parametrize("call", [SEAL, SWAP])
def test_a_swap_whose_reply_is_lost_is_recognised_and_never_done_twice(one: Client, call: int) -> None:
    link(one.main, "a", 1)
    one.meet("set_if", call, Outcome.DONE_BUT_LOST)
    one.main.commit("first")
    assert messages(one) == ["first"]


@pytest.mark.parametrize("call", [SEAL, SWAP])
def test_a_swap_that_is_late_is_done_once(one: Client, call: int) -> None:
    link(one.main, "a", 1)
    one.meet("set_if", call, Outcome.LATE)
    one.main.commit("first")
    assert messages(one) == ["first"]


@pytest.mark.parametrize("verb", ["commit", "merge"])
def test_a_lost_reply_is_found_even_if_the_head_was_taken_off_the_commit_since(
    one: Client, two: Client, verb: str
) -> None:
    """Found by the simulator at seed 130,268: it said that there was nothing to commit."""
    base = two.main.commit_id
    link(two.main, "x", 1)
    other = two.main.create_branch("other")
    if verb == "merge":
        link(other, "y", 1)
        other.commit("other")
        two.main.discard()

    def take_it_off() -> None:
        for n in range(WRITE_IDS_KEPT):  # so that no write id tells what became of the swap
            link(two.main, "n", n)
            two.main.commit(f"{n}")
        two.main.hard_reset(base)

    one.meet("set_if", 2 if verb == "commit" else 1, Outcome.DONE_BUT_LOST)
    one.before("set_if", 3 if verb == "commit" else 2, take_it_off)
    made = one.main.commit("mine") if verb == "commit" else one.main.merge("other", "mine")
    assert made.message == "mine"
    assert two.main.commit_id == base
    assert [move.after for move in two.main.reflog()].count(made.id) == 1


def test_a_merge_whose_swap_lands_late_is_done_once(one: Client, two: Client) -> None:
    """All repeats of the swap are lost, the record looks untouched, and then the first one lands."""
    link(two.main, "x", 1)
    two.main.commit("x")
    other = two.main.create_branch("other")
    link(other, "y", 1)
    other.commit("other")
    for call in range(1, 40):
        one.meet("set_if", call, Outcome.LATE if call == 1 else Outcome.NOT_DONE)
    try:
        one.main.merge("other", "mine")
    except (StoreUnavailable, OutcomeUnknown):
        pass
    one._rules.clear()
    assert [commit.message for commit in two.main.log()].count("mine") <= 1


@pytest.mark.parametrize("verb", ["commit", "merge"])
def test_a_reply_that_the_reflog_cannot_tell_of_is_unknown(
    one: Client, two: Client, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = two.main.commit_id
    link(two.main, "x", 1)
    other = two.main.create_branch("other")
    if verb == "merge":
        link(other, "y", 1)
        other.commit("other")
        two.main.discard()
    monkeypatch.setattr("strandline.branch.reflog._BLOCKS_KEPT", 1)

    def take_it_off() -> None:
        for n in range(3 * WRITE_IDS_KEPT):
            link(two.main, "n", n)
            two.main.commit(f"{n}")
        two.main.hard_reset(base)

    one.meet("set_if", 2 if verb == "commit" else 1, Outcome.DONE_BUT_LOST)
    one.before("set_if", 3 if verb == "commit" else 2, take_it_off)
    with pytest.raises(OutcomeUnknown):
        one.main.commit("mine") if verb == "commit" else one.main.merge("other", "mine")


def test_a_lost_reply_is_found_even_if_others_committed_since(one: Client, two: Client) -> None:
    link(one.main, "a", 1)

    def others() -> None:
        for i in range(30):  # more than the record remembers
            link(two.main, f"o{i}", i)
            two.main.commit(f"other {i}")

    one.meet("set_if", SWAP, Outcome.DONE_BUT_LOST)
    one.before("set_if", SWAP + 1, others)
    commit = one.main.commit("first")
    assert commit.message == "first"
    assert messages(one).count("first") == 1


def test_a_swap_that_surely_failed_leaves_everything_staged(one: Client) -> None:
    link(one.main, "a", 1)
    one.meet("set_if", SWAP, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable) as failed:
        one.main.commit("first")
    assert failed.value.happened == "no"
    assert "everything that was staged still is" in str(failed.value)
    assert [change.path for change in one.main.uncommitted()] == ["a"]
    one.main.commit("again")
    assert messages(one) == ["again"]


def test_a_store_that_vanishes_at_any_call_of_a_commit_loses_nothing(shared: Shared) -> None:
    client = Client(shared, create=True)
    for outcome in (Outcome.NOT_DONE, Outcome.DONE_BUT_LOST, Outcome.LATE):
        for n in range(1, 12):
            link(client.main, f"k{n}", f"{outcome.name}{n}")
            client.meet("*", n, outcome)
            try:
                client.main.commit(f"{outcome.name} {n}")
            except StoreUnavailable:
                assert content(client.main, f"k{n}") == f"{outcome.name}{n}"
            client._rules.clear()
            assert content(client.main, f"k{n}") == f"{outcome.name}{n}"
    said = messages(client)
    assert len(set(said)) == len(said)


def test_an_empty_commit_is_refused_unless_it_is_asked_for(one: Client) -> None:
    with pytest.raises(NothingToCommit):
        one.main.commit("nothing")
    one.main.commit("empty", allow_empty=True)
    assert messages(one) == ["empty"]


def test_changes_without_effect_are_nothing_to_commit_and_leave_the_record(one: Client) -> None:
    link(one.main, "a", 1)
    one.main.commit("first")
    link(one.main, "a", 1)
    one.main.delete_many(["never/was"])
    with pytest.raises(NothingToCommit):
        one.main.commit("same")
    branch = one.main._cell.read().branch
    assert branch.sealed_tokens == ()
    assert branch.compacted is None


def test_an_empty_commit_that_was_asked_for_is_made_even_if_others_took_everything(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    one.before("set_if", SWAP, lambda: two.main.commit("other"))
    one.main.commit("mine", allow_empty=True)
    assert messages(one) == ["mine", "other"]


def test_a_commit_builds_on_the_compacted_base_and_clears_it(one: Client) -> None:
    link(one.main, "a", 1)
    link(one.main, "b", 2)
    one.main.discard("b")  # folds a into a compacted tree
    assert one.main._cell.read().branch.compacted is not None
    link(one.main, "c", 3)
    assert [change.path for change in one.main.uncommitted()] == ["a", "c"]
    one.main.commit("first")
    assert one.main._cell.read().branch.compacted is None
    assert [info.path for info in one.main.list()] == ["a", "c"]


def test_a_compaction_between_scan_and_swap_is_noticed_by_its_epoch(one: Client, two: Client) -> None:
    """A fold that leaves nothing compacted and drops nothing visible still bumps the epoch."""
    link(one.main, "a", 1)

    def bump() -> None:
        update(two.main._at, lambda now: fold(now, now, (), None))

    one.before("set_if", SWAP, bump)
    one.main.commit("first")
    assert messages(one) == ["first"]
    assert content(one.main, "a") == "1"
