"""Small programs of two clients of one branch, for every order of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from strandline.branch.conditional import stage_if
from strandline.repository.repository import Repository
from strandline.testing.simulation.actors import Actor, listing
from strandline.testing.simulation.exploring import Access, Exploring, Fault, Program, Run
from strandline.testing.simulation.history import CREATED, Broken, Operation
from strandline.testing.simulation.run import instruments, last_look
from strandline.testing.simulation.scheduler import Endless, Process, Scheduler
from strandline.testing.simulation.trace import readable
from strandline.testing.simulation.world import World, seeded_ids
from strandline.tree.rows import Entry

UNGUARDED = "staged, unguarded"
START = ("idle", "staged", "compacted", UNGUARDED)
"""What is on main when they begin: only what is committed; or changes above it, in a token or folded; or in a token, in
a store whose guarded writes are several calls."""


def _stage(actor: Actor, op: Operation, path: str) -> None:
    actor.branch("main").stage(path, Entry(f"data/{op.value}", 1, op.value, 1))


def _on_main(actor: Actor, kind: str, act: Callable[[Any, Operation], object], **arguments: object) -> Operation:
    branch = actor.branch("main")
    op = actor.begin(kind, "main", branch.branch_id, **arguments)
    actor.finish(op, lambda: act(branch, op))
    return op


def put(actor: Actor) -> None:
    def act(_branch: Any, op: Operation) -> None:
        op.values = {"a": op.value}
        _stage(actor, op, "a")

    _on_main(actor, "put", act, path="a")


def put_other(actor: Actor) -> None:
    def act(_branch: Any, op: Operation) -> None:
        op.values = {"b": op.value}
        _stage(actor, op, "b")

    _on_main(actor, "put", act, path="b")


def delete(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.values = {"a": None}
        if not branch.delete("a"):
            op.values, op.seen = {}, {"a": None}

    _on_main(actor, "delete", act, path="a")


def atomic_put(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.values = {"a": op.value, "b": op.value}
        entry = Entry(f"data/{op.value}", 1, op.value, 1)
        branch.stage_atomically([("a", entry), ("b", entry)])

    _on_main(actor, "atomic put", act)


def rename(actor: Actor) -> None:
    op = _on_main(actor, "rename", lambda branch, _: branch.rename("a", "b"), source="a", target="b")
    if op.error == "ObjectNotFound":
        op.seen = {"a": None}


def create(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.values = {CREATED: op.value}
        entry = Entry(f"data/{op.value}", 1, op.value, 1)
        stage_if(branch._at, CREATED, entry, lambda found: found is None)

    _on_main(actor, "create", act, path=CREATED)


def find(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        found = branch.find("a")
        op.seen = {"a": None if found is None else found.checksum}

    _on_main(actor, "find", act, path="a")


def list_(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.seen = listing(branch)

    _on_main(actor, "list", act)


def status(actor: Actor) -> None:
    def act(branch: Any, _op: Operation) -> list[tuple[str, str | None]]:
        return [(change.path, change.after.checksum if change.after else None) for change in branch.uncommitted()]

    _on_main(actor, "status", act)


def commit(actor: Actor) -> None:
    _on_main(actor, "commit", lambda branch, op: branch.commit(op.value).id, allow_empty=False)


def merge(actor: Actor) -> None:
    _on_main(actor, "merge", lambda branch, op: branch.merge("work", op.value).id, source="work", strategy=None)


def revert(actor: Actor) -> None:
    _on_main(actor, "revert", lambda branch, op: branch.revert("main", op.value).id, commit="~0")


def reset_all(actor: Actor) -> None:
    _on_main(actor, "reset", lambda branch, _: branch.discard(), what="")


def reset_path(actor: Actor) -> None:
    _on_main(actor, "reset", lambda branch, _: branch.discard("a"), what="a")


def hard_reset(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        target = actor.repo.ref("main~1")
        op.arguments["commit"] = target.commit_id
        branch.hard_reset(target)

    _on_main(actor, "hard reset", act, force=False)


def compact(actor: Actor) -> None:
    _on_main(actor, "compact", lambda branch, _: branch.compact(force=True).outcome, force=True)


def sweep(actor: Actor) -> None:
    op = actor.begin("sweep", "", "")
    actor.finish(op, lambda: actor.repo.sweep(after_s=0, again_after_s=1e12, private_after_s=0))


OPERATIONS: dict[str, Callable[[Actor], None]] = {
    "put": put,
    "put other": put_other,
    "delete": delete,
    "atomic put": atomic_put,
    "rename": rename,
    "create": create,
    "find": find,
    "list": list_,
    "status": status,
    "commit": commit,
    "merge": merge,
    "revert": revert,
    "reset all": reset_all,
    "reset path": reset_path,
    "hard reset": hard_reset,
    "compact": compact,
    "sweep": sweep,
}


# --- one run ----------------------------------------------------------------------------------------------------------


class _NoUpkeep:
    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None: ...

    def pause(self, seconds: float) -> bool:
        return False

    def close(self) -> None: ...


def prepared(scheduler: Scheduler, start: str) -> World:
    """main with two commits, work with one beside the first; the history begins after that.

    The oracle takes what the first head held for what was there: so what is staged comes as operations that are done.
    """
    world = World(scheduler)
    outside = world.outside()
    main = outside.branch("main")
    main.stage("a", Entry("data/base", 1, "base", 1))
    main.commit("base")
    work = outside.create_branch("work")
    work.stage("c/1", Entry("data/work", 1, "work", 1))
    work.commit("on work")
    main.stage("b", Entry("data/second", 1, "second", 1))
    main.commit("second")
    if start != "idle":
        op = Operation(0, "before", "put many", "main", main.branch_id, start=-1, end=-1, status="ok")
        op.values = {"b": op.value, "c/2": op.value}
        main.stage_each([(path, Entry("data/third", 1, op.value, 1)) for path in op.values])
        world.history.operations.append(op)
    if start == "compacted":
        main.compact(force=True)
    world.history.changes.clear()
    for branch in (main, work):
        world.moves_before[branch.name] = sum(1 for move in branch.reflog() if move.verb != "create")
    return world


def run(
    program: Program,
    start: str,
    choices: Sequence[int],
    fault: Fault | None = None,
    asleep: dict[int, Access] | None = None,
) -> Run:
    """Run a program with its first steps in a given order."""
    scheduler = Exploring(choices, fault, asleep or {})
    scheduler.guards_writes = start != UNGUARDED
    with seeded_ids("exhaustive"), instruments(Counter(), scheduler, cached_s=5):
        world = prepared(scheduler, start)
        for who, names in enumerate(program):
            process, repo = _process(world, f"p{who}")
            actor = Actor(world, process, repo, "", len(names))
            name = f"{process.name} {' '.join(names)}"
            scheduler.number[name] = who
            scheduler.spawn(process, name, _work(actor, names))
        broken: list[Broken] = []
        try:
            scheduler.begin()
            scheduler.run()
        except Endless as endless:
            broken.append(Broken("every operation ends", str(endless)))
        else:
            for task, error in scheduler.errors:
                broken.append(Broken("no error but those of `errors.py` gets out", f"{task.name}: {error!r}"))
            if not scheduler.is_known:
                broken = broken or last_look(world)
    return Run(scheduler.events, scheduler.calls, broken, scheduler.is_known, lambda: readable(world, broken))


def _process(world: World, name: str) -> tuple[Process, Repository]:
    process, repo = world.process(name, [])
    repo._core.upkeep = _NoUpkeep()
    return process, repo


def _work(actor: Actor, names: Sequence[str]) -> Callable[[], None]:
    def work() -> None:
        for name in names:
            OPERATIONS[name](actor)

    return work
