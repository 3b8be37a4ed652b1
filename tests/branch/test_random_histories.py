"""Random interleavings of several clients, call by call, against a model of what was acknowledged.

Each client runs in a thread; exactly one runs at a time, and every call of a store is where another may go on.
Who goes next is decided by a seed, so a failing seed replays.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from strandline.errors import NothingToCommit, NothingToMerge, ObjectNotFound, StoreUnavailable, UncommittedChanges
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared, content, link

SEEDS = 150
STEPS = 12


class Schedule:
    """Lets one thread run at a time; at every call of the store the seed may pass the turn on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.turns: dict[int, threading.Semaphore] = {}
        self.alive: list[int] = []
        self.errors: list[BaseException] = []

    def run(self, works: list[Callable[[], None]]) -> None:
        done = threading.Semaphore(0)

        def target(who: int, work: Callable[[], None]) -> None:
            self.turns[who].acquire()
            try:
                work()
            except BaseException as error:
                self.errors.append(error)
            self.alive.remove(who)
            if self.alive:
                self.turns[self.random.choice(self.alive)].release()
            else:
                done.release()

        self.alive = list(range(len(works)))
        self.turns = {who: threading.Semaphore(0) for who in self.alive}
        self.owner: dict[int, int] = {}
        for who, work in enumerate(works):
            threading.Thread(target=target, args=(who, work), daemon=True).start()
        self.turns[self.random.choice(self.alive)].release()
        assert done.acquire(timeout=60), "the schedule hangs"

    def pass_on(self, who: int) -> None:
        chosen = self.random.choice(self.alive)
        if chosen != who:
            self.turns[chosen].release()
            self.turns[who].acquire()


def run_seed(seed: int) -> None:
    shared = Shared()
    first = Client(shared, create=True)
    clients = [first, Client(shared), Client(shared), Client(shared)]
    schedule = Schedule(seed)
    model: dict[str, str | None] = {}
    uncertain: set[str] = set()

    def yielding(who: int, client: Client) -> None:
        def plan(call: str, partition: bytes, key: bytes) -> Outcome:
            schedule.pass_on(who)
            if call == "set_if" and schedule.random.random() < 0.05:
                return schedule.random.choice([Outcome.DONE_BUT_LOST, Outcome.LATE])
            return Outcome.DONE

        client.store.plan = plan

    def write(who: int) -> None:
        main, rnd = clients[who].main, random.Random(f"{seed} {who}")
        for step in range(STEPS):
            path, value = f"w{who}/{rnd.randrange(3)}", f"{who}.{step}"
            try:
                if rnd.random() < 0.25:
                    main.delete(path)
                    model[path] = None
                elif rnd.random() < 0.25:
                    other = f"w{who}/{rnd.randrange(3)}"
                    if other == path:
                        continue
                    main.rename(path, other)
                    model[other], model[path] = model.get(path), None
                else:
                    link(main, path, value)
                    model[path] = value
            except ObjectNotFound:
                assert model.get(path) is None
            except StoreUnavailable as error:
                assert error.happened == "unknown"  # noqa: PT017
                uncertain.update((path, f"w{who}/0", f"w{who}/1", f"w{who}/2"))
                return
            for mine in (f"w{who}/{n}" for n in range(3)):
                assert content(main, mine) == model.get(mine), (mine, step)

    def commit(who: int) -> None:
        client, rnd = clients[who], random.Random(f"{seed} {who}")
        for step in range(STEPS):
            try:
                kind = rnd.randrange(4)
                if kind < 2:
                    client.main.commit(f"{who}.{step}")
                elif kind == 2:
                    client.main.discard(f"nobody/{step}")  # folds everything into a compacted tree
                else:
                    client.repo.sweep(after_s=0, again_after_s=0, private_after_s=1e9)
            except (NothingToCommit, NothingToMerge, UncommittedChanges):
                pass
            except StoreUnavailable as error:
                assert error.happened == "unknown"  # noqa: PT017

    for who, client in enumerate(clients):
        yielding(who, client)
    works: list[Callable[[], None]] = [lambda: write(0), lambda: write(1), lambda: commit(2), lambda: commit(3)]
    schedule.run(works)
    if schedule.errors:
        raise schedule.errors[0]
    last = Client(shared)
    found = {path: content(last.main, path) for path in model if path not in uncertain}
    assert found == {path: value for path, value in model.items() if path not in uncertain}
    last.main.commit("the end", allow_empty=True)
    head = last.repo.ref("main@")
    assert {path: content(head, path) for path in found} == found  # type: ignore[arg-type]
    chain = [commit.message for commit in last.main.log()]
    assert len(set(chain)) == len(chain)


@pytest.mark.parametrize("block", range(10))
def test_no_schedule_loses_what_was_acknowledged(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            run_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
