"""Writes that a store guards: many at once, in parts, and what a seal or a lock between two parts makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from strandline.branch.staging import GUARDED_ATTEMPTS
from strandline.errors import RangeLocked, StoreUnavailable
from strandline.kv.store import GUARDED_MAX_BYTES, Store
from strandline.testing.faults import Outcome
from strandline.tree.rows import user_metadata_json
from tests.harness.clients import Client, content, entry, link, shown

GUARDED = "set_many_while"
PART = Store.guarded_max_pairs
"""What these clients' store guards at once."""


@pytest.mark.parametrize("call", [GUARDED, "set_many"])
def test_a_bulk_write_whose_token_is_sealed_meanwhile_is_written_again_as_a_whole(
    one: Client, two: Client, call: str
) -> None:
    one.store.guards = call == GUARDED
    link(one.main, "warm", 0)
    one.before(call, 1, lambda: two.main.commit("other"))
    one.main.stage_each([(f"k{i}", entry(i)) for i in range(10)])
    assert len(list(two.main.uncommitted())) == 10


def test_a_large_bulk_write_goes_on_from_the_part_that_was_refused(one: Client, two: Client) -> None:
    link(one.main, "warm", 0)
    one.before(GUARDED, 2, lambda: two.main.commit("other"))
    entries = [(f"k{i:04d}", entry(i)) for i in range(2 * PART + 1)]
    one.calls.clear()
    assert one.main.stage_each(entries) == len(entries)
    assert [key for call, _, key in one.calls if call == GUARDED] == [b"k0000", b"k1000", b"k1000", b"k2000"]
    assert len(list(two.main.uncommitted())) == len(entries) - PART
    assert len(shown(two)) == len(entries) + 1


def test_a_bulk_write_of_large_entries_goes_in_parts_that_a_store_guards(one: Client) -> None:
    for width, parts in ((2_000, 1), (9_000, 3)):
        text = user_metadata_json({"text": "x" * width})
        one.calls.clear()
        one.main.stage_each([(f"k{i}", replace(entry(i), user_metadata=text)) for i in range(PART)])
        assert len([call for call, _, _ in one.calls if call == GUARDED]) == parts
        assert len(shown(one)) == PART


def test_a_bulk_write_that_fails_in_its_second_part_says_that_the_first_is_there(one: Client) -> None:
    one.meet(GUARDED, 2, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable) as failed:
        one.main.stage_each([(f"k{i:04d}", entry(i)) for i in range(PART + 1)])
    assert failed.value.happened == "unknown"
    assert "A part" in failed.value.safe
    assert len(shown(one)) == PART


def test_a_bulk_write_that_is_refused_in_its_second_part_says_that_the_first_is_there(one: Client, two: Client) -> None:
    two.repo.lock_owners.register("ops", "tests")
    one.before(GUARDED, 2, lambda: two.main.locks.take("k1", owner="ops"))
    with pytest.raises(RangeLocked) as refused:
        one.main.stage_each([(f"k{i:04d}", entry(i)) for i in range(PART + 1)])
    assert "A part" in str(refused.value)
    assert "Nothing was changed" not in str(refused.value)
    assert len(shown(two)) == PART
    with pytest.raises(RangeLocked, match="Nothing was changed"):
        one.main.stage_each([("k1", entry(1))])


def test_a_bulk_write_that_meets_a_lock_from_before_is_refused_whole(one: Client, two: Client) -> None:
    two.repo.lock_owners.register("ops", "tests")
    link(one.main, "warm", 1)
    two.main.locks.take("z", owner="ops")
    with pytest.raises(RangeLocked, match="Nothing was changed"):
        one.main.stage_each([(f"k{i:04d}", entry(i)) for i in range(PART)] + [("z", entry(1))])
    assert shown(two) == ["warm"]


def test_parts_of_uneven_entries_are_bounded(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    store = type(one.store)
    guarded = store.set_many_while

    def counted(self: Any, partition: bytes, pairs: Any, guard: Any) -> Any:
        sizes.append(sum(len(key) + len(value) for key, value in pairs))
        return guarded(self, partition, pairs, guard)

    monkeypatch.setattr(store, "set_many_while", counted)
    wide = user_metadata_json({"text": "x" * 60_000})
    entries = [(f"k{i:04d}", replace(entry(i), user_metadata=wide if i < 200 else None)) for i in range(PART)]
    one.main.stage_each(entries)
    assert max(sizes) <= GUARDED_MAX_BYTES
    assert len(shown(one)) == PART


def test_a_write_from_an_old_record_lands_in_no_token_of_that_record(one: Client, two: Client) -> None:
    link(one.main, "warm", 0)
    old = one.main._cell.read().branch.staging_token
    two.main.commit("other")
    one.calls.clear()
    link(one.main, "a", 1)
    assert [call for call, _, _ in one.calls] == [GUARDED, "get", GUARDED]
    stores = one.main._core.stores
    assert [key for key, _ in stores.kv.scan(stores.staging(old))] == [b"warm"]
    assert content(two.main, "a") == "1"


def test_a_branch_that_always_changes_before_a_guarded_write_is_written_to_without_a_guard(
    one: Client, two: Client
) -> None:
    two.repo.lock_owners.register("ops", "tests")

    def disturb() -> None:
        two.main.locks.release(two.main.locks.take("other/", owner="ops").id)
        one.before(GUARDED, 1, disturb)

    one.before(GUARDED, 1, disturb)
    one.calls.clear()
    link(one.main, "a", 1)
    mine = [call for call, partition, _ in one.calls if b"/staging/" in partition]
    assert mine == [GUARDED] * GUARDED_ATTEMPTS + ["set_many"]
    assert content(two.main, "a") == "1"


def test_a_write_that_an_old_record_forbids_is_judged_by_the_newest(one: Client, two: Client) -> None:
    two.repo.lock_owners.register("ops", "tests")
    lock = two.main.locks.take("dir/", owner="ops")
    with pytest.raises(RangeLocked):
        link(one.main, "dir/a", 1)
    two.main.locks.release(lock.id)
    link(one.main, "dir/a", 1)
    assert content(two.main, "dir/a") == "1"
