"""How an import ends: once, whatever dies; and with nothing changed if it was cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.branch import transactions
from strandline.errors import StoreUnavailable, StrandlineError
from strandline.kv.store import PredicateFailed
from strandline.lake import open_lake
from strandline.repository.branch import Branch
from strandline.repository.commits import importing
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.listing import ImportSource
from strandline.server import imports
from strandline.server.imports import ImportRecord, Imports
from strandline.server.refusals import Refusal
from strandline.settings import find_settings
from strandline.testing.clock import ManualClock

held_now: list[Held] = []


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """A test that fails leaves no import behind that waits."""
    yield
    while held_now:
        held_now.pop().gate.set()


class Held:
    """Holds imports at a step until they are let go."""

    def __init__(self, patch: pytest.MonkeyPatch, step: str) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        held_now.append(self)
        real: Callable[..., Any] = getattr(importing, step) if step == "_references" else None  # type: ignore[assignment]
        publish = transactions.publish

        def wait() -> None:
            self.reached.set()
            assert self.gate.wait(60)

        if step == "_references":

            def references(*given: Any) -> Any:
                wait()
                return real(*given)

            patch.setattr(importing, "_references", references)
        elif step == "before publishing":

            def before(*given: Any) -> Any:
                wait()
                return publish(*given)

            patch.setattr(transactions, "publish", before)
        else:

            def after(*given: Any) -> Any:
                done = publish(*given)
                wait()
                return done

            patch.setattr(transactions, "publish", after)


STEPS = ["_references", "before publishing", "after publishing"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def branch(tmp_path: Path, clock: ManualClock) -> Iterator[Branch]:
    """A branch, and beside its lake a folder `source` with two files."""
    (tmp_path / "source").mkdir()
    for name in "ab":
        (tmp_path / "source" / name).write_text(name)
    with open_lake(find_settings(tmp_path / "lake", synced=False), create=True, clock=clock) as lake:
        yield lake.repository("repo", create=True).branch("main")


@pytest.fixture
def sources(branch: Branch, tmp_path: Path) -> list[ImportSource]:
    return [ImportSource(str(tmp_path / "source"), "in/")]


def begin(worker: Imports, branch: Branch, sources: list[ImportSource]) -> str:
    return worker.begin(branch, sources, make_draft(branch._core, "an import", committer="me")).id


def wait_for(worker: Imports, branch: Branch, id: str) -> ImportRecord:
    for _ in range(1_500):
        found = worker.get(branch, id)
        if found.state != "running":
            return found
        time.sleep(0.01)
    raise AssertionError("It does not end.")


def imports_in(branch: Branch) -> int:
    return sum(commit.message == "an import" for commit in branch.log())


@pytest.mark.parametrize("step", STEPS)
def test_a_cancelled_import_changes_nothing(
    branch: Branch, sources: list[ImportSource], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step: what was answered with success never happens, and what happened is not called cancelled."""
    held = Held(monkeypatch, step)
    worker = Imports(branch._core.stores.kv)
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)
    if step == "after publishing":
        with pytest.raises(Refusal, match="nothing to cancel") as refused:
            worker.cancel(branch, id)
        assert refused.value.status == 409
    else:
        worker.cancel(branch, id)
        assert worker.get(branch, id).state == "cancelled"
        with pytest.raises(Refusal):
            worker.cancel(branch, id)
    held.gate.set()
    worker.close()
    is_there = step == "after publishing"
    assert worker.get(branch, id).state == ("completed" if is_there else "cancelled")
    assert imports_in(branch) == is_there
    assert not open_transactions(branch)


def test_a_cancellation_before_it_began_holds(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "_references")
    worker = Imports(branch._core.stores.kv)
    others = [begin(worker, branch, sources) for _ in range(imports.THREADS)]
    assert held.reached.wait(60)
    waiting = begin(worker, branch, sources)
    worker.cancel(branch, waiting)
    held.gate.set()
    for id in others:
        assert wait_for(worker, branch, id).state == "completed"
    worker.close()
    assert worker.get(branch, waiting).state == "cancelled"
    assert imports_in(branch) == 1  # of two that found the same


@pytest.mark.parametrize("step", STEPS)
def test_an_import_whose_worker_died_ends_once(
    branch: Branch, sources: list[ImportSource], step: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was declared dead comes back: at each step it is published once, and both give one answer."""
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch, step)
        dead = Imports(branch._core.stores.kv)
        id = begin(dead, branch, sources)
        assert held.reached.wait(60)
    living = Imports(branch._core.stores.kv)
    assert living.get(branch, id).state == "running"
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    found = wait_for(living, branch, id)
    assert (found.state, found.objects > 0 or step == "after publishing") == ("completed", True)
    assert found.commit
    held.gate.set()
    dead.close()
    assert dead.get(branch, id) == found
    assert imports_in(branch) == 1
    assert branch.commit_id == found.commit
    living.close()


def test_an_import_that_an_operator_aborts_or_that_meets_a_fault_ends(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Imports(branch._core.stores.kv)
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch, "_references")
        aborted = begin(worker, branch, sources)
        assert held.reached.wait(60)
        branch.transactions.abort(worker.get(branch, aborted).transaction)
        held.gate.set()
        assert "aborted from elsewhere" in wait_for(worker, branch, aborted).error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "_references", lambda *_: 1 / 0)
        assert wait_for(worker, branch, begin(worker, branch, sources)).error == "The server failed; its log has more."
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    assert worker.get(branch, aborted).state == "failed"
    worker.close()
    assert imports_in(branch) == 0


def open_transactions(branch: Branch) -> list[Any]:
    return [one for one in branch.transactions if one.state == "open"]


def test_a_cancellation_right_after_the_beginning_leaves_nothing_open(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, begin_one = Imports(branch._core.stores.kv), transactions.begin
    cancelled = threading.Event()

    def begun(*given: Any) -> Any:
        record = begin_one(*given)
        assert cancelled.wait(60)
        return record

    monkeypatch.setattr(transactions, "begin", begun)
    id = begin(worker, branch, sources)
    worker.cancel(branch, id)
    cancelled.set()
    worker.close()
    assert worker.get(branch, id).state == "cancelled"
    assert (open_transactions(branch), imports_in(branch)) == ([], 0)


def test_a_run_that_meets_its_cancellation_first_is_cancelled(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "before publishing")
    worker, abort = Imports(branch._core.stores.kv), importing.abort_import
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)

    def abort_and_wait(*given: Any) -> None:
        abort(*given)
        held.gate.set()
        assert wait_for(worker, branch, id).state == "failed"

    monkeypatch.setattr(imports, "abort_import", abort_and_wait)
    worker.cancel(branch, id)
    worker.close()
    assert (worker.get(branch, id).state, imports_in(branch)) == ("cancelled", 0)


def test_an_import_is_taken_over_once(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a worker is asked for it, and by however many at once."""
    held = Held(monkeypatch, "_references")
    dead, living = Imports(branch._core.stores.kv), Imports(branch._core.stores.kv)
    id = begin(dead, branch, sources)
    assert held.reached.wait(60)
    living.get(branch, id)
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    with ThreadPoolExecutor(8) as askers:
        list(askers.map(lambda _: living.get(branch, id), range(16)))
    for _ in range(3):
        clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
        assert living.get(branch, id).state == "running"
    held.gate.set()
    assert wait_for(living, branch, id).state == "completed"
    living.close()
    dead.close()
    assert len(list(branch.transactions)) == 2
    assert imports_in(branch) == 1


def test_two_workers_that_are_asked_in_turn_do_not_take_it_from_each_other(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its worker says that it works on it, whatever the clock of the other one says."""
    real = importing._references

    def slow(source: Any, tell: Any) -> Any:
        assert known.wait(60)
        for found in range(20):
            clock.advance_s(20)
            tell(found)
            asked.append(other.get(branch, ids[0]).transaction)
        return real(source, tell)

    monkeypatch.setattr(importing, "_references", slow)
    worker, other = Imports(branch._core.stores.kv), Imports(branch._core.stores.kv)
    asked: list[int] = []
    taken: list[str] = []

    def take(at: Branch, id: str, write: Any) -> ImportRecord:
        taken.append(id)
        return worker.read(at, id)

    monkeypatch.setattr(other, "_submit", take)
    known, ids = threading.Event(), list[str]()
    ids.append(begin(worker, branch, sources))
    known.set()
    assert wait_for(worker, branch, ids[0]).state == "completed"
    worker.close()
    other.close()
    assert len(asked) == 20
    assert set(asked) == {one.id for one in branch.transactions}
    assert taken == []


def test_a_heartbeat_that_is_missed_ends_nothing(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swap = importing._references, Imports.swap
    worker = Imports(branch._core.stores.kv)
    answers = ["no", "unknown", "unknown"]

    def failing(self: Imports, at: Branch, before: ImportRecord, after: ImportRecord) -> ImportRecord:
        if after.objects != 7 or not answers:
            return swap(self, at, before, after)
        happened: Any = answers.pop(0)
        if len(answers) == 1:
            swap(self, at, before, after)
        raise StoreUnavailable("No answer came.", happened=happened)

    def telling(source: Any, tell: Any) -> Any:
        for _ in range(4):
            clock.advance_s(5)
            tell(7)
        return real(source, tell)

    monkeypatch.setattr(importing, "_references", telling)
    monkeypatch.setattr(Imports, "swap", failing)
    found = wait_for(worker, branch, begin(worker, branch, sources))
    worker.close()
    assert (found.state, answers, imports_in(branch)) == ("completed", [], 1)


def test_nothing_new_is_no_commit_of_others(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the answer was lost, and the token finds the head that others made."""
    branch.import_objects(sources, message="before", replace=True)
    publish = transactions.publish
    lost: list[Any] = []

    def once(at: Any, what: Any) -> Any:
        done = publish(at, what)
        if what.is_empty and not lost:
            lost.append(done)
            raise StoreUnavailable("No answer came.", happened="unknown")
        return done

    monkeypatch.setattr(transactions, "publish", once)
    worker = Imports(branch._core.stores.kv)
    found = wait_for(worker, branch, begin(worker, branch, sources))
    worker.close()
    assert (found.state, found.commit, len(lost)) == ("completed", "", 1)


def test_an_import_that_nobody_ended_is_not_forgotten(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "_references")
    worker = Imports(branch._core.stores.kv)
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)
    clock.advance_s(3 * 86_400)
    assert worker.sweep(clock.now_us()) == 0
    worker.cancel(branch, id)
    held.gate.set()
    worker.close()
    assert open_transactions(branch) == []


def test_a_lost_answer_is_found_by_the_token(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = transactions.publish
    lost: list[Any] = []

    def once(*given: Any) -> Any:
        done = publish(*given)
        if not lost:
            lost.append(done)
            raise StoreUnavailable("No answer came.", happened="unknown")
        return done

    monkeypatch.setattr(transactions, "publish", once)
    worker = Imports(branch._core.stores.kv)
    found = wait_for(worker, branch, begin(worker, branch, sources))
    worker.close()
    assert (found.state, found.commit, imports_in(branch)) == ("completed", lost[0].id, 1)


def test_a_worker_that_ends_leaves_its_imports(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch, "_references")
        ending = Imports(branch._core.stores.kv)
        id = begin(ending, branch, sources)
        assert held.reached.wait(60)
        ending.is_ending = True
        held.gate.set()
        ending.close()
    assert (ending.get(branch, id).state, imports_in(branch)) == ("running", 0)
    with pytest.raises(StrandlineError):
        begin(ending, branch, sources)
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    after = Imports(branch._core.stores.kv)
    assert after.get(branch, id).state == "running"  # it has to see for itself that nobody works on it
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    assert wait_for(after, branch, id).state == "completed"
    after.close()
    clock.advance_s(2 * 86_400)
    assert after.sweep(clock.now_us()) == 1
    with pytest.raises(Refusal):
        after.get(branch, id)


def test_others_commit_meanwhile(branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch) -> None:
    """The import is made anew on what the head is by then: the rest of it stays, its destination is replaced."""
    held = Held(monkeypatch, "before publishing")
    worker = Imports(branch._core.stores.kv)
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)
    branch.put_many({"elsewhere": b"1", "in/c": b"2"})
    branch.commit("meanwhile")
    held.gate.set()
    assert wait_for(worker, branch, id).state == "completed"
    worker.close()
    assert [row.path for row in branch.list()] == ["elsewhere", "in/a", "in/b"]


def test_a_record_is_swapped_only_by_its_run(branch: Branch, sources: list[ImportSource]) -> None:
    worker = Imports(branch._core.stores.kv)
    done = wait_for(worker, branch, begin(worker, branch, sources))
    with pytest.raises(PredicateFailed):
        worker.swap(
            branch, ImportRecord(**{**{f: getattr(done, f) for f in done.__struct_fields__}, "error": "x"}), done
        )
    worker.close()
