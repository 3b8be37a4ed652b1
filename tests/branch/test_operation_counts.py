"""How many calls of the key-value store each action makes, so that nobody adds one unseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.errors import NothingToCommit
from strandline.kv.memory import MemoryStore
from strandline.lake import Lake
from strandline.opening import find_or_make
from strandline.redaction import SecretUrl
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.settings import Settings
from strandline.testing.clock import ManualClock
from strandline.testing.counting import CountingStore
from tests.harness.clients import entry, link


class Counted:
    def __init__(self, folder: Path) -> None:
        self.store = CountingStore(MemoryStore())
        settings = Settings(kv=SecretUrl("memory://"), blob=f"file://{folder}", synced=False, committer="t")
        find_or_make(self.store, self.store, settings, ManualClock(), create=True)
        self.lake = Lake(settings, self.store, ManualClock())
        self.repo: Repository = self.lake.create_repository("nyc")
        self.main: Branch = self.repo.branch("main")
        link(self.main, "old", 0)
        self.main.commit("base")
        self.main.find("old")

    def cost(self, action: Callable[[], object]) -> dict[str, int]:
        before = Counter(self.store.calls)
        action()
        return dict(self.store.calls - before)


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def test_a_write_is_one_call(counted: Counted) -> None:
    assert counted.cost(lambda: link(counted.main, "a", 1)) == {"set_many_while": 1}


def test_a_write_to_a_branch_that_others_changed_is_refused_once(counted: Counted) -> None:
    other = Lake(counted.lake._settings, counted.store, ManualClock()).repository("nyc").branch("main")
    link(other, "b", 1)
    other.commit("other")
    assert counted.cost(lambda: link(counted.main, "a", 1)) == {"set_many_while": 2, "get": 1}


def test_a_put_of_bytes_costs_no_more_than_a_write(counted: Counted) -> None:
    assert counted.cost(lambda: counted.main.put("a", b"x")) == {"set_many_while": 1}


def test_a_bulk_write_is_one_call_for_each_thousand(counted: Counted) -> None:
    # one that is larger than a call reads the branch first, so that it is refused whole
    entries = [(f"k{i}", entry(i)) for i in range(5_000)]
    assert counted.cost(lambda: counted.main.stage_each(entries)) == {"get": 1, "set_many_while": 5}
    assert counted.cost(lambda: counted.main.stage_each(entries[:1_000])) == {"set_many_while": 1}


def test_a_conditional_write(counted: Counted) -> None:
    # read the branch, look in the staging token and in each sealed one, swap, read the branch
    assert counted.cost(lambda: counted.main.put("n", b"x", create=True)) == {"get": 3, "set_if": 1}


def test_a_read_of_a_committed_path_of_a_branch(counted: Counted) -> None:
    # the staging token, and the branch
    assert counted.cost(lambda: counted.main.find("old")) == {"get": 2}


def test_a_read_of_a_committed_ref_asks_the_store_for_nothing(counted: Counted) -> None:
    ref = counted.repo.ref("main@")
    assert counted.cost(lambda: ref.find("old")) == {}


def test_a_delete_of_a_committed_path(counted: Counted) -> None:
    assert counted.cost(lambda: counted.main.delete("old")) == {"get": 3, "set_many_while": 1}


def test_a_bulk_delete_of_any_size(counted: Counted) -> None:
    assert counted.cost(lambda: counted.main.delete_many(f"k{i}" for i in range(5_000))) == {
        "get": 1,
        "set_many_while": 5,
    }


def test_a_listing_page_is_a_scan_and_a_read_of_the_branch(counted: Counted) -> None:
    assert counted.cost(lambda: list(counted.main.list())) == {"scan_page": 1, "get": 1}


def test_a_lone_commit(counted: Counted) -> None:
    link(counted.main, "a", 1)
    # read, look whether anything is staged, seal, scan, read again, commit record with queue item, swap
    assert counted.cost(lambda: counted.main.commit("c")) == {"get": 2, "set_if": 2, "scan_page": 2, "set_many": 1}


def test_a_commit_of_a_compacted_base_costs_the_same(counted: Counted) -> None:
    link(counted.main, "a", 1)
    link(counted.main, "b", 1)
    counted.main.discard("b")
    assert counted.cost(lambda: counted.main.commit("c")) == {"get": 2, "set_if": 2, "scan_page": 1, "set_many": 1}


def test_an_atomic_put(counted: Counted) -> None:
    # read the branch, intent, entries, look at the intent, seal and attach in one swap, take the intent away
    assert counted.cost(lambda: counted.main.stage_atomically([("a", entry(1)), ("b", entry(2))])) == {
        "get": 2,
        "set_if": 1,
        "set": 1,
        "set_many": 1,
        "delete": 1,
    }


def test_an_atomic_rename(counted: Counted) -> None:
    # seal (read, swap), look in each layer, link record, is it condemned, read again, intent, entries, look at the
    # intent, swap, intent away
    assert counted.cost(lambda: counted.main.rename("old", "new")) == {
        "get": 4,
        "set_if": 2,
        "set": 1,
        "set_many": 2,
        "scan_page": 1,
        "delete": 1,
    }


def test_a_new_branch(counted: Counted) -> None:
    # repository, head of the source, pin, has it expired, name, swap, pin away, repository again, the branch, swap
    assert counted.cost(lambda: counted.main.create_branch("b")) == {"get": 6, "set_if": 2, "set": 1, "delete": 1}


def test_a_merge(counted: Counted) -> None:
    work = counted.main.create_branch("work")
    link(work, "w", 1)
    work.commit("w")
    # resolve the source, its head, pin, has it expired, the branch, look whether anything is staged, commit record,
    # swap, pin away
    assert counted.cost(lambda: counted.main.merge("work")) == {
        "get": 4,
        "set": 1,
        "scan_page": 1,
        "set_many": 1,
        "set_if": 1,
        "delete": 1,
    }


def test_a_ref_expression(counted: Counted) -> None:
    assert counted.cost(lambda: counted.repo.ref("main~1")) == {"get": 1}


def test_a_full_commit_id_is_known_from_memory(counted: Counted) -> None:
    head = counted.main.commit_id
    assert counted.cost(lambda: counted.repo.ref(head).find("old")) == {}
    unseen = Lake(counted.lake._settings, counted.store, ManualClock()).repository("nyc")
    assert counted.cost(lambda: unseen.ref(head)) == {"get": 1}
    assert counted.cost(lambda: unseen.ref(head)) == {}


def test_a_commit_that_finds_nothing_swaps_nothing(counted: Counted) -> None:
    """Else idle committers would hold up whoever computes a change from the layers. The second get reads the record
    again: what was scanned may have been folded and emptied."""

    def commit() -> None:
        with pytest.raises(NothingToCommit):
            counted.main.commit("c")

    assert counted.cost(commit) == {"get": 2, "scan_page": 1}
