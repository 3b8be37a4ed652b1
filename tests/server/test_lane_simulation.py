"""Batches of the server's lanes among the simulator's other clients, with faults and deaths."""

from __future__ import annotations

from collections import Counter

import pytest

from strandline.server.lanes import Write, stage_together
from strandline.testing.simulation import actors, simulate
from strandline.testing.simulation.actors import Actor, _entry

SEEDS = 400
LANES = {
    "lanes": ("worker", "worker", "writer", "committer", "committer", "reader"),
    "lanes and moves": ("worker", "worker", "mover", "committer", "compactor", "sweeper"),
    "lanes under rules": ("worker", "worker", "protector", "protector", "committer"),
    "lanes of a branch that goes": ("worker", "worker", "brancher", "committer", "sweeper"),
}


def lane(actor: Actor, _kind: str) -> None:
    """Writes of several clients that one batch stages. Each client hears of its own write."""
    branch = actor.branch()
    paths = [actor.path() for _ in range(actor.rnd.randrange(1, 5))]
    writes = [actor.begin("put", branch.name, branch.branch_id, path=path) for path in paths]
    for write, path in zip(writes, paths, strict=True):
        write.values = {path: write.value}
    batch = [
        Write(path, _entry(actor, branch, write.value), lambda: True, lambda: None, lambda _: None)
        for write, path in zip(writes, paths, strict=True)
    ]
    outcomes = stage_together(branch, batch)

    def answer(outcome: BaseException | None) -> None:
        if outcome is not None:
            raise outcome

    for write, outcome in zip(writes, outcomes, strict=True):
        actor.finish(write, lambda outcome=outcome: answer(outcome))


@pytest.fixture
def with_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(actors.KINDS, "lane", lane)
    monkeypatch.setitem(actors.ROLES, "worker", {"lane": 5, "find": 1, "list": 1})
    for name in list(actors.SCENARIOS):
        monkeypatch.delitem(actors.SCENARIOS, name)
    for name, roles in LANES.items():
        monkeypatch.setitem(actors.SCENARIOS, name, roles)
    monkeypatch.setattr("strandline.testing.simulation.run.OFTEN", ())


@pytest.mark.usefixtures("with_lanes")
def test_each_write_of_a_batch_becomes_what_its_client_heard() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = simulate(seed)
        assert not outcome.broken, outcome.trace()
        reached += outcome.reached
    missed = [
        name
        for name in ("refusal: BranchProtected", "refusal: BranchGone", "refusal: the client died", "fault: swap lost")
        if not reached[name]
    ]
    assert reached["operation: put"] > 5 * SEEDS
    assert not missed, reached
