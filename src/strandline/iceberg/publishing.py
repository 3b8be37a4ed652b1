"""One change of a ref's tables and namespaces: decided on the head, stored, and published if the head is that still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from strandline.branch.one_shot import Unchanged
from strandline.branch.rules.lock_rules import refuse_quarantined
from strandline.branch.rules.ranges import Range
from strandline.errors import Conflict, NotAllowed, StrandlineError, UsageError
from strandline.iceberg.refusals import Stale
from strandline.ids import prefix_end
from strandline.repository.branch import Branch
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.one_shot import Asked, publish_entries
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry, user_metadata_json

ATTEMPTS = 20
"""How often a change is decided anew when others publish at the same time."""
TURN_S = 5.0
_JSON = "application/json"


@dataclass(slots=True)
class Plan:
    """What is to be published, decided on one head.

    Attributes:
        files: what is stored before, by key.
        unchanged: folders that were looked into, whose content must be the same still.
    """

    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Entry | None] = field(default_factory=dict)
    expected: dict[str, ObjectInfo | None] = field(default_factory=dict)
    result: Any = None
    files: dict[str, bytes] = field(default_factory=dict)
    unchanged: Unchanged | None = None


class OnRef:
    """What is read at a ref, and published to it if it is a branch.

    Args:
        committer: of the commits; by default the lake's.
        writer: the name by which a protection of the branch may allow changes.
    """

    def __init__(self, ref: Ref, *, committer: str | None = None, writer: str = "iceberg") -> None:
        self._ref = ref
        self._core = ref._core
        self._committer = committer
        self._writer = writer
        folder = self._core.resolver.namespace.local_path("x") or ""
        if set(folder) & set("#?"):
            raise UsageError(
                f"Iceberg's clients cannot read below the folder {folder[:-2]!r}: they cut addresses at '#' and '?'.",
                next="Move the lake to a folder without them.",
            )

    def _head(self, folder: str = "") -> Ref:
        """What is committed, as of now.

        Args:
            folder: that a reader looks into: on a branch it must not be quarantined.
        """
        ref = self._ref
        if not isinstance(ref, Branch):
            return ref
        branch = ref._at.read(shared=True).branch
        if folder:
            refuse_quarantined(branch, ref.name, Range(folder, prefix_end(folder)))
        return Ref(ref._core, ref.name, Target("commit", branch.head, ref.name, ref.branch_id))

    @property
    def _branch(self) -> Branch:
        if not isinstance(self._ref, Branch):
            raise NotAllowed(f"{self._ref.expression!r} cannot be changed.", next="Only branches can be written.")
        return self._ref

    def _publish(self, decide: Callable[[Ref], Plan]) -> Any:
        """Publish what is decided on the head, on whatever the head is by then.

        Invariant: a plan is published only if each path that it was decided on holds on the head what it held when it
        was read (`one_shot.publish`). What was stored for a plan that surely was not published is deleted again.
        """
        branch = self._branch
        for _ in range(ATTEMPTS):
            with self._turn(branch):
                plan = decide(self._head())
                if not plan.changes or self._is_published(branch, plan):
                    return plan.result
        raise Stale(
            f"Others kept publishing to branch {branch.name!r}, {ATTEMPTS} times in a row.", next="Repeat the call."
        )

    @contextmanager
    def _turn(self, branch: Branch) -> Iterator[None]:
        """Let one caller of this process decide at a time; one that waits for long goes on, and may lose a race."""
        turn = branch._at.cell.turn
        is_mine = turn.acquire(timeout=TURN_S)
        try:
            yield
        finally:
            if is_mine:
                turn.release()

    def _is_published(self, branch: Branch, plan: Plan) -> bool:
        """Publish a plan; False if the head holds something else by now than it was decided on."""
        draft = make_draft(self._core, plan.message, plan.metadata, self._committer)
        asked = Asked(self._writer)
        try:
            for key, data in plan.files.items():
                self._core.resolver.namespace.put(key, data, "fresh")
            publish_entries(self._core, branch._at, plan.changes, plan.expected, draft, asked, plan.unchanged)
        except StrandlineError as error:
            if getattr(error, "happened", "no") != "no":
                raise  # the head may name the files
            self._forget(plan)
            if type(error) is not Conflict:
                raise
            return False
        return True

    def _forget(self, plan: Plan) -> None:
        with suppress(StrandlineError):  # what stays is garbage
            self._core.resolver.namespace.delete_many(sorted(plan.files))

    def _stored(self, plan: Plan, key: str, data: bytes, metadata: dict[str, str] | None) -> Entry:
        """The entry of what is stored when the plan is published."""
        plan.files[key] = data
        now_us = self._core.stores.clock.now_us()
        checksum = f"blake3:{blake3(data).hexdigest()}"
        return Entry(key, len(data), checksum, now_us, _JSON, user_metadata_json(metadata))

    def _url(self, key: str) -> str:
        """Where clients find a file: of a folder its plain path, which they do not decode."""
        blobs = self._core.resolver.namespace
        return blobs.spark_url(key) if blobs.local_path("x") is not None else f"{blobs.url}/{key}"

    def _now_ms(self) -> int:
        return self._core.stores.clock.now_us() // 1_000
