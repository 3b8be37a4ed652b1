"""Those who freeze ranges: the third family of schedules.

What the others write meanwhile is refused without a trace, or it was there before the lock. A holder works through a
transaction, or holds a bare lock and lets the others try; it dies between any two calls, and others take over.
"""

from __future__ import annotations

from strandline.branch.rules.lock_rules import locks_of
from strandline.branch.rules.ranges import ALL
from strandline.repository.locks.held import LockedTransaction
from strandline.repository.locks.locks import LockInfo, LockRequest
from strandline.testing.simulation.actors import KINDS, ROLES, Actor
from strandline.testing.simulation.world import OWNER

WRITERS = ("repair", "load", None)
RANGES: tuple[object, ...] = ("a", "b", "c/", ("a", "c/2"), ["a", "c/"], ("b", None))
WAIT_S = 20.0


def hold(actor: Actor, kind: str) -> None:
    """Take a lock together with a transaction; what it does then is what drivers do."""
    if actor.job is not None and actor.job.phase == "open" and actor.rnd.random() < 0.7:
        return
    branch = actor.branch()
    is_whole = actor.rnd.random() < 0.1
    what = ALL if is_whole else actor.rnd.choice(RANGES)
    on_dirty = actor.rnd.choice(("fail", "commit", "discard"))
    op = actor.begin(kind, branch.name, branch.branch_id, what=what, on_dirty=on_dirty)
    timeout_s = actor.rnd.choice((0.0, 0.0, 1.0))
    mode = actor.rnd.choice(("exclusive", "exclusive", "quarantine"))
    writer = actor.rnd.choice(WRITERS)

    def act() -> None:
        actor.job = None
        branch._core.transactions.clear()  # whoever used this process before may have died
        options = {"owner": OWNER, "mode": mode, "timeout_s": timeout_s, "on_dirty": on_dirty, "writer": writer}
        job: LockedTransaction = branch.lock_branch(**options) if is_whole else branch.lock(what, **options)  # type: ignore[arg-type]
        job.begin()
        op.arguments["base"] = job.commit_id
        actor.job = job

    actor.finish(op, act)


def take(actor: Actor, kind: str) -> None:
    """Hold a bare lock for a while, alone or with others, then end it."""
    branch = actor.branch()
    what = actor.rnd.choice(RANGES)
    mode = actor.rnd.choice(("exclusive", "shared"))
    on_dirty = actor.rnd.choice(("fail", "commit", "discard"))
    op = actor.begin(kind, branch.name, branch.branch_id, what=what, mode=mode, on_dirty=on_dirty)
    timeout_s = actor.rnd.choice((0.0, 2.0))
    lock: LockInfo | None = None

    def act() -> None:
        nonlocal lock
        lock = branch.locks.take(what, owner=OWNER, mode=mode, timeout_s=timeout_s, on_dirty=on_dirty)  # type: ignore[arg-type]

    actor.finish(op, act)
    if lock is None:
        return
    for _ in range(actor.rnd.randrange(3)):
        kind = actor.rnd.choice(("put", "find", "list"))
        KINDS[kind](actor, kind)
    release = actor.begin("release lock", branch.name, branch.branch_id, lock=lock.id)
    actor.finish(release, lambda: branch.locks.release(lock.id))


def queue(actor: Actor, kind: str) -> None:
    """Wait for the one lock that everybody wants."""
    if actor.rnd.random() < 0.7:
        return  # a few turns of each are enough to meet
    branch = actor.branch("main")
    op = actor.begin(kind, "main", branch.branch_id, what="a", on_dirty="discard")

    lock: LockInfo | None = None

    def act() -> None:
        nonlocal lock
        # not `take`, for which the same request by the same owner is the same lock: here each is somebody else
        [lock] = branch.locks.change([LockRequest("a", OWNER)], timeout_s=WAIT_S, on_dirty="discard")

    actor.finish(op, act)
    if lock is not None:
        actor.world.scheduler.sleep(actor.rnd.randrange(5))
        release = actor.begin("release lock", "main", branch.branch_id, lock=lock.id)
        actor.finish(release, lambda: branch.locks.release(lock.id))


def break_(actor: Actor, kind: str) -> None:
    """An operator ends what the dead have left, and sometimes what the living have."""
    branch = actor.branch()
    op = actor.begin(kind, branch.name, branch.branch_id)

    def act() -> None:
        for lock in list(locks_of(branch._at.read().branch)):
            if lock.transaction:
                branch.transactions.abort(lock.transaction)
            branch.locks.end([lock.id])

    actor.finish(op, act)


KINDS.update({"hold": hold, "take lock": take, "queue": queue, "break locks": break_})
ROLES.update(
    {
        "holder": {"hold": 4, "write": 4, "publish": 3, "abort": 0.3},
        "locker": {"take lock": 3, "put": 1},
        "queuer": {"queue": 1},
        "breaker": {"break locks": 1, "list": 2},
        "trier": {"put": 5, "delete": 2, "put many": 1, "delete many": 1, "atomic put": 1, "rename": 1, "find": 2},
    }
)
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "locks": {
        "writers": ("holder", "locker", "trier", "trier", "trier", "committer", "reader"),
        "committers": ("locker", "trier", "committer", "committer", "compactor", "reader"),
        "heads": ("holder", "merger", "committer", "resetter", "reader"),
        "moves": ("holder", "locker", "mover", "mover", "creator", "reader"),
        "rivals": ("holder", "holder", "holder", "locker", "breaker", "trier"),
        "branches": ("holder", "brancher", "protector", "committer", "trier"),
        "late": ("locker", "trier", "trier", "sweeper", "committer", "reader"),
    },
    "queues": {"one lock": ("queuer", "queuer", "queuer", "queuer", "queuer", "trier")},
}
