"""Jobs on ranges: loading, restoring, moving and exporting, and going on after a death."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import (
    Conflict,
    Corrupted,
    InvalidName,
    LockInvalid,
    LockRejected,
    NotFound,
    RangeLocked,
    StrandlineError,
    UncommittedChanges,
    UsageError,
)
from strandline.kv.memory import MemoryStore
from strandline.repository.jobs import exporting, range_job
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared

FILES = 500


@pytest.fixture(autouse=True)
def _content(first: Client) -> None:
    first.repo.lock_owners.register("ops", "repairs")
    first.main.put_many({"t/old": b"old", "t/1": b"before", "u/1": b"beside"})
    first.main.commit("content")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "m=1").mkdir(parents=True)
    for number in range(FILES):
        (folder / "m=1" / f"{number:03d}").write_bytes(b"%d" % number)
    return folder


@pytest.fixture
def far(tmp_path: Path, clock: ManualClock) -> Client:
    """Another lake."""
    made = Client(Shared(MemoryStore(), clock, tmp_path / "far"), create=True)
    made.repo.lock_owners.register("ops", "repairs")
    return made


def shown(driver: Client) -> dict[str, bytes]:
    return {info.path: driver.main.read(info.path) for info in driver.main.list()}


class Dies(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


class Calls:
    """Counts what a driver asks of both stores, and lets its process die at a call."""

    def __init__(self, driver: Client, monkeypatch: pytest.MonkeyPatch, dies_at: int | None = None) -> None:
        self.driver = driver
        self.blob_calls = 0
        self.dies_at = dies_at
        self.before = len(driver.calls)
        namespace = driver.repo._core.resolver.namespace
        for name in ("put", "get", "head", "list_pages", "delete_many", "open_read"):
            monkeypatch.setattr(namespace, name, self._counted(getattr(namespace, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.blob_calls += 1
            if self.dies_at is not None and self.count >= self.dies_at:
                self.driver.cut_off()
                raise Dies
            return call(*arguments, **options)

        return counted

    @property
    def count(self) -> int:
        return self.blob_calls + len(self.driver.calls) - self.before


def test_a_load_replaces_a_range_at_one_instant_and_once(
    first: Client, second: Client, source: Path, tmp_path: Path
) -> None:
    seen: list[tuple[str, int]] = []

    def look(doing: str, done: int, total: int | None) -> None:
        seen.append((doing, done))
        assert total == FILES
        assert shown(second) == {"t/old": b"old", "t/1": b"before", "u/1": b"beside"}
        with pytest.raises(RangeLocked, match="repairs"):
            second.main.put("t/2", b"x")
        second.main.put("u/1", b"beside")

    done = first.main.range_jobs.load("t/", source, job="j1", owner="ops", destination="t/", progress=look)
    assert (done.objects, done.copied, done.kept, done.deleted) == (FILES, FILES, 0, 2)
    assert [each for each in seen if each[0] == "copying"] == [
        ("copying", at) for at in range(0, FILES, range_job.CHECKPOINT_OBJECTS)
    ]
    found = shown(second)
    assert len(found) == FILES + 1
    assert found["t/m=1/007"] == b"7"
    assert "t/old" not in found
    assert not list(second.main.locks)
    (source / "m=1" / "000").unlink()
    again = second.main.range_jobs.load("t/", source, job="j1", owner="ops", destination="t/")
    assert (again.is_repeat, again.commit) == (True, done.commit)
    assert shown(first) == found
    assert first.main.range_jobs.load("t/", source, job="j2", owner="ops", destination="t/").deleted == 1


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_load_that_is_killed_is_gone_on_with(
    share: float, first: Client, second: Client, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(driver: Client, job: str) -> range_job.RangeResult:
        return driver.main.range_jobs.load("t/", source, job=job, owner="ops", destination="t/")

    with monkeypatch.context() as patch:
        whole = Calls(first, patch)
        load(first, "counted")
    with monkeypatch.context() as patch, pytest.raises(Dies):
        calls = Calls(first, patch, dies_at=round(whole.count * share))
        load(first, "j1")
    [left] = list(second.main.locks)
    assert left.transaction is not None
    with monkeypatch.context() as patch:
        again = Calls(second, patch)
        done = load(second, "j1")
    assert done.copied + done.kept == FILES
    if share == 0.5:
        assert again.count <= 0.6 * whole.count, (again.count, whole.count)
    assert calls.count + again.count < 1.4 * whole.count
    assert len(shown(second)) == FILES + 1
    assert not list(second.main.locks)


def test_a_checkpoint_that_vanishes_while_it_is_read_is_not_gone_on_with(
    first: Client, second: Client, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run has come to an end, and the collector takes its files: the job begins anew."""
    load = {"job": "j1", "owner": "ops", "destination": "t/"}
    with monkeypatch.context() as patch, pytest.raises(Dies):
        Calls(first, patch, dies_at=500)
        first.main.range_jobs.load("t/", source, **load)  # type: ignore[arg-type]
    blobs = second.repo._core.resolver.namespace
    get = blobs.get

    gone: list[str] = []

    def taken_away(key: str) -> bytes:
        if "/checkpoint-" in key:
            blobs.delete_many([key])
            gone.append(key)
        return get(key)

    with monkeypatch.context() as patch:
        patch.setattr(blobs, "get", taken_away)
        done = second.main.range_jobs.load("t/", source, **load)  # type: ignore[arg-type]
    assert len(gone) == 1
    assert (done.copied, done.kept) == (FILES, 0)
    assert not list(second.main.locks)
    assert second.repo.fsck(content=True).is_sound


def test_a_zombie_of_a_job_that_another_has_ended_changes_nothing(
    first: Client, second: Client, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on as if nothing had happened, when its successor has published."""

    def meanwhile(doing: str, done: int, _total: int | None) -> None:
        if done == 64:
            second.main.range_jobs.load("t/", source, job="j1", owner="ops", destination="t/")
            second.main.put("t/m=1/000", b"later")
            second.main.commit("later")

    with pytest.raises(StrandlineError):
        first.main.range_jobs.load("t/", source, job="j1", owner="ops", destination="t/", progress=meanwhile)
    assert shown(second)["t/m=1/000"] == b"later"
    assert not list(second.main.locks)


def test_a_range_is_restored_from_another_ref_without_copying(first: Client, second: Client) -> None:
    first.repo.create_tag("good", "main")
    first.main.put("t/1", b"corrupt")
    first.main.delete("t/old")
    first.main.put("t/new", b"x")
    first.main.commit("oops")
    first.main.put("t/1", b"uncommitted and corrupt")
    first.main.put("u/1", b"goes on")
    done = second.main.range_jobs.restore("t/", "good", job="r1", owner="ops")
    assert (done.objects, done.copied, done.kept, done.deleted) == (2, 0, 2, 1)
    assert shown(first) == {"t/old": b"old", "t/1": b"before", "u/1": b"goes on"}
    assert [change.path for change in first.main.uncommitted()] == ["u/1"]
    assert second.main.range_jobs.restore("t/", "good", job="r1", owner="ops").is_repeat
    with second.main.lock("t/1", owner="ops") as held:
        held.put("t/1", b"y")
        assert [lock.id for lock in first.main.locks] == [held.lock_id]


def test_a_range_is_restored_from_another_lake(first: Client, far: Client) -> None:
    first.main.put("t/e", b"", content_type="x/y", metadata={"k": "v"})
    first.main.commit("more")
    done = far.main.range_jobs.restore(("t/", "u"), first.main, job="r1", owner="ops")
    assert (done.copied, done.bytes) == (3, 9)
    assert shown(far) == {"t/old": b"old", "t/1": b"before", "t/e": b""}
    assert (far.main.stat("t/e").content_type, far.main.stat("t/e").metadata) == ("x/y", {"k": "v"})


def test_a_range_is_moved_to_another_lake_while_both_are_served(first: Client, second: Client, far: Client) -> None:
    def look(_doing: str, _done: int, _total: int | None) -> None:
        assert shown(second)["u/1"] == b"beside"
        with pytest.raises(RangeLocked):
            second.main.put("t/1", b"x")
        far.main.put("elsewhere", b"x")

    done = first.main.range_jobs.move("t/", far.main, job="m1", owner="ops", progress=look)
    assert (done.copied, done.objects) == (2, 2)
    assert shown(second) == {"u/1": b"beside"}
    assert shown(far) == {"t/old": b"old", "t/1": b"before", "elsewhere": b"x"}
    assert not list(second.main.locks)
    assert not list(far.main.locks)
    assert first.main.range_jobs.move("t/", far.main, job="m1", owner="ops").is_repeat
    with pytest.raises(UsageError, match="one repository"):
        first.main.range_jobs.move("t/", first.main.create_branch("work"), job="m2", owner="ops")


def test_a_move_that_dies_at_any_call_loses_nothing(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run of the job ends it, wherever the first one died."""
    for point in range(0, 400, 7):
        one = Client(Shared(MemoryStore(), clock, tmp_path / f"one{point}"), create=True)
        two = Client(Shared(MemoryStore(), clock, tmp_path / f"two{point}"), create=True)
        for made in (one, two):
            made.repo.lock_owners.register("ops", "repairs")
        one.main.put_many({f"t/{number}": b"%d" % number for number in range(3)})
        one.main.commit("content")
        with monkeypatch.context() as patch:
            Calls(one, patch, dies_at=point)
            Calls(two, patch, dies_at=point)
            try:
                one.main.range_jobs.move("t/", two.main, job="m", owner="ops")
                has_died = False
            except (Dies, StrandlineError):
                has_died = True
        for made in (one, two):
            made.connect()
        both = set(shown(one)) | set(shown(two))
        assert both == {"t/0", "t/1", "t/2"}, point
        if has_died:
            clock.advance_s(120)
            one.main.range_jobs.move("t/", two.main, job="m", owner="ops")
        assert shown(two) == {f"t/{number}": b"%d" % number for number in range(3)}, point
        assert shown(one) == {}, point
        assert not list(one.main.locks), point
        assert not list(two.main.locks), point
        if not has_died:
            return


def test_what_is_copied_is_what_its_entry_says(first: Client, far: Client) -> None:
    info = first.main.stat("t/1")
    namespace = first.repo._core.resolver.namespace
    namespace.delete_many([info.physical_address])
    namespace.put(info.physical_address, b"BEFORE")
    with pytest.raises(Corrupted, match="t/1"):
        first.main.range_jobs.move("t/", far.main, job="m1", owner="ops")
    assert shown(far) == {}
    assert not list(far.main.locks)
    assert not list(first.main.locks)


def test_an_export_is_of_one_instant_and_gone_on_with(
    first: Client, second: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"

    def dies(_doing: str, done: int, _total: int | None) -> None:
        with pytest.raises(RangeLocked):
            second.main.put("t/1", b"x")
        if done == 1:
            first.cut_off()
            raise Dies

    with pytest.raises(Dies):
        first.main.range_jobs.export("t/", folder, job="e1", owner="ops", progress=dies)
    assert [lock.mode for lock in second.main.locks] == ["shared"]
    with pytest.raises(UsageError, match="by job 'e1'"):
        second.main.range_jobs.export("t/", folder, job="e2", owner="ops")
    (folder / "t" / "gone").write_bytes(b"of an earlier run")
    done = second.main.range_jobs.export("t/", folder, job="e1", owner="ops")
    assert (done.objects, done.copied, done.kept) == (2, 1, 1)
    assert {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()} == {
        "t/1",
        "t/old",
        exporting.EXPORT_MARK,
    }
    assert (folder / "t" / "1").read_bytes() == b"before"
    assert not list(second.main.locks)


def test_bad_input_of_jobs_changes_nothing(first: Client, source: Path, tmp_path: Path) -> None:
    ranges = first.main.range_jobs
    before = shown(first), first.main.commit_id
    for what, act in (
        (InvalidName, lambda: ranges.load("t/", source, job="", owner="ops", destination="t/")),
        (InvalidName, lambda: ranges.export("t/", tmp_path / "x", job="a\nb", owner="ops")),
        (LockInvalid, lambda: ranges.load("t/", source, job="j", owner="nobody", destination="t/")),
        (LockInvalid, lambda: ranges.load(("t", "s"), source, job="j", owner="ops", destination="t/")),
        (UsageError, lambda: ranges.load("t/", source, job="j", owner="ops")),
        (NotFound, lambda: ranges.load("t/", tmp_path / "nowhere", job="j", owner="ops", destination="t/")),
        (NotFound, lambda: ranges.restore("t/", "nothing", job="j", owner="ops")),
    ):
        with pytest.raises(what):
            act()
    first.main.locks.take("t/1", owner="ops")
    with pytest.raises(LockRejected):
        ranges.load("t/", source, job="j", owner="ops", destination="t/")
    first.main.locks.release_all("ops")
    first.main.put("t/1", b"dirty")
    with pytest.raises(UncommittedChanges):
        ranges.load("t/", source, job="j", owner="ops", destination="t/")
    first.main.discard()
    assert (shown(first), first.main.commit_id) == before
    assert not list(first.main.locks)


def fails_at(calls: int, driver: Client) -> None:
    """The store fails for good after so many swaps of a branch record."""
    left = calls

    def plan(call: str, partition: bytes, _key: bytes) -> Outcome:
        nonlocal left
        if call == "set_if" and b"/refs" in partition:
            left -= 1
        return Outcome.NOT_DONE if left < 0 else Outcome.DONE

    driver.next = plan


def test_a_move_that_is_repeated_deletes_nothing_that_it_has_not_copied(
    first: Client, second: Client, far: Client
) -> None:
    """The first run has published, and failed before it deleted; somebody changes the source, in the same size."""
    for swaps in range(12):
        fails_at(swaps, first)
        with pytest.raises(StrandlineError):
            first.main.range_jobs.move("t/", far.main, job="m1", owner="ops")
        first.connect()
        for lock in second.main.locks:
            second.main.transactions.abort(lock.transaction or 0)
        if shown(far):
            break
    assert shown(far) == {"t/old": b"old", "t/1": b"before"}
    second.main.put("t/old", b"OLD")
    second.main.commit("the same size")
    with pytest.raises(Conflict, match="changed since job 'm1'"):
        first.main.range_jobs.move("t/", far.main, job="m1", owner="ops")
    assert shown(second)["t/old"] == b"OLD"
    assert not list(second.main.locks)


def test_a_job_whose_source_has_changed_begins_anew(
    first: Client, second: Client, far: Client, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first.main.put_many({f"t/{number:03d}": b"old" for number in range(80)})
    first.main.commit("old")

    def dies(_doing: str, done: int, _total: int | None) -> None:
        if done >= 32:
            far.cut_off()
            raise Dies

    with pytest.raises(Dies):
        far.main.range_jobs.restore("t/", first.main, job="r", owner="ops", progress=dies)
    far.connect()
    first.main.put_many({f"t/{number:03d}": b"NEW" for number in range(1, 80)})
    first.main.delete("t/000")
    first.main.commit("new")
    done = far.main.range_jobs.restore("t/", first.main, job="r", owner="ops")
    assert (done.kept, done.copied) == (0, 81)
    assert shown(far) == {path: body for path, body in shown(first).items() if path.startswith("t/")}
    # files of a load that change or go
    with monkeypatch.context() as patch, pytest.raises(Dies):
        Calls(first, patch, dies_at=250)
        first.main.range_jobs.load("t/", source, job="l", owner="ops", destination="t/")
    first.connect()
    (source / "m=1" / "000").unlink()
    (source / "m=1" / "001").write_bytes(b"!")
    done = second.main.range_jobs.load("t/", source, job="l", owner="ops", destination="t/")
    assert done.kept == 0
    found = shown(second)
    assert "t/m=1/000" not in found
    assert found["t/m=1/001"] == b"!"


def test_an_export_of_another_commit_begins_anew(first: Client, second: Client, tmp_path: Path) -> None:
    def dies(_doing: str, done: int, _total: int | None) -> None:
        if done == 1:
            raise Dies

    with pytest.raises(Dies):
        first.main.range_jobs.export("t/", tmp_path / "out", job="e", owner="ops", progress=dies)
    second.main.put_many({"t/1": b"BEFORE", "t/old": b"OLD"})
    second.main.commit("the same sizes")
    second.main.range_jobs.export("t/", tmp_path / "out", job="e", owner="ops")
    assert [(tmp_path / "out" / "t" / name).read_bytes() for name in ("1", "old")] == [b"BEFORE", b"OLD"]
    assert second.main.range_jobs.export("t/", tmp_path / "out", job="e", owner="ops").is_repeat


def test_two_jobs_of_one_owner_do_not_end_each_others_locks(
    first: Client, second: Client, far: Client, tmp_path: Path
) -> None:
    def exports(_doing: str, done: int, _total: int | None) -> None:
        if not done and not (tmp_path / "out").exists():
            second.main.range_jobs.export("t/", tmp_path / "out", job="e", owner="ops")
        with pytest.raises(RangeLocked):
            second.main.put("t/1", b"x")

    first.main.range_jobs.move("t/", far.main, job="m", owner="ops", progress=exports)
    assert shown(far) == {"t/old": b"old", "t/1": b"before"}


def test_a_job_that_is_done_needs_its_source_no_more(first: Client, source: Path) -> None:
    done = first.main.range_jobs.load("t/", source, job="j", owner="ops", destination="t/")
    for file in (source / "m=1").iterdir():
        file.unlink()
    again = first.main.range_jobs.load("t/", source, job="j", owner="ops", destination="t/")
    assert (again.is_repeat, again.commit) == (True, done.commit)


def test_a_job_takes_the_place_of_a_lock_that_is_held(first: Client, second: Client, source: Path) -> None:
    first.repo.create_tag("good", "main")
    lock = first.main.locks.take("t/", owner="ops", mode="quarantine")
    with pytest.raises(LockRejected):
        first.main.range_jobs.restore("t/", "good", job="r", owner="ops")

    def look(_doing: str, _done: int, _total: int | None) -> None:
        with pytest.raises(RangeLocked):
            second.main.put("t/1", b"x")

    first.main.range_jobs.restore("t/", "good", job="r", owner="ops", lock=lock.id, progress=look)
    assert not list(second.main.locks)
    second.main.put("t/1", b"x")


def test_a_move_replaces_nothing_unless_told_to_and_moves_something(first: Client, far: Client) -> None:
    far.main.put("t/theirs", b"x")
    with pytest.raises(Conflict, match="not empty"):
        first.main.range_jobs.move("t/", far.main, job="m", owner="ops")
    with pytest.raises(NotFound, match="nothing in 'v/'"):
        first.main.range_jobs.move("v/", far.main, job="m", owner="ops")
    far.main.commit("theirs")
    first.main.range_jobs.move("t/", far.main, job="m", owner="ops", replace=True)
    assert shown(far) == {"t/old": b"old", "t/1": b"before"}
    with pytest.raises(NotFound):  # under another name, what was moved is not moved away
        first.main.range_jobs.move("t/", far.main, job="m2", owner="ops", replace=True)
    assert shown(far) == {"t/old": b"old", "t/1": b"before"}
