"""What clients do: each actor takes a number of steps, of kinds that the seed picks.

All of them work on the same few paths, so that they collide. A new kind of operation is a function here, a weight in
`ROLES`, and what it may do to a path in the oracle's `effects`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from strandline.branch.conditional import stage_if
from strandline.errors import BranchGone, NotFound, StoreUnavailable, StrandlineError
from strandline.repository.branch import Branch
from strandline.repository.commits.settling import MergeStrategy
from strandline.repository.repository import Repository
from strandline.results.rows import ObjectInfo
from strandline.testing.simulation.collector import collect_garbage
from strandline.testing.simulation.history import CREATED, PATHS, Listing, Operation
from strandline.testing.simulation.scheduler import Killed, Process
from strandline.testing.simulation.world import World
from strandline.tree.rows import Entry

WORK_SHARE = 0.25
"""How often an operation is on the second branch."""


@dataclass
class Actor:
    """A client of one process that does one kind of work.

    Attributes:
        job: the transaction that it has begun last, if it makes any.
        found: addresses that it has read at some time, and what is there.
    """

    world: World
    process: Process
    repo: Repository
    role: str
    steps: int
    handles: dict[str, Branch] = field(default_factory=dict)
    job: Any = None
    found: list[tuple[str, str]] = field(default_factory=list)

    def run(self) -> None:
        kinds, weights = zip(*ROLES[self.role].items(), strict=True)
        for _ in range(self.steps * EAGERNESS.get(self.role, 1)):
            kind = self.rnd.choices(kinds, weights)[0]
            try:
                KINDS[kind](self, kind)
            except (StoreUnavailable, NotFound):
                continue  # while it looked for the branch

    @property
    def rnd(self) -> Random:
        return self.world.scheduler.random

    def branch(self, name: str | None = None) -> Branch:
        """A handle, mostly one that was made earlier."""
        if name is None:
            name = "work" if self.rnd.random() < WORK_SHARE else "main"
        if name not in self.handles or self.rnd.random() < 0.3:
            self.handles[name] = self.repo.branch(name)
        return self.handles[name]

    def path(self) -> str:
        return self.rnd.choice(self.world.paths)

    def some_paths(self, least: int) -> list[str]:
        paths = self.world.paths
        return self.rnd.sample(paths, min(len(paths), self.rnd.randrange(least, least + 2)))

    def begin(self, kind: str, branch: str, creation: str, **arguments: object) -> Operation:
        history = self.world.history
        moment = self.world.scheduler.tick()
        number = len(history.operations)
        operation = Operation(number, self.process.name, kind, branch, creation, moment, arguments=arguments)
        history.operations.append(operation)
        self.world.scheduler.current.operation = operation
        return operation

    def finish(self, operation: Operation, action: Callable[[], object]) -> None:
        """Do it, and write down what became of it."""
        scheduler = self.world.scheduler
        try:
            operation.result = action()
            operation.status = "ok"
        except Killed:
            raise
        except StrandlineError as error:
            operation.error = type(error).__name__
            if isinstance(error, StoreUnavailable):
                operation.status = "failed" if error.happened == "no" else "unknown"
            else:
                # a write that finds its branch deleted went there and is lost with it
                is_unknown = operation.error == "BranchGone" or "unknown" in error.safe
                operation.status = "unknown" if is_unknown else "refused"
            if isinstance(error, BranchGone):
                self.handles.pop(operation.branch, None)
        finally:
            scheduler.current.operation = None
        if operation.status != "unknown":
            operation.end = scheduler.tick()


def _bytes(actor: Actor, branch: Branch, value: str) -> str:
    """Where the bytes of a value are; they are really there only if somebody might collect them."""
    if not actor.world.has_bytes:
        return f"data/{value}"
    key = branch._new_key(value)
    branch._core.resolver.namespace.put(key, value.encode())
    return key


def _entry(actor: Actor, branch: Branch, value: str) -> Entry:
    etag = value if zlib.crc32(value.encode()) % 3 == 0 else None
    return Entry(_bytes(actor, branch, value), 1, value, 1, etag=etag)


def _stage(actor: Actor, branch: Branch, path: str, value: str) -> None:
    branch.stage(path, _entry(actor, branch, value))


def _on(actor: Actor, kind: str, **arguments: object) -> tuple[Branch, Operation]:
    branch = actor.branch()
    return branch, actor.begin(kind, branch.name, branch.branch_id, **arguments)


# --- staging ----------------------------------------------------------------------------------------------------------


def put(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind, path=actor.path())
    path = op.arguments["path"]
    op.values = {path: op.value}
    actor.finish(op, lambda: _stage(actor, branch, path, op.value))


def copy_across(actor: Actor, kind: str) -> None:
    """Refer to what another branch, or an earlier commit, holds."""
    into, source = actor.rnd.sample(("main", "work"), 2)
    where = actor.rnd.choice((source, f"{source}@", f"{into}~1", f"{source}~1"))
    old, new = actor.path(), actor.path()
    branch = actor.branch(into)
    op = actor.begin(kind, into, branch.branch_id, source=f"{where}/{old}", target=new)

    actor.finish(op, lambda: branch.copy(old, new, ref=where))


def add(actor: Actor, _kind: str) -> None:
    """Read a path, then write it: what a client does that counts something without `if_match`."""
    path = actor.path()
    branch, read = _on(actor, "find", path=path)

    def look() -> None:
        found = branch.find(path)
        read.seen = {path: None if found is None else found.checksum}

    actor.finish(read, look)
    write = actor.begin("put", branch.name, branch.branch_id, path=path)
    write.values = {path: write.value}
    actor.finish(write, lambda: _stage(actor, branch, path, write.value))


def put_many(actor: Actor, kind: str) -> None:
    paths = actor.some_paths(2)
    branch, op = _on(actor, kind, paths=",".join(paths))
    op.values = dict.fromkeys(paths, op.value)

    def act() -> None:
        entry = _entry(actor, branch, op.value)
        entries = [(path, entry) for path in paths]
        if kind == "atomic put":
            branch.stage_atomically(entries)
        else:
            branch.stage_each(entries)

    actor.finish(op, act)


def delete(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind, path=actor.rnd.choice((*actor.world.paths, CREATED)))
    path = op.arguments["path"]
    op.values = {path: None}

    def act() -> None:
        if not branch.delete(path):
            op.values, op.seen = {}, {path: None}

    actor.finish(op, act)


def delete_many(actor: Actor, kind: str) -> None:
    paths = actor.some_paths(1)
    branch, op = _on(actor, kind, paths=",".join(paths))
    op.values = dict.fromkeys(paths)
    actor.finish(op, lambda: branch.delete_many(paths))


def delete_prefix(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind, prefix="c/")
    op.values = {path: None for path in PATHS if path.startswith("c/")}
    actor.finish(op, lambda: branch.delete_prefix("c/"))


def move(actor: Actor, kind: str) -> None:
    source, target = actor.rnd.sample(PATHS, 2)
    branch, op = _on(actor, kind, source=source, target=target)

    def act() -> None:
        (branch.rename if kind == "rename" else branch.copy)(source, target)

    actor.finish(op, act)
    if op.error == "ObjectNotFound":
        op.seen = {source: None}


def create(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind, path=CREATED)
    op.values = {CREATED: op.value}

    def act() -> None:
        stage_if(
            branch._at,
            CREATED,
            _entry(actor, branch, op.value),
            lambda found: found is None,
        )

    actor.finish(op, act)


# --- reading ----------------------------------------------------------------------------------------------------------


def find(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind, path=actor.path())
    path = op.arguments["path"]

    def act() -> None:
        found = branch.find(path)
        op.seen = {path: None if found is None else found.checksum}

    actor.finish(op, act)


def listing(branch: object) -> Listing:
    """All paths of a ref with their checksums."""
    found = {info.path: info.checksum for info in branch.list()}  # type: ignore[attr-defined]
    return {path: found.pop(path, None) for path in (*PATHS, CREATED)} | found


def list_(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind)

    def act() -> None:
        op.seen = listing(branch)

    actor.finish(op, act)


def pages(actor: Actor, kind: str) -> None:
    """A listing that the client fetches one object at a time: each page is of an instant of its own."""
    branch, op = _on(actor, kind)

    def act() -> Listing:
        found: Listing = dict.fromkeys((*PATHS, CREATED))
        after = ""
        while page := list(branch.list(after=after, amount=1)):
            assert isinstance(page[0], ObjectInfo)
            after = page[0].path
            found[after] = page[0].checksum
        return found

    actor.finish(op, act)


def list_committed(actor: Actor, kind: str) -> None:
    branch = actor.branch()
    op = actor.begin(kind, branch.name, "")

    def act() -> Listing:
        ref = actor.repo.ref(f"{branch.name}@")
        op.arguments["commit"] = ref.commit_id
        return listing(ref)

    actor.finish(op, act)


def status(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind)

    def act() -> list[tuple[str, str | None]]:
        return [(change.path, change.after.checksum if change.after else None) for change in branch.uncommitted()]

    actor.finish(op, act)


# --- heads ------------------------------------------------------------------------------------------------------------


def commit(actor: Actor, _kind: str) -> None:
    _commit(actor, actor.branch(), actor.rnd.random() < 0.1)


def _commit(actor: Actor, branch: Branch, empty: bool) -> None:
    op = actor.begin("commit", branch.name, branch.branch_id, allow_empty=empty)
    actor.finish(op, lambda: branch.commit(op.value, allow_empty=empty).id)


def merge(actor: Actor, kind: str) -> None:
    into, source = actor.rnd.sample(("main", "work"), 2)
    branch = actor.branch(into)
    if actor.rnd.random() < 0.7:  # else there is seldom something to merge, and often something in the way
        _commit(actor, actor.branch(source), False)
        _commit(actor, branch, False)
    strategies: tuple[MergeStrategy, ...] = (None, "source-wins", "dest-wins")
    strategy = actor.rnd.choice(strategies)
    op = actor.begin(kind, into, branch.branch_id, source=source, strategy=strategy)
    actor.finish(op, lambda: branch.merge(source, op.value, strategy=strategy).id)


def revert(actor: Actor, kind: str) -> None:
    branch, op = _on(actor, kind, commit="~0")
    actor.finish(op, lambda: branch.revert(branch.name, op.value).id)


def cherry_pick(actor: Actor, kind: str) -> None:
    into, source = actor.rnd.sample(("main", "work"), 2)
    branch = actor.branch(into)
    if actor.rnd.random() < 0.7:
        _commit(actor, branch, False)
    op = actor.begin(kind, into, branch.branch_id, commit=source)
    actor.finish(op, lambda: branch.cherry_pick(source, op.value, parent=1).id)


def reset(actor: Actor, kind: str) -> None:
    path = actor.path()
    how = actor.rnd.choice(("all", "path", "path", "path", "prefix"))
    branch, op = _on(actor, kind, what={"all": "", "path": path, "prefix": "c/"}[how])
    options = {"all": {}, "path": {"path": path}, "prefix": {"prefix": "c/"}}[how]
    actor.finish(op, lambda: branch.discard(**options))


def hard_reset(actor: Actor, kind: str) -> None:
    force = actor.rnd.random() < 0.5
    branch, op = _on(actor, kind, force=force)

    def act() -> None:
        target = actor.repo.ref(f"{branch.name}~1")
        op.arguments["commit"] = target.commit_id
        branch.hard_reset(target, force=force)

    actor.finish(op, act)


# --- upkeep -----------------------------------------------------------------------------------------------------------


def compact(actor: Actor, kind: str) -> None:
    force = actor.rnd.random() < 0.7
    branch, op = _on(actor, kind, force=force)
    actor.finish(op, lambda: branch.compact(force=force).outcome)


def sweep(actor: Actor, kind: str) -> None:
    actor.world.scheduler.sleep(actor.rnd.randrange(8))
    op = actor.begin(kind, "", "")
    # never the second sweep of a token, which in a real lake waits for late writers
    actor.finish(op, lambda: actor.repo.sweep(after_s=0, again_after_s=1e12, private_after_s=0))


def collect(actor: Actor, kind: str) -> None:
    op = actor.begin(kind, "", "")
    actor.finish(op, lambda: collect_garbage(actor.world, actor.repo, op))


def delete_branch(actor: Actor, kind: str) -> None:
    branch = actor.branch("work")
    op = actor.begin(kind, "work", branch.branch_id)
    actor.finish(op, lambda: actor.repo.delete_branch("work"))


def create_branch(actor: Actor, kind: str) -> None:
    op = actor.begin(kind, "work", "")

    def act() -> None:
        op.creation = actor.repo.create_branch("work", "main").branch_id

    actor.finish(op, act)


def protect(actor: Actor, kind: str) -> None:
    what = actor.rnd.choice(("stage", "commit", "read-only"))
    op = actor.begin(kind, "main", "", what=what)
    _change(actor, op, what, True)
    op = actor.begin("unprotect", "main", "", what=what)
    _change(actor, op, what, False)


def _change(actor: Actor, op: Operation, what: str, on: bool) -> None:
    def act() -> None:
        if what == "read-only":
            actor.repo.set_read_only(on)
        elif on:
            actor.repo.protect("main", [what])
        else:
            actor.repo.unprotect("main")

    actor.finish(op, act)


KINDS: dict[str, Callable[[Actor, str], None]] = {
    "put": put,
    "add": add,
    "put many": put_many,
    "atomic put": put_many,
    "delete": delete,
    "delete many": delete_many,
    "delete prefix": delete_prefix,
    "rename": move,
    "copy": move,
    "create": create,
    "find": find,
    "list": list_,
    "list committed": list_committed,
    "pages": pages,
    "status": status,
    "commit": commit,
    "merge": merge,
    "revert": revert,
    "cherry-pick": cherry_pick,
    "reset": reset,
    "hard reset": hard_reset,
    "compact": compact,
    "sweep": sweep,
    "collect": collect,
    "delete branch": delete_branch,
    "create branch": create_branch,
    "protect": protect,
    "copy across": copy_across,
}
ROLES: dict[str, dict[str, float]] = {
    "writer": {"put": 5, "add": 1, "delete": 3, "put many": 1, "delete many": 1, "find": 3, "list": 1},
    "mover": {"atomic put": 3, "rename": 3, "copy": 2, "delete prefix": 1, "list": 2},
    "creator": {"create": 4, "delete": 1, "find": 1},
    "reader": {"find": 3, "list": 2, "status": 1, "list committed": 1, "pages": 1},
    "committer": {"commit": 5, "put": 3, "list committed": 1},
    "compactor": {"compact": 4, "put": 2, "list": 1},
    "merger": {"merge": 4, "revert": 1, "cherry-pick": 2, "commit": 2, "put": 1},
    "resetter": {"reset": 5, "hard reset": 1, "put": 3, "list": 1},
    "sweeper": {"sweep": 1},
    "collector": {"collect": 1},
    "brancher": {"delete branch": 1, "create branch": 2, "put": 2, "find": 1},
    "protector": {"protect": 1, "put": 1},
}
EAGERNESS = {"sweeper": 5, "collector": 2}
"""Roles that take more steps than others, since most of theirs find nothing to do."""
SCENARIOS: dict[str, tuple[str, ...]] = {
    "threads": ("writer", "writer", "reader", "committer", "committer"),
    "writes": ("writer", "writer", "committer", "committer", "reader", "reader"),
    "compaction": ("writer", "committer", "committer", "compactor", "compactor", "reader"),
    "moves": ("mover", "mover", "mover", "committer", "committer", "committer", "reader"),
    "sweeps": ("writer", "mover", "committer", "committer", "sweeper", "sweeper", "reader"),
    "heads": ("writer", "committer", "committer", "merger", "merger"),
    "resets": ("writer", "committer", "committer", "committer", "resetter", "resetter"),
    "branches": ("writer", "reader", "committer", "brancher", "merger", "sweeper"),
    "garbage": ("writer", "committer", "committer", "resetter", "compactor", "collector", "collector"),
    "conditions": ("creator", "creator", "creator", "committer", "compactor", "sweeper"),
    "protection": ("writer", "committer", "protector", "mover"),
    "everything": tuple(ROLES),
}
"""Who meets whom. Few kinds at a time meet more often than all at once."""
OFTEN = ("heads", "resets", "resets", "moves", "sweeps", "sweeps")
"""Scenarios whose bugs need the longest coincidences."""
