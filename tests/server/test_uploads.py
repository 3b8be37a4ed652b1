"""Multipart uploads: parts in any order, several attempts, several workers, late writers, and what is refused."""

from __future__ import annotations

import hashlib
import io
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.core.upload_records import LASTS_US, PARTS, UPLOADS
from strandline.errors import PreconditionFailed, StoreUnavailable, StrandlineError
from strandline.lake import open_lake
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.server.refusals import Refusal
from strandline.server.uploads import (
    PART_MIN_BYTES,
    REMEMBERED_US,
    TAKEN_OVER_AFTER_US,
    Uploads,
)
from strandline.settings import find_settings
from strandline.testing.clock import ManualClock

SIZE = PART_MIN_BYTES


@pytest.fixture(params=["folder", "memory"])
def branch(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    place = tmp_path / "lake" if request.param == "folder" else "memory://"
    with strandline.open(place, create=True, synced=False) as lake:
        yield lake.repository("repo", create=True).branch("main")


def part(n: int, size: int = SIZE) -> bytes:
    return bytes([n % 251]) * size


def put(uploads: Uploads, branch: Branch, id: str, n: int, data: bytes, size: int | None = None) -> str:
    return uploads.put(branch, "x", id, n, io.BytesIO(data), len(data) if size is None else size).md5


def uploads_of(branch: Branch) -> Uploads:
    return Uploads(branch._core.stores.kv)


def begun(branch: Branch) -> tuple[Uploads, str]:
    uploads = uploads_of(branch)
    return uploads, uploads.begin(branch, "x", "me", "text/plain", '{"k":"v"}').id


def files(branch: Branch) -> set[str]:
    return set(branch._core.resolver.namespace.list_keys("data/"))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_parts_in_any_order(branch: Branch, order: tuple[int, ...]) -> None:
    uploads, id = begun(branch)
    held = {1: part(1), 2: part(2), 3: b"the end"}
    md5 = {n: put(uploads, branch, id, n, held[n]) for n in order}
    done = uploads.complete(branch, "x", id, [(n, md5[n]) for n in (1, 2, 3)])
    assert holds(branch, *(held[n] for n in (1, 2, 3)))
    expected = hashlib.md5(b"".join(bytes.fromhex(md5[n]) for n in (1, 2, 3))).hexdigest()
    assert done.etag == f"{expected}-3"
    info = branch.stat("x")
    assert (info.content_type, info.metadata, info.checksum) == ("text/plain", {"k": "v"}, f"etag:{done.etag}")
    assert files(branch) == {info.physical_address}  # nothing is left of the parts
    assert uploads.complete(branch, "x", id, [(n, md5[n]) for n in (1, 2, 3)]) == done  # the same answer
    for others in ([(1, md5[1])], [(1, "deadbeef"), (2, md5[2]), (3, md5[3])], [(1, "no tag")]):
        with pytest.raises(Refusal, match="completed with other parts"):
            uploads.complete(branch, "x", id, others)


def test_on_a_disk_completing_cuts_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        uploads, id = begun(branch)
        md5 = [put(uploads, branch, id, n, part(n)) for n in (1, 2, 3)]
        before = files(branch)
        assert len(before) == 1
        blobs = branch._core.resolver.namespace
        monkeypatch.setattr(blobs, "put", lambda *_: pytest.fail("bytes were copied"))
        uploads.complete(branch, "x", id, [(n + 1, md5[n]) for n in range(3)])
        assert files(branch) == before
        monkeypatch.undo()
        assert holds(branch, part(1), part(2), part(3))


def test_parts_that_come_again(branch: Branch) -> None:
    """The last one counts, and what is not named is left out."""
    uploads, id = begun(branch)
    put(uploads, branch, id, 1, part(9))
    md5 = {n: put(uploads, branch, id, n, part(n, SIZE + n)) for n in (1, 3, 5, 8)}
    uploads.complete(branch, "x", id, [(n, md5[n]) for n in (1, 5, 8)])
    assert holds(branch, part(1, SIZE + 1), part(5, SIZE + 5), part(8, SIZE + 8))
    # the first attempt at part 1 may be garbage, which a collection finds: somebody may just have been reading it
    assert branch.stat("x").physical_address in files(branch)
    assert len(files(branch)) <= 2


def test_what_is_refused(branch: Branch) -> None:
    uploads, id = begun(branch)
    md5 = [put(uploads, branch, id, n, part(n)) for n in (1, 2)]
    small = put(uploads, branch, id, 3, b"small")
    cases: list[tuple[list[tuple[int, str]], str]] = [
        ([], "MalformedXML"),
        ([(2, md5[1]), (1, md5[0])], "InvalidPartOrder"),
        ([(1, md5[0]), (1, md5[0])], "InvalidPartOrder"),
        ([(1, md5[1])], "InvalidPart"),
        ([(7, md5[0])], "InvalidPart"),
        ([(3, small), (4, small)], "InvalidPart"),
    ]
    for wanted, code in cases:
        with pytest.raises(StrandlineError) as caught:
            uploads.complete(branch, "x", id, wanted)
        assert caught.value.s3_code == code  # type: ignore[attr-defined]
    again = put(uploads, branch, id, 4, b"last")
    with pytest.raises(StrandlineError) as caught:
        uploads.complete(branch, "x", id, [(3, small), (4, again)])
    assert caught.value.s3_code == "EntityTooSmall"  # type: ignore[attr-defined]
    for path, other in (("y", id), ("x", "0" * 40), ("x", "../" + id)):
        with pytest.raises(StrandlineError) as caught:
            uploads.complete(branch, path, other, [(1, md5[0])])
        assert caught.value.s3_code == "NoSuchUpload"  # type: ignore[attr-defined]
    for n in (0, 10_001, -1):
        with pytest.raises(StrandlineError):
            put(uploads, branch, id, n, b"x")
    assert not branch.exists("x")
    uploads.complete(branch, "x", id, [(1, md5[0]), (3, small)])
    assert holds(branch, part(1), b"small")
    for call in (lambda: put(uploads, branch, id, 5, b"late"), lambda: uploads.abort(branch, "x", id)):
        with pytest.raises(StrandlineError) as caught:
            call()
        assert caught.value.s3_code == "NoSuchUpload"  # type: ignore[attr-defined]


def test_a_part_that_is_longer_than_it_says_spoils_nothing(branch: Branch) -> None:
    uploads, id = begun(branch)
    md5 = {n: put(uploads, branch, id, n, part(n)) for n in (1, 3)}
    with pytest.raises(StrandlineError):
        put(uploads, branch, id, 2, part(2, SIZE + 9), size=SIZE)
    md5[2] = put(uploads, branch, id, 2, part(2))
    uploads.complete(branch, "x", id, [(n, md5[n]) for n in (1, 2, 3)])
    assert holds(branch, part(1), part(2), part(3))


def test_a_lock_refuses_and_the_upload_stays(branch: Branch) -> None:
    uploads, id = begun(branch)
    md5 = put(uploads, branch, id, 1, part(1))
    repository = branch._core
    from strandline.repository.repository import Repository

    Repository(repository).protect("main", block=["stage"])
    with pytest.raises(StrandlineError):
        uploads.complete(branch, "x", id, [(1, md5)])
    Repository(repository).unprotect("main")
    uploads.complete(branch, "x", id, [(1, md5)])
    assert holds(branch, part(1))


def test_aborting_deletes_the_bytes(branch: Branch) -> None:
    uploads, id = begun(branch)
    put(uploads, branch, id, 1, part(1))
    put(uploads, branch, id, 2, part(2, SIZE + 1))
    uploads.abort(branch, "x", id)
    assert not files(branch)
    assert not list(branch._core.stores.kv.scan(UPLOADS))


def test_of_two_that_complete_both_get_the_answer(branch: Branch) -> None:
    uploads, id = begun(branch)
    wanted = [(n, put(uploads, branch, id, n, part(n))) for n in (1, 2)]
    answers: list[Any] = []

    def complete() -> None:
        try:
            answers.append(uploads.complete(branch, "x", id, wanted).etag)
        except StrandlineError as error:  # pragma: no cover - says which in the assertion
            answers.append(error)

    threads = [threading.Thread(target=complete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(str, answers))) == 1, answers
    assert holds(branch, part(1), part(2))


def holds(branch: Ref, *parts: bytes) -> bool:
    """Whether `x` is made of these; compared here, as pytest looks for the difference of such values for minutes."""
    return branch.read("x") == b"".join(parts)


class Late(io.RawIOBase):
    """A part that comes when it is let. `asked` is set once somebody reads it, which is after its slot is claimed."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.asked = threading.Event()
        self.left = [part(200, 1 << 20)] * 5

    def read(self, size: int = -1) -> bytes:
        self.asked.set()
        self.gate.wait(10)
        return self.left.pop() if self.left else b""


def put_late(branch: Branch, id: str, number: int, gate: threading.Event) -> None:
    body: Any = Late(gate)
    with suppress(StrandlineError):
        uploads_of(branch).put(branch, "x", id, number, body, SIZE)


def test_late_writers_change_no_object(branch: Branch) -> None:
    """A part that is still coming while its upload is completed, at each moment of its way."""
    seeds = random.Random(7)
    for round in range(12):
        uploads, id = begun(branch)
        wanted = [(n, put(uploads, branch, id, n, part(n))) for n in (1, 2)]
        gate = threading.Event()
        thread = threading.Thread(target=put_late, args=(branch, id, seeds.choice((1, 2, 3, 9)), gate))
        thread.start()
        if round % 3 == 0:
            gate.set()
        uploads.complete(branch, "x", id, wanted)
        gate.set()
        thread.join()
        assert holds(branch, part(1), part(2))


def test_old_uploads_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_lake(find_settings(tmp_path / "lake"), create=True, clock=clock) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        uploads, id = begun(branch)
        md5 = put(uploads, branch, id, 1, part(1))
        uploads.complete(branch, "x", id, [(1, md5)])
        open_one = uploads.begin(branch, "y", "me", None, None)
        now = clock.now_us()
        assert uploads.sweep(now + REMEMBERED_US - 10_000_000) == 0
        assert uploads.sweep(now + REMEMBERED_US + 10_000_000) == 1
        assert uploads.get(branch, "y", open_one.id) == open_one
        assert uploads.sweep(now + LASTS_US + 10_000_000) == 1
        assert not list(branch._core.stores.kv.scan(UPLOADS))
        assert not list(branch._core.stores.kv.scan(PARTS))
        assert holds(branch, part(1))


def test_late_parts_at_each_call(tmp_path: Path) -> None:
    """A completion right before each call of the store that a late writer makes: the object is what was completed."""
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        kv: Any = branch._core.stores.kv
        for at in range(12):
            uploads, id = begun(branch)
            wanted = [(n, put(uploads, branch, id, n, part(n))) for n in (1, 2)]
            calls = 0

            class Meeting:
                """The store as the late writer sees it: the completion comes before one of its calls."""

                def __getattr__(self, name: str, at: int = at, id: str = id, wanted: Any = wanted) -> Any:
                    nonlocal calls
                    if name in ("get", "set", "set_if"):
                        calls += 1
                        if calls == at + 1:
                            Uploads(kv).complete(branch, "x", id, wanted)
                    return getattr(kv, name)

            store: Any = Meeting()
            with suppress(StrandlineError):
                Uploads(store).put(branch, "x", id, 3, io.BytesIO(part(200)), SIZE)
            if calls <= at:
                Uploads(kv).complete(branch, "x", id, wanted)
            assert holds(branch, part(1), part(2)), at


def test_parts_that_come_again_at_once(tmp_path: Path) -> None:
    """Two attempts at one part, the first of which is slow: the one that ended last counts, as a whole."""
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        uploads, id = begun(branch)
        put(uploads, branch, id, 1, part(1))
        gate = threading.Event()
        late: Any = Late(gate)
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(uploads.put, branch, "x", id, 2, late, SIZE)
            try:
                assert late.asked.wait(60), first.exception(0)
                md5 = put(uploads, branch, id, 2, part(2))
                wanted = [(1, hashlib.md5(part(1)).hexdigest()), (2, md5)]
                done = threads.submit(uploads.complete, branch, "x", id, wanted)
            finally:
                gate.set()
            done.result(60)
            with suppress(StrandlineError):  # it may come before the end of the upload, or after it
                first.result(60)
        assert holds(branch, part(1), part(2))


def test_a_completion_that_was_refused_loses_no_part(branch: Branch) -> None:
    """A condition refuses the object of two parts; the object of all three is whole afterwards."""
    branch.put("x", b"in the way")
    uploads, id = begun(branch)
    wanted = [(n, put(uploads, branch, id, n, part(n))) for n in (1, 2, 3)]
    with pytest.raises(PreconditionFailed):
        uploads.complete(branch, "x", id, wanted[:2], only_new=True)
    with pytest.raises(PreconditionFailed):
        uploads.complete(branch, "x", id, wanted, only_as="other")
    uploads.complete(branch, "x", id, wanted)
    assert holds(branch, part(1), part(2), part(3))


def test_a_completion_that_died_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, or without an answer of the store, right after the object was staged."""
    clock = ManualClock()
    with open_lake(find_settings(tmp_path / "lake"), create=True, clock=clock) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        uploads, id = begun(branch)
        wanted = [(n, put(uploads, branch, id, n, part(n))) for n in (1, 2)]
        stage = Uploads._stage

        def lost(self: Uploads, *given: Any, **more: Any) -> None:
            stage(self, *given, **more)
            raise StoreUnavailable("The reply was lost.", happened="unknown")

        monkeypatch.setattr(Uploads, "_stage", lost)
        with pytest.raises(StoreUnavailable):
            uploads.complete(branch, "x", id, wanted)
        monkeypatch.undo()
        assert holds(branch, part(1), part(2))
        with pytest.raises(Refusal, match="completed"):  # its bytes are the object's
            uploads.abort(branch, "x", id)
        done = uploads.complete(branch, "x", id, wanted)
        assert done.state == "done"
        assert holds(branch, part(1), part(2))
        assert uploads.complete(branch, "x", id, wanted) == done


@pytest.mark.parametrize("parts_of_second", [2, 1])
def test_a_part_of_an_object_is_never_deleted_with_its_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts_of_second: int
) -> None:
    """A worker stages an object and dies; others complete it on a condition, perhaps of fewer parts, and abort it."""
    clock = ManualClock()
    with open_lake(find_settings(tmp_path / "lake"), create=True, clock=clock) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        uploads, id = begun(branch)
        wanted = [(n, put(uploads, branch, id, n, part(n))) for n in (1, 2)]
        swap = Uploads._swap

        def die(self: Uploads, branch: Branch, before: Any, after: Any) -> Any:
            if after.state == "done":
                raise StoreUnavailable("The worker died.", happened="no")
            return swap(self, branch, before, after)

        monkeypatch.setattr(Uploads, "_swap", die)
        with pytest.raises(StoreUnavailable):
            uploads.complete(branch, "x", id, wanted, only_new=True)
        monkeypatch.undo()
        commit = branch.commit("with the object")
        branch.put("x", b"another one")
        clock.advance_s(TAKEN_OVER_AFTER_US / 1e6 + 1)
        with pytest.raises(PreconditionFailed):
            uploads.complete(branch, "x", id, wanted[:parts_of_second], only_new=True)
        uploads.abort(branch, "x", id)
        with pytest.raises(Refusal):
            uploads.complete(branch, "x", id, wanted)
        old = lake.repository("repo").ref(commit.id)
        assert holds(old, part(1), part(2))
        assert holds(branch, b"another one")


def test_a_completion_of_an_upload_that_is_being_aborted_finds_none(
    branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, id = begun(branch)
    wanted = [(1, put(uploads, branch, id, 1, part(1)))]
    forget = Uploads._forget_parts

    def meanwhile(self: Uploads, *given: Any) -> None:
        monkeypatch.setattr(Uploads, "_forget_parts", forget)
        with pytest.raises(Refusal, match="no such upload"):
            uploads.complete(branch, "x", id, wanted)
        raise StoreUnavailable("The worker died.", happened="no")

    monkeypatch.setattr(Uploads, "_forget_parts", meanwhile)
    with pytest.raises(StoreUnavailable):
        uploads.abort(branch, "x", id)
    with pytest.raises(Refusal):
        uploads.complete(branch, "x", id, wanted)
    uploads.abort(branch, "x", id)  # goes on
    assert not branch.exists("x")
    assert files(branch) == set()


class Interleaved:
    """A store as one worker sees it: before its n-th call somebody else acts, or it dies there.

    Attributes:
        calls: how many it has made.
    """

    def __init__(self, kv: Any, at: int, act: Callable[[], object]) -> None:
        self._kv, self._at, self._act, self.calls = kv, at, act, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "set", "set_if", "scan", "delete", "delete_many"):
            self.calls += 1
            if self.calls == self._at + 1:
                self._act()
        return getattr(self._kv, name)


def die() -> None:
    raise StoreUnavailable("The worker died.", happened="unknown")


@pytest.mark.parametrize("dies", [False, True], ids=["meets", "dies"])
@pytest.mark.parametrize("second", ["complete", "abort", "put"])
@pytest.mark.parametrize("first", ["complete", "abort", "put"])
def test_two_workers_at_each_call(first: str, second: str, dies: bool, tmp_path: Path) -> None:
    """One request right before each call that another one makes, or after the other one died there.

    An object that was acknowledged is whole, whatever comes after; what was never acknowledged is not there in part.
    """
    clock = ManualClock()
    with open_lake(find_settings(tmp_path / "lake"), create=True, clock=clock) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        kv: Any = branch._core.stores.kv
        acknowledged: list[str] = []

        def act(store: Any, kind: str, id: str, wanted: Any) -> None:
            uploads = Uploads(store)
            with suppress(StrandlineError):
                if kind == "complete":
                    uploads.complete(branch, "x", id, wanted)
                elif kind == "abort":
                    uploads.abort(branch, "x", id)
                else:
                    uploads.put(branch, "x", id, 2, io.BytesIO(b"late"), 4)
                acknowledged.append(kind)

        for at in range(60):
            branch.delete("x")
            uploads = uploads_of(branch)
            id = uploads.begin(branch, "x", "me", None, None).id
            wanted = [(n, uploads.put(branch, "x", id, n, io.BytesIO(bytes([n]) * SIZE), SIZE).md5) for n in (1, 2)]
            acknowledged.clear()

            def other(id: str = id, wanted: Any = wanted) -> None:
                act(kv, second, id, wanted)

            store = Interleaved(kv, at, die if dies else other)
            act(store, first, id, wanted)
            if dies:
                clock.advance_s(TAKEN_OVER_AFTER_US / 1e6 + 1)
                other()
            act(kv, "abort", id, wanted)
            if "complete" in acknowledged:
                assert holds(branch, part(1), part(2)), at
            elif branch.exists("x"):  # of a completion that died without an answer
                assert dies
                assert holds(branch, part(1), part(2)), at
            if store.calls <= at:
                break
        else:
            pytest.fail("it makes more calls")


def test_a_collection_keeps_what_uploads_need(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_lake(find_settings(tmp_path / "lake"), create=True, clock=clock) as lake:
        repo = lake.repository("repo", create=True)
        branch = repo.branch("main")
        uploads, id = begun(branch)
        wanted = [(n, put(uploads, branch, id, n, part(n, SIZE + n))) for n in (1, 2)]
        repo.gc.run(grace_days=0)
        clock.advance_s(3 * 86_400)
        repo.gc.run(grace_days=0)
        uploads.complete(branch, "x", id, wanted)
        assert holds(branch, part(1, SIZE + 1), part(2, SIZE + 2))
        _, left = begun(branch)
        put(uploads, branch, left, 1, part(1))
        clock.advance_s(8 * 86_400)
        with pytest.raises(Refusal, match="too old"):
            uploads.complete(branch, "x", left, [(1, hashlib.md5(part(1)).hexdigest())])
        repo.gc.run(grace_days=0)
        repo.gc.run(grace_days=0)
        assert files(branch) == {branch.stat("x").physical_address}
