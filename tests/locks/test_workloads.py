"""Locks under load: a model, a ring that stays a ring, and leaders of whom there is never more than one."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.branch.rules.ranges import overlap
from strandline.errors import (
    Conflict,
    Fenced,
    LockRejected,
    LockTimeout,
    NothingToCommit,
    RangeLocked,
    StrandlineError,
    TransactionClosed,
)
from strandline.kv.memory import MemoryStore
from strandline.lake import Lake, open_lake
from strandline.redaction import SecretUrl
from strandline.repository.branch import Branch
from strandline.settings import Settings
from strandline.testing.clock import ManualClock
from tests.harness.clients import Client, Shared

KEYS = [str(number) for number in range(10)]
key = st.sampled_from([*KEYS, chr(0x10FFFF)])
pair = st.tuples(key, st.one_of(key, st.none())).filter(lambda found: found[1] is None or found[0] < found[1])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), pair, st.sampled_from(["a", "b"])),
        st.tuples(st.just("release"), pair, st.sampled_from(["a", "b"])),
        st.tuples(st.just("release all"), pair, st.sampled_from(["a", "b"])),
        st.tuples(st.just("put"), pair, st.sampled_from(["x", "y"])),
        st.tuples(st.just("clear"), pair, st.sampled_from(["x"])),
        st.tuples(st.just("commit"), pair, st.sampled_from(["x"])),
    ),
    max_size=30,
)


class Model:
    """What a branch with locks is: a map, and ranges with owners."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.locks: dict[tuple[str, str | None], str] = {}

    def is_locked(self, start: str, end: str | None) -> bool:
        return any(_meet((start, end), lock) for lock in self.locks)


def _meet(one: tuple[str, str | None], other: tuple[str, str | None]) -> bool:
    return (other[1] is None or one[0] < other[1]) and (one[1] is None or other[0] < one[1])


def allowed(act: Callable[[], object]) -> bool:
    try:
        act()
    except (LockRejected, RangeLocked):
        return False
    return True


@settings(max_examples=80)
@given(STEPS)
def test_whatever_touches_a_foreign_lock_is_dropped_whole(steps: list[tuple[str, tuple[str, str | None], str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        driver = Client(Shared(MemoryStore(), ManualClock(), Path(folder)), create=True)
        for owner in ("a", "b"):
            driver.repo.lock_owners.register(owner, owner)
        main, model = driver.main, Model()
        for kind, (start, end), what in steps:
            span = (start, end)
            if kind == "take":
                is_same = model.locks.get(span) == what
                expected = is_same or not model.is_locked(*span)
                done = allowed(lambda: main.locks.take(span, owner=what, on_dirty="commit"))  # noqa: B023
                if done:
                    model.locks[span] = what
            elif kind == "release":
                met = [lock for lock in model.locks if _meet(span, lock)]
                expected = not met or (met == [span] and model.locks[span] == what)
                done = allowed(lambda: main.locks.release_range(span, what))  # noqa: B023
                if done:
                    model.locks.pop(span, None)
            elif kind == "release all":
                expected, done = True, True
                main.locks.release_all(what)
                model.locks = {lock: owner for lock, owner in model.locks.items() if owner != what}
            elif kind == "put":
                paths = [start] if end is None else [start, f"{start}x"]
                expected = not any(model.is_locked(path, path + "\0") for path in paths)
                done = allowed(lambda: main.put_many(dict.fromkeys(paths, what)))  # noqa: B023
                if done:
                    model.values.update(dict.fromkeys(paths, what))
            elif kind == "clear":
                low, high = (start, None) if start == chr(0x10FFFF) else (start, chr(ord(start) + 1))
                expected = not model.is_locked(low, high)
                done = allowed(lambda: main.delete_prefix(start))  # noqa: B023
                if done:
                    model.values = {path: v for path, v in model.values.items() if not path.startswith(start)}
            else:
                expected, done = True, True
                try:
                    main.commit("x")
                except NothingToCommit:
                    pass
            assert done == expected, (kind, span, what)
        assert {info.path: main.read(info.path).decode() for info in main.list()} == model.values
        shown = {(one.start, one.end): lock.owner for lock in main.locks for one in lock.ranges}
        assert shown == model.locks
        assert not any(
            overlap(one.ranges, other.ranges) for one in main.locks for other in main.locks if one.id != other.id
        )


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Lake]:
    chosen = Settings(
        kv=SecretUrl(f"{request.param}://{tmp_path / 'm.db'}"), blob=str(tmp_path / "d"), synced=False, committer="t"
    )
    made = open_lake(chosen, create=True)
    repo = made.repository("nyc", create=True)
    for owner in ("ring", "leader"):
        repo.lock_owners.register(owner, "a test")
    made.close()
    return lambda: open_lake(chosen)


def run(seconds: float, *jobs: Callable[[float], None]) -> None:
    """Run jobs in threads until a moment; what one of them raises is raised here."""
    errors: list[BaseException] = []
    until = time.monotonic() + seconds

    def one(job: Callable[[float], None]) -> None:
        try:
            job(until)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


NODES = 24


def test_a_ring_stays_a_ring(place: Callable[[], Lake]) -> None:
    """Transactions read three nodes in a row and swap the order of two, among locks, dead holders and compactions."""
    with place() as lake:
        main = lake.repository("nyc").branch("main")
        main.put_many({f"n{number:02d}": str((number + 1) % NODES) for number in range(NODES)})
        main.commit("ring")
    swaps = [0]

    def node(number: int) -> str:
        return f"n{number:02d}"

    def swapper(name: str) -> Callable[[float], None]:
        def job(until: float) -> None:
            rnd = random.Random(name)
            with place() as lake:
                main = lake.repository("nyc").branch("main")
                while time.monotonic() < until:
                    try:
                        with main.transaction(name) as tx:
                            a = rnd.randrange(NODES)
                            b = int(tx.read(node(a)))
                            c = int(tx.read(node(b)))
                            after = tx.read(node(c)).decode()
                            tx.put(node(a), str(c))
                            tx.put(node(b), after)
                            tx.put(node(c), str(b))
                        swaps[0] += 1
                    except (RangeLocked, Conflict):
                        continue

        return job

    def holder(until: float) -> None:
        rnd = random.Random("holder")
        with place() as lake:
            main = lake.repository("nyc").branch("main")
            dead: list[object] = []
            while time.monotonic() < until:
                start = rnd.randrange(NODES - 6)
                held = main.lock((node(start), node(start + 5)), owner="ring", timeout_s=1)
                try:
                    held.begin()
                except (LockTimeout, LockRejected):
                    continue
                if rnd.random() < 0.3:
                    dead.append(held)  # it dies, and somebody notices after a while
                    time.sleep(0.02)
                    main.transactions.abort(held.id)
                else:
                    a = start
                    b = int(held.read(node(a)))
                    held.put(node(a), str(b))
                    held.commit()
                if rnd.random() < 0.3:
                    main.compact(force=True)

    run(6.0, swapper("one"), swapper("two"), holder)
    with place() as lake:
        main = lake.repository("nyc").branch("main")
        seen = [0]
        while (following := int(main.read(node(seen[-1])))) != 0:
            seen.append(following)
        assert sorted(seen) == list(range(NODES))
        assert swaps[0] > 5
        assert not list(main.locks)


def test_there_is_never_more_than_one_leader(place: Callable[[], Lake]) -> None:
    """Contenders take a lock; who has it adds a term under it. A nervous operator deposes leaders, dead or not."""
    terms: list[tuple[int, str]] = []

    def contender(name: str) -> Callable[[float], None]:
        def job(until: float) -> None:
            rnd = random.Random(name)
            with place() as lake:
                main = lake.repository("nyc").branch("main")
                while time.monotonic() < until:
                    try:
                        held = main.lock("leader/", owner="leader", timeout_s=0.5).begin()
                        term = len(list(held.list("leader/")))
                        held.put(f"leader/{term:04d}", name)
                        if rnd.random() < 0.3:
                            time.sleep(0.05)  # so slow that it may be taken for dead
                        if rnd.random() < 0.1:
                            continue  # it dies
                        held.commit()
                        terms.append((term, name))
                    except (LockTimeout, LockRejected, Fenced, TransactionClosed):
                        continue

        return job

    def operator(until: float) -> None:
        with place() as lake:
            main = lake.repository("nyc").branch("main")
            seen: dict[str, int] = {}
            while time.monotonic() < until:
                time.sleep(0.02)
                for lock in main.locks:
                    seen[lock.id] = seen.get(lock.id, 0) + 1
                    if seen[lock.id] > 3 and lock.transaction is not None:
                        _depose(main, lock.transaction)

    run(6.0, contender("a"), contender("b"), contender("c"), operator)
    with place() as lake:
        main = lake.repository("nyc").branch("main")
        shown = {info.path: main.read(info.path).decode() for info in main.list("leader/")}
    assert sorted(term for term, _ in terms) == list(range(len(terms)))
    assert shown == {f"leader/{term:04d}": name for term, name in terms}
    assert len(terms) > 5


def _depose(main: Branch, id: int) -> None:
    try:
        main.transactions.abort(id)
    except StrandlineError:
        return
