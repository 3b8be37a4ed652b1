"""Encounters that the other families seldom have: few roles at a time, each pair a rule of its own.

A merger and a putter beside a lister on a branch where nothing else happens; sweeps beside attaches, and beside resets
that died; collectors with clocks of their own beside a linker that is held up between its two calls.
"""

from __future__ import annotations

from strandline.errors import ObjectMissing
from strandline.testing.simulation.actors import KINDS, ROLES, Actor


def link(actor: Actor, kind: str) -> None:
    """Refer to bytes at an address that was read some time ago: they may have lost their last reference since."""
    source = actor.branch(actor.rnd.choice(("main", "work")))
    old, new = actor.path(), actor.path()
    look = actor.begin("find", source.name, source.branch_id, path=old)
    found = None

    def find() -> None:
        nonlocal found
        found = source.find(old)
        look.seen = {old: None if found is None else found.checksum}

    actor.finish(look, find)
    if found is not None:
        actor.found.append((found.physical_address, found.checksum))
    if not actor.found:
        return
    address, checksum = actor.rnd.choice(actor.found[:2] if actor.rnd.random() < 0.5 else actor.found)
    actor.world.scheduler.sleep(actor.rnd.choice((0, 5, 40)))
    branch = actor.branch()
    op = actor.begin(kind, branch.name, branch.branch_id, path=new, address=address)
    op.values = {new: checksum}

    def act() -> None:
        try:
            branch.link(new, address, size=len(checksum.encode()), checksum=checksum)  # which is what the bytes say
        except ObjectMissing:
            op.values = {}
            raise

    actor.finish(op, act)


def list_and_status(actor: Actor, _kind: str) -> None:
    for kind in ("list", "status", "list"):
        KINDS[kind](actor, kind)


KINDS.update({"link": link, "list and status": list_and_status})
ROLES.update(
    {
        "linker": {"link": 4, "put": 3, "delete": 3, "commit": 0.5, "list committed": 0.5},
        "lister": {"list and status": 1},
        "putter": {"put": 3, "delete": 1},
        "one who merges": {"merge": 1},
        "attacher": {"atomic put": 3, "rename": 2, "delete prefix": 1, "list": 1},
        "one who resets": {"reset": 3, "put": 2, "list": 1},
    }
)
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "encounters": {
        "an idle branch": ("lister", "lister", "putter", "one who merges"),
        "attaches and sweeps": ("attacher", "attacher", "sweeper", "sweeper", "committer"),
        "resets and sweeps": ("one who resets", "one who resets", "sweeper", "sweeper", "putter"),
        "conditions and seals": ("creator", "creator", "compactor", "sweeper", "putter"),
        "nothing to commit": ("committer", "compactor", "sweeper", "putter"),
    },
    "links": {
        "two collectors": ("linker", "linker", "keeper", "keeper"),
        "and commits": ("linker", "linker", "committer", "shifter", "keeper", "keeper"),
    },
}
