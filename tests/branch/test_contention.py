"""Who never wins gives up with an error that says who won, and everything is counted."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from strandline.branch import attempts
from strandline.clock import BACKOFF_MAX_S
from strandline.errors import Contention
from tests.harness.clients import Client, link, shown


def test_contention_says_what_was_tried_and_who_is_winning(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 6)
    link(one.main, "a", 1)
    numbers = iter(range(1_000))

    def win() -> None:
        number = next(numbers)
        link(two.main, "b", number)
        two.main.commit(f"{number}", committer="nightly")
        one.before("set_if", 1, win)

    one.before("set_if", 1, win)
    with pytest.raises(Contention) as lost:
        one.main.commit("mine")
    assert "6 times in a row" in lost.value.what
    assert "× commit" in lost.value.what
    assert "by nightly" in lost.value.what
    assert lost.value.safe == "Nothing was changed."
    assert "Repeat the call" in lost.value.next
    assert "a" in shown(two)


def test_waits_grow_and_are_bounded(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(one.main._core.stores.clock, "sleep", slept.append)
    tries = attempts.Attempts(one.main._core.cell("main"), "test")
    with pytest.raises(Contention):
        for _ in range(attempts.MAX_ATTEMPTS + 1):
            tries.next()
    assert len(slept) == attempts.MAX_ATTEMPTS - 1 - attempts.FREE_ATTEMPTS
    assert max(slept) <= BACKOFF_MAX_S
    assert len(set(slept)) > 50  # jitter


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"strandline_{name}", labels) or 0.0


def test_retries_lost_swaps_and_compactions_are_counted(one: Client, two: Client) -> None:
    before = {name: counted(name) for name in ("swaps_lost_total", "compaction_entries_total")}
    commits = counted("retries_total", operation="commit")
    done = counted("compactions_total", outcome="done")
    seconds = counted("compaction_seconds_count")
    tokens = counted("sealed_tokens_count")
    link(one.main, "a", 1)
    one.before("set_if", 2, lambda: seal_by(two))
    one.main.commit("mine")
    assert counted("swaps_lost_total") == before["swaps_lost_total"] + 1
    assert counted("retries_total", operation="commit") == commits + 1
    link(one.main, "b", 1)
    one.main.compact()
    assert counted("compactions_total", outcome="done") == done + 1
    assert counted("compaction_entries_total") == before["compaction_entries_total"] + 1
    assert counted("compaction_seconds_count") == seconds + 1
    assert counted("sealed_tokens_count") == tokens + 2


def seal_by(client: Client) -> None:
    from strandline.branch.attempts import update
    from strandline.branch.rules.record import seal
    from strandline.ids import StagingToken, new_id

    update(client.main._at, lambda branch: seal(branch, StagingToken(new_id())))


def test_a_write_that_gives_up_after_it_was_made_does_not_say_that_nothing_happened(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 4)
    one.store.guards = False

    def interrupt() -> None:
        seal_by(two)
        one.before("set_many", 1, interrupt)

    one.before("set", 1, interrupt)
    with pytest.raises(Contention) as lost:
        link(one.main, "a", 1)
    assert "unknown whether the write is a part" in lost.value.safe
    assert "seal" in lost.value.what
    assert shown(two) == ["a"]
