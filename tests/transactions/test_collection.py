"""Collecting garbage: laws N-11 to N-13 and N-20, retention, pins, links, interruptions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.core import promises
from strandline.errors import CommitExpired, Contention, ObjectMissing, UsageError
from strandline.repository.transactions.transaction import Transaction
from strandline.repository.upkeep.garbage import GarbagePlan
from strandline.repository.upkeep.judging import DELETE_KEYS
from strandline.testing.clock import ManualClock
from tests.harness.clients import Client


def blobs(driver: Client, prefix: str = "") -> set[str]:
    return {blob.key for blob in driver.repo._core.resolver.namespace.list(prefix)}


def collect(driver: Client, grace_days: float = 0.0) -> GarbagePlan:
    return driver.repo.gc.run(grace_days=grace_days)


def put(driver: Client, path: str, content: bytes = b"x") -> str:
    return driver.main.put(path, content).physical_address


def age(driver: Client, tmp_path: Path, days: float) -> None:
    """Make all files older."""
    for folder, _, names in os.walk(tmp_path / "data"):
        for name in names:
            place = Path(folder) / name
            moment = place.stat().st_mtime - days * 86_400
            os.utime(place, (moment, moment))


def test_n11_the_deadlist_of_a_committed_one_is_deleted_but_never_what_is_referred_to(first: Client) -> None:
    with first.main.transaction("nightly") as tx:
        tx.put("a", b"1")
        dead = tx.put("b", b"2").physical_address
        live = tx.put("b", b"3").physical_address
    assert tx.result.leftovers == 1
    # a deadlist that names more than it should, and what is gone already
    from strandline.core.manifest import encode_deadlist
    from strandline.core.physical import transaction_folder

    other = put(first, "other")
    folder = transaction_folder(first.main.branch_id, tx.id)
    wrong = encode_deadlist([live, other, tx.data_prefix + "gone"])
    first.repo._core.resolver.namespace.put(f"{folder}deadlist-wrong.parquet", wrong)
    assert first.repo.gc.plan(grace_days=7).dead == 1
    found = collect(first, grace_days=7)
    assert (found.dead, found.orphans, found.files) == (1, 0, 1)
    assert dead not in blobs(first)
    assert {live, other} <= blobs(first)
    assert first.main.read("b") == b"3"
    assert collect(first, grace_days=7).files == 0


def test_n11_nothing_is_deleted_before_the_commit(first: Client) -> None:
    tx = first.main.transaction("nightly").begin()
    tx.put("a", b"1")
    tx.put("a", b"2")
    first.cut_off()
    with pytest.raises(Exception, match="Injected"):
        tx.commit()  # the deadlist is there
    first.connect()
    before = blobs(first)
    assert collect(first).files == 0
    assert blobs(first) == before
    tx.commit()
    assert collect(first, grace_days=7).dead == 1


def test_n12_a_rejected_one_goes_whole_and_is_swept_twice(first: Client, second: Client, tmp_path: Path) -> None:
    other = second.main.transaction("other").begin()
    other.put("o", b"1")
    tx = first.main.transaction("nightly").begin()
    tx.put("a", b"1")
    tx.abort()
    mine = blobs(first, tx.data_prefix)
    assert mine
    assert collect(second, grace_days=7).rejected == 1
    assert not blobs(first, tx.data_prefix)
    assert blobs(first, other.data_prefix)
    # the zombie had one more upload under way
    namespace = first.repo._core.resolver.namespace
    namespace.put(f"{tx.data_prefix}sl_write={'0' * 20}/late/part-0.parquet", b"x")
    assert collect(second, grace_days=7).rejected == 1
    assert not blobs(first, tx.data_prefix)
    assert first.main.transactions[tx.id].state == "rejected-acknowledged"
    from msgspec.structs import replace

    from strandline.branch import transactions
    from strandline.envelope import encode

    key = transactions.key_of(first.main.branch_id, tx.id)
    _, record = transactions.find_record(first.repo._core.stores, first.main.branch_id, tx.id)
    assert record is not None
    assert record.swept_at is not None
    long_ago = replace(record, swept_at=record.swept_at - 8 * 86_400_000_000)
    first.repo._core.stores.kv.set(first.repo._core.stores.records, key, encode(long_ago))
    collect(second, grace_days=7)
    assert first.main.transactions[tx.id].state == "collected"
    other.commit()
    assert first.main.read("o") == b"1"


def test_n13_what_is_open_or_not_acknowledged_stays_however_old(first: Client, second: Client, tmp_path: Path) -> None:
    doomed = first.main.transaction("nightly").begin()
    doomed.put("a", b"1")
    tx = second.main.transaction("nightly").begin()
    tx.put("b", b"2")
    age(first, tmp_path, 100)
    before = blobs(first, "data/")
    for _ in range(2):
        assert collect(second).files == 0
    assert blobs(first, "data/") == before
    tx.commit()
    assert second.main.read("b") == b"2"
    second.main.transactions.acknowledge(doomed.id)
    assert collect(second).rejected == 1


def test_n20_unknown_and_young_files_stay_and_so_does_what_is_kept(first: Client, tmp_path: Path) -> None:
    put(first, "a", b"1")
    first.main.commit("a")
    namespace = first.repo._core.resolver.namespace
    orphan = f"data/{first.main.branch_id}/00000000000000000000"
    namespace.put(orphan, b"x")
    namespace.put("somebody/elses.txt", b"x")
    namespace.put("_strandline/unheard-of", b"x")
    assert first.repo.gc.plan().young == 1
    assert collect(first, grace_days=7).files == 0
    age(first, tmp_path, 8)
    young = f"data/{first.main.branch_id}/00000000000000000001"
    namespace.put(young, b"x")
    found = collect(first, grace_days=7)
    assert (found.files, found.orphans, found.unknown, found.young) == (1, 1, 2, 1)
    assert orphan not in blobs(first)
    assert {young, "somebody/elses.txt", "_strandline/unheard-of"} <= blobs(first)
    assert first.main.read("a") == b"1"


# --- retention --------------------------------------------------------------------------------------------------------


def history(driver: Client, clock: ManualClock, count: int = 4) -> list[str]:
    """Commits a day apart; each replaces the one object."""
    made: list[str] = []
    for number in range(count):
        put(driver, "a", str(number).encode())
        made.append(driver.main.commit(f"day {number}").id)
        clock.advance_s(86_400)
    return made


def test_old_commits_expire_then_their_files_go_and_the_rest_stays(
    first: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.repository.upkeep.garbage.Collector._store_time", lambda self: clock.now_us())
    made = history(first, clock)
    first.repo.create_tag("keep", made[0])
    assert collect(first, grace_days=30).expiring == 0  # without a rule all are kept
    first.repo.gc.set_retention(1.5, {"release-*": None})
    before = len(blobs(first))
    found = first.repo.gc.run(grace_days=0)
    assert (found.expiring, found.expired) == (2, 0)  # the first commit of the repository, and day 1
    with pytest.raises(CommitExpired, match="has expired"):
        first.repo.create_branch("late", made[1])
    with pytest.raises(CommitExpired):
        first.main.revert(made[1])
    clock.advance_s(1)
    monkeypatch.setattr("strandline.repository.upkeep.files.Files.__init__", _old_files(clock))
    found = first.repo.gc.run(grace_days=0)
    assert found.expired == 2
    assert len(blobs(first)) < before
    for id, content in ((made[0], b"0"), (made[2], b"2"), (made[3], b"3")):
        assert first.repo.ref(id).read("a") == content
    with pytest.raises((ObjectMissing, CommitExpired)):
        Client.fresh(first).ref(made[1]).read("a")
    assert first.repo.fsck().is_sound
    assert first.repo.fsck().expired >= 1
    assert [commit.message for commit in first.main.log()][:4] == ["day 3", "day 2", "day 1", "day 0"]


def _old_files(clock: ManualClock) -> Callable[..., None]:
    """Files are dated by the machine; the clock of these tests stands still."""
    from strandline.repository.upkeep.files import Files

    made = Files.__init__

    def init(self: Files, blobs: object) -> None:
        made(self, blobs)  # type: ignore[arg-type]
        self.times[:] = 0

    return init


def test_a_pin_keeps_a_commit_and_ends(first: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.repository.upkeep.garbage.Collector._store_time", lambda self: clock.now_us())
    made = history(first, clock)
    first.repo.gc.set_retention(1)
    monkeypatch.setattr("strandline.repository.upkeep.files.Files.__init__", _old_files(clock))
    old = first.repo.ref(made[1])
    with old.pin() as held:
        for _ in range(3):
            collect(first)
            clock.advance_s(1)
        assert held.read("a") == b"1"
        # what had expired before is wanted again
        assert held.commit_id not in promises.expired(first.repo._core.stores)
    for _ in range(2):
        collect(first)
        clock.advance_s(1)
    with pytest.raises(CommitExpired), old.pin():
        pass
    # a pin of a process that died ends by itself
    promises.put_pin(first.repo._core.stores, first.main.commit_id, "died", days=1)
    stores, now = first.repo._core.stores, clock.now_us()
    assert [pin.why for pin in promises.pins(stores, now)] == ["died"]  # counted from when a collector saw it
    assert [pin.why for pin in promises.pins(stores, now + 86_399 * 10**6)] == ["died"]
    assert promises.pins(stores, now + 86_400 * 10**6) == []


@pytest.mark.parametrize("days", [0, -1, 0.5, float("nan"), float("inf"), 1e300])
def test_a_retention_of_less_than_a_day_is_refused(days: float, first: Client) -> None:
    with pytest.raises(UsageError, match=r"cannot be kept for|expects a number"):
        first.repo.gc.set_retention(days)
    with pytest.raises(UsageError):
        first.repo.gc.set_retention(None, {"x-*": days})
    assert first.repo.gc.retention.days is None


# --- meanwhile --------------------------------------------------------------------------------------------------------


def test_what_is_condemned_cannot_be_linked_and_what_is_linked_is_spared(
    first: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = put(first, "a")
    first.main.commit("a")
    old = first.main.commit_id
    first.main.delete("a")
    first.main.commit("gone")
    first.main.hard_reset("main~2")
    stores = first.repo._core.stores
    keys = pa.array([address])
    record = promises.Condemned("run", 1, 1, stores.clock.now_us())
    promises.write_condemned(stores, record, keys)
    assert promises.condemned(stores) == [record]
    with pytest.raises(ObjectMissing, match="being collected"):
        second.main.copy("a", "b", ref=old)
    assert not second.main.exists("b")
    with pytest.raises(Contention, match="Another run"):
        collect(first)
    promises.end_condemned(stores, record)
    # the other way round: the link was announced first, and is not staged yet
    promises.announce_links(stores, [address])
    promises.write_condemned(stores, record, keys)
    from strandline.repository.upkeep.garbage import Collector

    collector = Collector(first.repo._core, first.repo.gc.retention)
    collector._owner.begin()
    assert collector._finish("run") == 0
    assert address in blobs(first)


def test_a_run_that_died_is_finished_by_the_next(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    namespace = first.repo._core.resolver.namespace
    count = 2 * DELETE_KEYS + 10
    for number in range(count):
        namespace.put(f"data/{first.main.branch_id}/{number:020d}", b"x")
    age(first, tmp_path, 1)
    deleted: list[int] = []
    remove = type(namespace).delete_many

    def dies(self: object, keys: list[str]) -> None:
        if len(keys) > 1:
            deleted.append(len(keys))
            if len(deleted) == 2:
                raise KeyboardInterrupt
        remove(namespace, keys)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(namespace), "delete_many", dies)
        collect(first)
    assert len(blobs(first, "data/")) == count - DELETE_KEYS
    with pytest.raises(Contention):
        collect(second)
    clock.advance_s(601)
    found = collect(second)
    assert found.resumed == count - DELETE_KEYS
    assert blobs(first, "data/") == set()
    assert blobs(first, "_strandline/gc/") == set()


def test_collection_beside_an_open_transaction_and_staged_writes(first: Client, second: Client) -> None:
    put(first, "staged")
    tx = second.main.transaction("nightly").begin()
    tx.put("tx", b"1")
    for _ in range(2):
        assert collect(first).files == 0
    tx.commit()
    assert first.main.read("staged") == b"x"
    assert first.main.read("tx") == b"1"


def test_a_collected_transaction_is_still_recognised(first: Client) -> None:
    def run() -> Transaction:
        with first.main.transaction("nightly", token="today") as tx:
            tx.put("a", b"1")
        return tx

    one = run()
    collect(first)
    collect(first)
    assert first.main.transactions[one.id].state == "collected"
    again = run()
    assert again.is_repeat
    assert again.result.commit == one.result.commit


def test_a_missing_tree_stops_the_collector(first: Client) -> None:
    put(first, "a")
    first.main.commit("a")
    first.repo._core.resolver.namespace.delete_many(blobs(first, "_strandline/metaranges"))
    fresh = Client.fresh(first)
    before = blobs(first)
    with pytest.raises(Exception, match="does not know what else is needed"):
        fresh.gc.run(grace_days=0)
    assert blobs(first) == before


def test_what_an_open_transaction_copied_is_kept_by_the_commit_that_it_began_on(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others put the same bytes elsewhere: no conflict, and only the old commit refers to what was copied."""
    monkeypatch.setattr("strandline.repository.upkeep.garbage.Collector._store_time", lambda self: clock.now_us())
    monkeypatch.setattr("strandline.repository.upkeep.files.Files.__init__", _old_files(clock))
    first.main.put("a", b"the same")
    first.main.commit("a")
    tx = first.main.transaction("job").begin()
    tx.copy("a", "b")
    for act in (lambda: second.main.delete("a"), lambda: second.main.put("a", b"the same")):
        act()
        clock.advance_s(2 * 86_400)
        second.main.commit("a")
    second.repo.gc.set_retention(1)
    for _ in range(4):
        clock.advance_s(2 * 86_400)
        collect(second)
    tx.commit()
    assert second.main.read("b") == b"the same"
    assert second.repo.fsck(content=True).is_sound


def test_a_rule_that_is_loosened_brings_no_files_back(
    first: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was collected stays so, whatever branches and rules there are later; and that is no damage."""
    monkeypatch.setattr("strandline.repository.upkeep.garbage.Collector._store_time", lambda self: clock.now_us())
    history(first, clock)
    first.repo.gc.set_retention(1)
    monkeypatch.setattr("strandline.repository.upkeep.files.Files.__init__", _old_files(clock))
    for _ in range(2):
        collect(first)
        clock.advance_s(1)
    first.repo.gc.set_retention(None, {"release-*": None})
    first.repo.create_branch("release-1", "main")
    for _ in range(3):
        assert collect(first).expired == 0
        clock.advance_s(1)
    assert first.repo.fsck().is_sound
    assert first.main.read("a") == b"3"


@pytest.mark.parametrize("grace", [-1.0, float("inf"), float("nan"), 1e300])
def test_a_grace_is_a_number_of_days(grace: float, first: Client) -> None:
    with pytest.raises(UsageError, match="grace"):
        first.repo.gc.plan(grace_days=grace)
