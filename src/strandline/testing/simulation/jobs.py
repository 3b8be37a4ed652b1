"""Drivers of jobs, and the real collector of garbage: the second family of schedules.

A driver takes some steps for each transaction, so that it meets rivals under its name, is overtaken, paused, or dies
between any two of them, and comes back when a successor has published and what it left has been collected.
"""

from __future__ import annotations

from dataclasses import replace

from strandline.core.retention import Retention
from strandline.errors import (
    BranchGone,
    Contention,
    Fenced,
    StoreUnavailable,
    StrandlineError,
    TransactionClosed,
    UsageError,
)
from strandline.repository.transactions.transaction import Transaction
from strandline.repository.upkeep.garbage import Collector
from strandline.testing.simulation.actors import KINDS, ROLES, SCENARIOS, Actor
from strandline.testing.simulation.collector import under_way
from strandline.testing.simulation.stores import store_time

WRITERS = ("nightly", "hourly")
TRIES = 3
PATIENCE_TURNS = 60
RULE = Retention(days=0.0)
"""All commits but heads expire at once: what is left to protect them is what the protocol does."""


def begin(actor: Actor, kind: str) -> None:
    if actor.job is not None and actor.job.phase == "open" and actor.rnd.random() < 0.7:
        return
    branch = actor.branch()
    writer = actor.rnd.choice(WRITERS)
    token = actor.rnd.choice(("", "", "again"))
    op = actor.begin(kind, branch.name, branch.branch_id, writer=writer, token=token)

    def act() -> None:
        actor.job = None
        branch._core.transactions.clear()  # the driver before this one may have died
        job = branch.transaction(writer, "-", token=token, node="n", on_staged=actor.rnd.choice(("fail", "keep")))
        job.begin()
        op.result = (job.id, job.is_repeat)
        op.arguments["base"] = job.commit_id
        actor.job = job

    actor.finish(op, act)
    if op.status == "ok":
        op.result = (actor.job.id, actor.job.is_repeat)


def write(actor: Actor, kind: str) -> None:
    """Write a path, or overwrite a prefix; nobody sees it, so it is no operation of the history."""
    job = actor.job
    if job is None or job.phase != "open":
        return
    op = actor.begin(kind, job.name, "", transaction=job.id)

    def act() -> None:
        path = actor.path()
        key = job._new_key(path)
        job._core.resolver.namespace.put(key, op.value.encode())
        if actor.rnd.random() < 0.2:
            job.delete_prefix("c/")
        job.link(path, key, size=1, checksum=op.value)

    actor.finish(op, act)


def publish(actor: Actor, kind: str) -> None:
    job: Transaction | None = actor.job
    if job is None or job.phase not in ("open", "repeat"):
        return
    op = actor.begin(
        kind,
        job.name,
        job.branch_id,
        writer=job.writer,
        transaction=job.id,
        repeat=job.is_repeat,
        on_staged=job._options.on_staged,
    )
    job._draft = replace(job._draft, message=op.value)

    def act() -> str:
        for left in range(TRIES, 0, -1):
            try:
                op.arguments["changes"] = len(job._claims.changes)
                return job.commit().commit
            except StoreUnavailable:
                if left == 1:
                    raise
                actor.world.scheduler.sleep(3)
        raise AssertionError

    actor.finish(op, act)
    if op.error in ("Fenced", "TransactionClosed"):
        actor.job = None


def abort(actor: Actor, kind: str) -> None:
    job = actor.job
    if job is None or job.phase != "open":
        return
    op = actor.begin(kind, job.name, job.branch_id, writer=job.writer, transaction=job.id)
    actor.finish(op, job.abort)
    actor.job = None


def recover(actor: Actor, kind: str) -> None:
    """An operator brings to an end what drivers have left."""
    branch = actor.branch()
    op = actor.begin(kind, branch.name, "")

    def act() -> None:
        for found in list(branch.transactions):
            if found.state in ("open", "rejected-pending"):
                branch._core.transactions.clear()
                try:
                    branch.transactions.recover(found.id)
                except (Fenced, TransactionClosed, UsageError, BranchGone):
                    continue
                except StoreUnavailable:
                    raise
                except StrandlineError:
                    continue

    actor.finish(op, act)


def shift(actor: Actor, _kind: str) -> None:
    """Copy what is only staged to another branch, and delete it where it was: its bytes change branches."""
    into, source = actor.rnd.sample(("main", "work"), 2)
    path, branch, other = actor.path(), actor.branch(into), actor.branch(source)
    if actor.rnd.random() < 0.5:
        KINDS["put"](actor, "put")
    op = actor.begin("copy across", into, branch.branch_id, source=f"{source}/{path}", target=path)
    actor.finish(op, lambda: branch.copy(path, path, ref=other))
    if op.status == "ok" or actor.rnd.random() < 0.5:
        gone = actor.begin("delete", source, other.branch_id, path=path)
        gone.values = {path: None}

        def act() -> None:
            if not other.delete(path):
                gone.values, gone.seen = {}, {path: None}

        actor.finish(gone, act)


def collect(actor: Actor, kind: str) -> None:
    """A run of the real collector; its grace is as long as any operation that is under way, and not longer."""
    world = actor.world
    lands_at = world.scheduler.last_landing
    for _ in range(PATIENCE_TURNS):
        if world.scheduler.step > lands_at:
            break
        world.scheduler.sleep(5)
    else:
        return
    op = actor.begin(kind, "", "")
    others = [other.start for other in under_way(world) if other is not op]
    before = store_time(min([op.start, *others]))
    op.arguments["before"] = before
    runs = [other.arguments.get("before", before) for other in under_way(world)]

    def act() -> object:
        collector = Collector(
            actor.repo._core, RULE, grace_days=0.0, before_us=before, links_before_us=min([before, *runs])
        )
        try:
            return collector.run()
        except Contention:
            return None

    actor.finish(op, act)


KINDS.update(
    {
        "begin": begin,
        "write": write,
        "publish": publish,
        "abort": abort,
        "recover": recover,
        "collect garbage": collect,
        "shift": shift,
    }
)
JOB_ROLES: dict[str, dict[str, float]] = {
    "driver": {"begin": 3, "write": 4, "publish": 3, "abort": 0.3},
    "operator": {"recover": 1, "list": 1},
    "keeper": {"collect garbage": 1},
    "shifter": {"shift": 4, "put": 1, "commit": 0.3},
    "copier": {"copy across": 3, "copy": 1, "rename": 2, "put": 2, "delete": 1, "commit": 1},
}
ROLES.update(JOB_ROLES)
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "ranges": {"garbage": SCENARIOS["garbage"]},
    "jobs": {
        "rivals": ("driver", "driver", "driver", "reader"),
        "staging": ("driver", "driver", "writer", "committer", "compactor"),
        "heads": ("driver", "driver", "merger", "resetter"),
        "operators": ("driver", "driver", "operator", "reader"),
        "branches": ("driver", "driver", "brancher", "committer"),
    },
    "garbage": {
        "copies": ("copier", "copier", "committer", "keeper", "keeper"),
        "shifts": ("shifter", "shifter", "keeper"),
        "shifts and commits": ("shifter", "shifter", "committer", "keeper", "keeper"),
        "history": ("merger", "resetter", "committer", "brancher", "keeper", "keeper"),
        "jobs": ("driver", "driver", "driver", "keeper"),
        "slow jobs": ("driver", "driver", "keeper", "keeper"),
        "jobs and operators": ("driver", "driver", "operator", "merger", "keeper"),
        "all": ("copier", "driver", "merger", "compactor", "mover", "keeper", "keeper", "keeper"),
    },
    "levels": {
        "edits": ("writer", "writer", "committer", "compactor", "merger", "keeper"),
        "history": ("merger", "resetter", "committer", "brancher", "keeper", "keeper"),
        "jobs": ("driver", "driver", "merger", "keeper", "keeper"),
    },
}
"""Scenarios of the families that are run by themselves: `--family jobs`."""
