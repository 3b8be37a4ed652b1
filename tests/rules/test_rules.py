"""Rules of the protocols that nothing noticed when they were taken out: a schedule for each, as short as it can be.

Each of them has a mutation in `tests/mutations/rules`, under which its test must fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from strandline.blob.local import LocalBlobStore
from strandline.branch import transactions
from strandline.branch.attempts import update
from strandline.branch.rules import writers
from strandline.branch.rules.record import BranchRecord, WriterRecord, seal
from strandline.branch.view import uncommitted
from strandline.core import promises
from strandline.core.retention import DAY_US
from strandline.envelope import decode, encode
from strandline.errors import Conflict, ObjectMissing, StoreUnavailable
from strandline.ids import StagingToken, new_id
from strandline.kv.memory import MemoryStore
from strandline.repository.transactions.claims import Claims
from strandline.repository.upkeep.garbage import Collector
from strandline.shards.log.blob_consensus import BlobConsensus
from strandline.shards.log.kv_consensus import KvConsensus
from strandline.testing.clock import ManualClock
from strandline.testing.faults import FaultyStore, Outcome
from tests.harness.clients import Client, Shared, content, link


@pytest.fixture
def drivers(tmp_path: Path, clock: ManualClock) -> tuple[Client, Client]:
    kv = MemoryStore()
    return Client(Shared(kv, clock, tmp_path / "blobs"), create=True), Client(Shared(kv, clock, tmp_path / "blobs"))


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


# --- attaching and sweeping


def test_an_attach_lies_beneath_what_was_staged_since_it_was_computed(one: Client, two: Client) -> None:
    link(one.main, "a", "old")

    def put_then_seal() -> None:
        link(two.main, "a", "new")
        update(two.main._at, lambda branch: seal(branch, StagingToken(new_id())))

    one.before("set_if", 2, put_then_seal)
    one.main.rename("a", "b")
    assert (content(two.main, "a"), content(two.main, "b")) == ("new", "old")


def test_a_private_token_is_condemned_before_its_attach_is_fenced(one: Client, two: Client) -> None:
    reached, again, go, last = (threading.Event() for _ in range(4))
    one.before("set_if", 1, lambda: (reached.set(), go.wait(10)))
    one.before("set_if", 2, lambda: (again.set(), last.wait(10)))

    def attach() -> None:
        one.main.put_many({"x": b"1"})
        again.set()

    attacher = in_thread(attach)
    assert reached.wait(10)
    # right before it condemns: the attacher goes on until it is about to swap once more, or is done
    two.before("set", 1, lambda: (go.set(), again.wait(10)))
    two.repo.sweep(after_s=0, private_after_s=0)
    last.set()
    attacher.join(10)
    assert two.main.read("x") == b"1"


def test_a_staging_token_is_on_record_for_the_sweeper(one: Client, two: Client) -> None:
    link(one.main, "a", "live")
    two.meet("set_if", 1, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable):
        two.main.discard()  # it dies between its queue item and its swap
    for _ in range(3):
        one.repo.sweep(after_s=0, again_after_s=0, private_after_s=0)
    assert content(one.main, "a") == "live"


# --- logs of shards


def test_a_record_that_was_truncated_away_is_not_reported_as_won(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path, synced=False)
    slow, other = BlobConsensus(blobs, "log"), BlobConsensus(LocalBlobStore(tmp_path, synced=False), "log")
    assert slow.compare_and_set("k", 1, b"1")
    assert slow.compare_and_set("k", 2, b"2")
    put = blobs.put

    def overtaken(key: str, data: bytes, mode: str = "overwrite") -> None:
        blobs.put = put  # type: ignore[method-assign]
        assert other.compare_and_set("k", 3, b"three of the other")
        assert other.compare_and_set("k", 4, b"4")
        other.truncate("k", 4)
        put(key, data, mode)  # type: ignore[arg-type]

    blobs.put = overtaken  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable) as unknown:
        slow.compare_and_set("k", 3, b"three of the slow one")
    assert unknown.value.happened == "unknown"
    assert [record.data for record in other.scan("k", 1)] == [b"4"]


def test_history_is_deleted_only_when_the_head_says_so() -> None:
    kv = FaultyStore(MemoryStore())
    log = KvConsensus(kv, b"logs")
    for seqno in range(1, 60):
        assert log.compare_and_set("k", seqno, b"x" * 4_000)
    before = len([key for key, _ in kv.scan(b"logs", b"k/log/", b"k/log0")])
    kv.plan = lambda call, partition, key: Outcome.NOT_DONE if call == "set_if" else Outcome.DONE
    with pytest.raises(StoreUnavailable):
        log.truncate("k", 50)
    kv.plan = lambda call, partition, key: Outcome.DONE
    assert len([key for key, _ in kv.scan(b"logs", b"k/log/", b"k/log0")]) == before
    assert before > 20


# --- transactions


def test_a_grant_is_looked_for_on_the_branch_first(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    tx = first.main.transaction("job", "published").begin()
    tx.put("a", b"1")
    done: list[str] = []
    published: list[str] = []

    def plan(call: str, partition: bytes, key: bytes) -> Outcome:
        done.append(call)
        if len([one for one in done if one == "get"]) == 2:  # between the two reads
            second.next = lambda *_: Outcome.DONE
            published.append(tx.commit().commit)
            with first.main.transaction("job", "its successor") as other:
                other.put("b", b"2")
        return Outcome.DONE

    second.next = plan
    found = transactions.granted(second.main._at, "job", tx.id)
    assert found in (None, *published)


def test_what_is_remembered_of_a_writer_is_never_older(drivers: tuple[Client, Client]) -> None:
    stores, branch_id = drivers[0].repo._core.stores, drivers[0].main.branch_id
    newer, older = (
        WriterRecord(started=9, committed=9, position="new"),
        WriterRecord(started=3, committed=3, position="old"),
    )
    transactions._push_off(stores, branch_id, "job", newer)
    transactions._push_off(stores, branch_id, "job", older)
    assert transactions.remembered(stores, branch_id, "job") == newer


def test_a_begin_writes_down_what_it_takes_off_before_its_swap(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    tx = first.main.transaction("job", "published").begin()
    tx.put("a", b"1")
    first.lose("set_if", b"/records", outcome=Outcome.NOT_DONE)  # its driver dies before it writes down the end
    tx.commit()
    first.connect()
    second.calls.clear()
    second.main.transaction("job", "the next").begin()
    swaps = [partition.rpartition(b"/")[2] for call, partition, key in second.calls if call == "set_if"]
    settled = next(at for at, (call, _, key) in enumerate(second.calls) if call == "set_if" and key.startswith(b"txn/"))
    swapped = next(at for at, (call, part, _) in enumerate(second.calls) if call == "set_if" and part.endswith(b"refs"))
    assert swaps
    assert settled < swapped


def test_a_resumed_transaction_keeps_its_guards(drivers: tuple[Client, Client], tmp_path: Path) -> None:
    first, second = drivers
    first.main.put("t/a", b"1")
    first.main.commit("a")
    tx = first.main.transaction("job", "overwrites t/").begin()
    tx.delete_prefix("t/")
    tx.save(tmp_path / "saved")
    second.main.put("t/b", b"2")
    second.main.commit("somebody adds to it")
    resumed = second.main.resume(tmp_path / "saved")
    with pytest.raises(Conflict, match="t/b"):
        resumed.commit()


@pytest.mark.parametrize("judge", ["committed", "staged"])
def test_exact_paths_are_judged(drivers: tuple[Client, Client], judge: str) -> None:
    main = drivers[0].main
    main.put("exact", b"1")
    part = uncommitted(main._at)
    claims = Claims(exact={"exact"})
    found = claims.judge_committed([part])[0] if judge == "committed" else claims.judge_staged(part)
    assert found == ["exact"]


def test_an_open_writer_is_forgotten_last(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "MAX_WRITERS", 2)
    held = {"open": WriterRecord(started=5), "idle": WriterRecord(started=7, committed=7)}
    branch: BranchRecord = replace(one.main._cell.read().branch, writers=held)
    assert writers.to_forget(branch, "new") == "idle"


# --- the collector


def garbage(driver: Client) -> str:
    """The key of bytes that nothing refers to."""
    info = driver.main.put("gone", b"1")
    driver.main.discard()
    return info.physical_address


def stopped_before_deleting(driver: Client) -> tuple[Collector, threading.Event, threading.Event, threading.Thread]:
    """A run that has decided what goes, and has not deleted it yet: go on with the second event."""
    reached, go = threading.Event(), threading.Event()

    collector = Collector(driver.repo._core, driver.repo.gc.retention, before_us=2**62)
    blobs = driver.repo._core.stores.trees.blobs.own
    delete = blobs.delete_many

    def stop(keys: Iterable[str]) -> None:
        listed = list(keys)
        if any(key.startswith("data/") for key in listed):
            reached.set()
            go.wait(10)
        delete(listed)

    blobs.delete_many = stop  # type: ignore[method-assign]
    return collector, reached, go, threading.Thread(target=lambda: outcome(collector.run))


def outcome(run: Callable[[], object]) -> object:
    try:
        return run()
    except Exception as error:
        return error


def test_a_link_is_announced_before_the_linker_looks_what_is_condemned(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    key = garbage(first)
    _, reached, go, thread = stopped_before_deleting(first)

    def plan(call: str, partition: bytes, name: bytes) -> Outcome:
        if call == "set_many" and not thread.ident:
            thread.start()
            assert reached.wait(10)
        return Outcome.DONE

    second.next = plan
    try:
        with pytest.raises(ObjectMissing):
            second.main.link("again", key, size=1, checksum="c")
    finally:
        go.set()
        thread.join(10)


def test_what_a_run_deletes_is_decided_once(drivers: tuple[Client, Client], clock: ManualClock) -> None:
    """Another collector, whose clock is ahead, takes a live run over; a link that came in between loses nothing."""
    first, second = drivers
    key = garbage(first)
    _, reached, go, thread = stopped_before_deleting(first)
    thread.start()
    assert reached.wait(10)
    with pytest.raises(ObjectMissing):
        second.main.link("again", key, size=1, checksum="c")  # announced by now, and refused
    clock.advance_s(promises.RUN_IS_DEAD_S + 1)
    second.repo.gc.run(grace_days=0)
    linked = outcome(lambda: second.main.link("again", key, size=1, checksum="c"))
    go.set()
    thread.join(10)
    if not isinstance(linked, Exception):
        assert second.main.read("again") == b"1"
    assert second.repo.fsck(content=True).is_sound


def test_a_late_write_brings_no_ended_run_back(drivers: tuple[Client, Client]) -> None:
    stores = drivers[0].repo._core.stores
    import pyarrow as pa

    record = promises.Condemned("run", 1, 1, 0)
    raw = promises.write_condemned(stores, record, pa.array(["data/x"]))
    promises.end_condemned(stores, record)
    assert promises.advance_condemned(stores, raw, replace(record, done=1)) is None
    assert promises.condemned(stores) == []


def test_links_stay_for_two_graces(drivers: tuple[Client, Client]) -> None:
    stores = drivers[0].repo._core.stores
    now = Collector(drivers[0].repo._core, drivers[0].repo.gc.retention)._now
    record = promises.Link(("data/x",), now - round(10.5 * DAY_US))
    stores.kv.set(stores.records, b"link/x", encode(record))
    drivers[0].repo.gc.run(grace_days=7)
    assert stores.kv.get(stores.records, b"link/x") is not None
    stores.kv.set(stores.records, b"link/x", encode(replace(record, seen_at=now - 15 * DAY_US)))
    drivers[0].repo.gc.run(grace_days=7)
    assert stores.kv.get(stores.records, b"link/x") is None


def test_expired_files_stay_for_a_grace(drivers: tuple[Client, Client]) -> None:
    driver = drivers[0]
    stores = driver.repo._core.stores
    driver.main.put("a", b"1")
    gone = driver.main.commit("goes").id
    driver.main.hard_reset("main~1")
    now = Collector(driver.repo._core, driver.repo.gc.retention)._now
    for days, swept in ((6.0, False), (8.0, True)):
        promises.put_expired(stores, [gone], promises.Expired("run", now - round(days * DAY_US)))
        found = Collector(driver.repo._core, driver.repo.gc.retention, grace_days=7)._history({}, [])
        assert (gone in found.gone) == swept


def test_the_token_of_a_job_is_kept_by_the_object_stores_clock(
    drivers: tuple[Client, Client], clock: ManualClock
) -> None:
    first, second = drivers
    with first.main.transaction("job", "once", token="today") as tx:
        tx.put("a", b"1")
    with first.main.transaction("job", "the next one", token="tomorrow") as other:
        other.put("b", b"1")
    for _ in range(3):
        second.repo.gc.run(grace_days=0)
    clock.advance_s(31 * 86_400)  # of the collector, which is ahead
    for _ in range(3):
        second.repo.gc.run(grace_days=0)
    with second.main.transaction("job", "once", token="today") as again:
        again.put("a", b"2")
    assert again.is_repeat
    # and when the days have passed by the clock that counts, it goes
    stores = first.repo._core.stores
    for key, record in list(transactions.records_of(stores)):
        raw = stores.kv.get(stores.records, key)
        assert raw is not None
        assert record.seen_ended_at is not None or record.state != "collected"
        if record.seen_ended_at is not None:
            old = replace(record, seen_ended_at=record.seen_ended_at - 31 * DAY_US)
            stores.kv.set(stores.records, key, encode(old))
            decode(transactions.TransactionRecord, encode(old), "a transaction")
    second.repo.gc.run(grace_days=0)
    assert transactions.published(first.main._at, "job", "today") is None
