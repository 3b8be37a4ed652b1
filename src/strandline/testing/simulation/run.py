"""A seed from beginning to end: the plan, the schedule, the last look, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from strandline.branch import attach, commit, compaction, heads, reset
from strandline.branch.rules.record import LayersMoved
from strandline.errors import NothingToCommit, ObjectMissing, StrandlineError
from strandline.repository.repository import Repository
from strandline.testing.simulation import shards
from strandline.testing.simulation.actors import OFTEN, SCENARIOS, Actor, listing
from strandline.testing.simulation.collector import referred_bytes, referred_files
from strandline.testing.simulation.families import FAMILIES
from strandline.testing.simulation.history import PATHS, Broken, Operation
from strandline.testing.simulation.non_promises import EXAMPLES
from strandline.testing.simulation.oracle import Oracle, transition
from strandline.testing.simulation.scheduler import Endless, Scheduler, some_faults
from strandline.testing.simulation.tables import table_promises
from strandline.testing.simulation.trace import readable
from strandline.testing.simulation.world import World, partitions_with, seeded_ids, some_clock
from strandline.tree.node_file import read_metarange
from strandline.tree.range_file import read_rows
from strandline.tree.store import NODES_FOLDER

WITH_BYTES = ("garbage", "levels", "links")
"""Families whose clients upload the bytes of what they write, and whose collector is the real one."""
MAX_ACTORS = 6
MAX_OPERATIONS = 64
"""Of all actors together: small histories collide as well as large ones, and there is time for more of them."""


@dataclass
class Outcome:
    """What came of a seed.

    Attributes:
        broken: the promises that the history breaks; empty if all is well.
        reached: how often each transition, refusal and verdict was met.
        steps: how many calls of the stores there were: the interleaving is the order of these.
    """

    seed: int
    broken: list[Broken]
    reached: Counter[str]
    steps: int
    trace: Callable[[], str] = field(repr=False)
    """The interleaving, step by step, then the operations and what is wrong with them."""


def simulate(seed: int, family: str = "protocol") -> Outcome:
    """Run one schedule and judge its history.

    Args:
        family: which scenarios it is taken from: "protocol", "shards", or one of `families.FAMILIES`.
    """
    if family == shards.FAMILY:
        judged = shards.simulate(seed)
        return Outcome(seed, judged.broken, judged.reached, judged.scheduler.step, judged.trace)
    reached: Counter[str] = Counter()
    rnd = Random(seed)
    faults, stickiness = some_faults(rnd), rnd.choice((0.0, 0.5, 0.8, 0.95))
    tears_scans, guards_writes = rnd.random() < 0.3, rnd.random() < 0.6
    scheduler = Scheduler(seed, faults, stickiness, tears_scans, guards_writes)
    cached_s = rnd.choice((0, 5, 5))
    with seeded_ids(seed), instruments(reached, scheduler, cached_s), tiny_nodes(family == "levels"):
        world = World(scheduler)
        plan(world, rnd, family)
        broken: list[Broken] = []
        try:
            scheduler.run()
        except Endless as endless:
            broken.append(Broken("every operation ends", str(endless)))
        else:
            for task, error in scheduler.errors:
                broken.append(Broken("no error but those of `errors.py` gets out", f"{task.name}: {error!r}"))
            if not broken:
                try:
                    broken += last_look(world)
                except ObjectMissing as error:
                    broken.append(Broken("nothing that is referred to is missing", error.what))
    if nodes := sum(key.startswith(NODES_FOLDER) for key in world.blobs.writers):
        reached["written: nodes"] += nodes
    for change in world.history.changes:
        reached[f"transition: {transition(change.before, change.after, change.operation)}"] += 1
    for name, look in EXAMPLES.items():
        if look(world.history):
            reached[f"not promised: {name}"] += 1
    for op in world.history.operations:
        reached[f"operation: {op.kind}"] += 1
        if op.status != "ok":
            reached[f"refusal: {op.error or 'the client died'}"] += 1
    for line in scheduler.trace:
        if line.fate.value != "done":
            reached[f"fault: {line.fate.value}"] += 1
        elif line.what in ("dies", "swap lost"):
            reached[f"fault: {line.what}"] += 1
    return Outcome(seed, broken, reached, scheduler.step, lambda: readable(world, broken))


def plan(world: World, rnd: Random, family: str) -> None:
    """Who takes part: some of a scenario that the seed picks."""
    scenarios, often = (SCENARIOS, OFTEN) if family == "protocol" else (FAMILIES[family], ())
    world.has_bytes = family in WITH_BYTES
    scenario = rnd.choice((*scenarios, *often))
    roles = [rnd.choice(scenarios[scenario]) for _ in range(rnd.randrange(3, MAX_ACTORS + 1))]
    world.paths = tuple(rnd.sample(PATHS, rnd.choice((2, 2, 3, 4))))
    steps = MAX_OPERATIONS // len(roles)
    with_work = rnd.random() < 0.7 or world.has_bytes
    if with_work:
        world.outside().create_branch("work")
    last: Actor | None = None
    for number, role in enumerate(roles):
        if last is not None and rnd.random() < (0.8 if scenario == "threads" else 0.2):
            process, repo = last.process, last.repo  # two threads of one process
        else:
            process, repo = world.process(f"p{number}", [] if family == "queues" else some_clock(rnd))
        last = Actor(world, process, repo, role, rnd.randrange(steps // 2, steps + 1))
        world.scheduler.spawn(process, f"{process.name} {role}", last.run)


# each process decodes each file it reads; the same bytes give the same rows, so once is enough for all
_read_rows = lru_cache(512)(read_rows)
_read_metarange = lru_cache(512)(read_metarange)


@contextmanager
def instruments(reached: Counter[str], scheduler: Scheduler, cached_s: int) -> Iterator[None]:
    """Count verdicts and lost layers; let the sensor fire at a handful of tombstones, and caches be young or old."""

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except LayersMoved:
                reached[f"layers moved: {name}"] += 1
                raise

        return call

    decide: Callable[..., Any] = getattr(commit, "decide_commit")  # noqa: B009 - imported there, not exported

    def decide_commit(*arguments: Any) -> Any:
        verdict, left = decide(*arguments)
        reached[f"verdict: {verdict.value}"] += 1
        return verdict, left

    build = commit._build

    def counted_build(*arguments: Any) -> Any:
        task = scheduler._current
        if task is not None and task.operation is not None:
            task.operation.built += 1
        return build(*arguments)

    with ExitStack() as stack:
        stack.enter_context(patch.object(commit, "decide_commit", decide_commit))
        stack.enter_context(patch.object(commit, "_build", counted_build))
        for module, name in ((attach, "attach"), (compaction, "fold"), (reset, "fold"), (heads, "move_head")):
            label = f"{module.__name__.rpartition('.')[2]}.{name}"
            stack.enter_context(patch.object(module, name, counted(label, getattr(module, name))))
        stack.enter_context(
            patch.multiple("strandline.tree.store", read_rows=_read_rows, read_metarange=_read_metarange)
        )
        # few moves on the record, so that the reflog has blocks within a short history
        stack.enter_context(patch.multiple("strandline.branch.rules.record", MOVES_KEPT=4, MOVES_KEPT_WHEN_FULL=2))
        stack.enter_context(patch.multiple("strandline.branch.rules.record", DONE_KEPT=3, DONE_KEPT_WHEN_FULL=1))
        stack.enter_context(patch("strandline.branch.reflog.BLOCK_MOVES", 3))
        stack.enter_context(patch("strandline.branch.cell.CACHED_MAX_AGE_S", cached_s))
        stack.enter_context(patch("strandline.branch.sensor.TOMBSTONES", 8))
        stack.enter_context(patch("strandline.branch.sensor.SEALED_TOKENS", 6))
        yield


@contextmanager
def tiny_nodes(are_wanted: bool) -> Iterator[None]:
    """Trees of a range for each path, and of two children for each node, so that few paths make several levels."""
    if not are_wanted:
        yield
        return
    with (
        patch("strandline.tree.chunking.THRESHOLD", np.uint32(2**32 - 1)),
        patch.multiple("strandline.tree.levels", FLAT_MAX=1, MEAN_CHILDREN=2, MAX_CHILDREN=2),
    ):
        yield


def last_look(world: World) -> list[Broken]:
    """When all is over: read and commit everything, judge the history, sweep, and look for what is left or missing."""
    repo = world.outside()
    broken = _read_and_commit(world, repo)
    if world.missing:
        return [*broken, Broken("nothing that is referred to is missing", world.missing[0])]
    broken += Oracle(world.history, not world.scheduler.tears_scans, world.clocks_agree).check()
    broken += table_promises(world.history)
    missing = referred_files(world, repo, with_history=not world.has_bytes) - set(world.blobs.blobs)
    if world.has_bytes:
        missing |= referred_bytes(repo) - set(world.blobs.blobs)
    if missing:
        broken.append(Broken("nothing that is referred to is missing", ", ".join(sorted(missing))))
    broken += _reflogs(world, repo)
    broken += _leaks(world)
    return broken


def _reflogs(world: World, repo: Repository) -> list[Broken]:
    """The reflog has exactly the moves that the swaps made, in order."""
    broken = []
    for name in [found.name for found in repo.branches()]:
        branch = repo.branch(name)
        expected = []
        for change in world.history.changes:
            before, after = change.before, change.after
            if before is None or after is None or not before.branch_id == after.branch_id == branch.branch_id:
                continue
            if before.move_count != after.move_count:
                expected.append((before.head, after.head))
        shown = [(move.before, move.after) for move in branch.reflog() if move.verb != "create"]
        shown = shown[: len(shown) - world.moves_before.get(name, 0)]
        if shown != expected[::-1]:
            broken.append(
                Broken("the reflog has each move of the head", f"{name}: {shown} instead of {expected[::-1]}")
            )
    return broken


def _read_and_commit(world: World, repo: Repository) -> list[Broken]:
    history = world.history
    broken = []
    if repo.settings.read_only:
        repo.set_read_only(False)
    repo.unprotect("main")
    for name in [found.name for found in repo.branches()]:
        branch = repo.branch(name)
        for lock in branch.locks:  # of the dead
            if lock.transaction:
                branch.transactions.abort(lock.transaction)
        branch.locks.end([lock.id for lock in branch.locks])
        for kind in ("list", "commit", "list"):
            op = Operation(len(history.operations), "last look", kind, name, branch.branch_id, world.scheduler.tick())
            history.operations.append(op)
            op.status = "ok"
            try:
                if kind == "list":
                    op.seen = listing(branch)
                else:
                    op.result = branch.commit(op.value).id
            except NothingToCommit:
                op.status, op.error = "refused", "NothingToCommit"
            except StrandlineError as error:
                broken.append(Broken("what is on record can be read and committed", f"{name}: {error!r}"))
                op.status = "refused"
            op.end = world.scheduler.tick()
    return broken


def _leaks(world: World) -> list[Broken]:
    """After some days of sweeps, nothing is left of tokens that are on no record."""
    for days in (2, 4, 6, 8):
        world.outside(days).sweep()
    on_record = set()
    for found in world.outside().branches():
        on_record |= set(world.outside()._core.cell(found.name).read().branch.tokens)
    left = [name.rpartition(b"/")[2].decode() for name in partitions_with(world.kv, b"/staging/")]
    leaked = [token for token in left if token not in on_record]
    return [Broken("swept tokens leave nothing behind", f"{len(leaked)} tokens: {leaked}")] if leaked else []
