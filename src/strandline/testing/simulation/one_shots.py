"""Clients that compare and replace a few paths in one shot, beside all others: a family of schedules."""

from __future__ import annotations

from strandline.errors import StoreUnavailable
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.one_shot import Asked, publish_entries
from strandline.testing.simulation.actors import KINDS, ROLES, Actor, _entry

TRIES = 3
TOKENS = ("", "", "of nobody else", "again", "once more")


def one_shot(actor: Actor, kind: str) -> None:
    """Read some paths of the head and publish on that; after a lost reply the same again, if there is a token."""
    branch = actor.branch()
    paths = actor.some_paths(1)
    relied = {actor.path(), *paths}
    token = actor.rnd.choice(TOKENS)
    deletes = actor.rnd.random() < 0.3
    op = actor.begin(kind, branch.name, branch.branch_id, paths=",".join(paths), token=token)
    if token == "of nobody else":
        token = op.value

    def act() -> str:
        head = actor.repo.ref(f"{branch.name}@")
        expected = {path: head.find(path) for path in sorted(relied)}
        op.arguments["expected"] = {path: found and found.checksum for path, found in expected.items()}
        changes = {path: None if deletes else _entry(actor, branch, op.value) for path in paths}
        draft = make_draft(branch._core, op.value)
        for left in range(TRIES, 0, -1):
            try:
                made = publish_entries(branch._core, branch._at, changes, expected, draft, Asked("client", token))
                return str(made.id)
            except StoreUnavailable as error:
                if left == 1 or not (token or error.happened == "no"):
                    raise
                actor.world.scheduler.sleep(3)
        raise AssertionError

    actor.finish(op, act)


KINDS["one shot"] = one_shot
ROLES["publisher"] = {"one shot": 4, "put": 0.5, "commit": 0.5}
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "one-shots": {
        "rivals": ("publisher", "publisher", "publisher", "reader"),
        "beside writers": ("publisher", "publisher", "writer", "committer", "compactor"),
        "beside heads": ("publisher", "publisher", "merger", "resetter", "committer"),
        "on branches that go": ("publisher", "publisher", "brancher", "sweeper"),
    }
}
