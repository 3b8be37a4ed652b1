"""How two sides' changes of one table become one. Pure but for `settle_table`, which reads manifests.

Shape, properties and refs are merged by what each side changed. Rows are judged by files: what each side has added, and
which files of the base it has removed or attached deletes to. Sides that touched different files can be joined, as if
the source's statements had run after the branch's, each on what it had read (snapshot isolation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.blob import BlobStore
from strandline.iceberg.building import MAIN
from strandline.iceberg.live import (
    EQUALITY_DELETES,
    FileId,
    Live,
    LiveFile,
    head_of,
    read_live,
    removed_by,
    snapshot_of,
    targets,
)
from strandline.iceberg.schemas import Json, content
from strandline.tables.merging import Clash

_OURS = ("gc.enabled", "write.metadata.delete-after-commit.enabled")


@dataclass(slots=True)
class Step:
    """One snapshot to be made.

    Attributes:
        added, removed: data files and delete files.
        source: the snapshot of the other side that this one repeats; None if it stands for several.
    """

    added: list[LiveFile] = field(default_factory=list)
    removed: list[FileId] = field(default_factory=list)
    source: Json | None = None


@dataclass(slots=True)
class TableMerge:
    """What has to be done to a table of the branch.

    Attributes:
        updates: of its shape, properties and refs.
        snapshots: of the source that become known, as they are: refs lead to them.
        main: the source's snapshot that main goes to as it is; None if it stays, or if there are steps.
        steps: the snapshots to be made on the head of the branch.
        theirs, ours: what the sides consist of, where there are steps.
    """

    updates: list[Json] = field(default_factory=list)
    snapshots: list[Json] = field(default_factory=list)
    main: int | None = None
    steps: list[Step] = field(default_factory=list)
    theirs: Live = field(default_factory=Live)
    ours: Live = field(default_factory=Live)


def settle_table(
    blobs: BlobStore,
    base: Json | None,
    theirs: Json,
    ours: Json,
    others: Sequence[tuple[Json | None, Json | None]] = (),
) -> TableMerge:
    """What makes a table of the branch hold the changes of both sides.

    Args:
        base: the table that both sides come from.
        theirs: in the source of the merge.
        ours: on the branch.
        others: of a criss-cross history, the table in the other common ancestors, each with what that and the first
            one come from.

    Raises:
        Clash: both changed the same thing in different ways; the message says which.
        Corrupted: a manifest cannot be read.
    """
    if base is None or not base["table-uuid"] == theirs["table-uuid"] == ours["table-uuid"]:
        raise Clash("both sides made a table of this name" if base is None else "a side dropped it and made it anew")
    found = TableMerge(updates=_shape(base, theirs, ours))
    found.updates += _properties(base, theirs, ours)
    refs, found.snapshots = _refs(base, theirs, ours)
    found.updates += refs
    heads = head_of(base), head_of(theirs), head_of(ours)
    if heads[1] in (heads[0], heads[2]):
        return found
    if heads[2] == heads[0]:  # only the source has other rows
        found.main = heads[1]
        known = {one["snapshot-id"] for one in (*(ours.get("snapshots") or ()), *found.snapshots)}
        found.snapshots += [one for one in theirs["snapshots"] if one["snapshot-id"] not in known]
        return found
    sides = [read_live(blobs, one) for one in (base, theirs, ours)]
    for one, before in others:
        sides[0] = _both_bases(blobs, sides[0], one, before)
    found.theirs, found.ours = sides[1], sides[2]
    found.steps = _steps(blobs, (base, theirs, ours), sides)
    return found


# --- rows ---------------------------------------------------------------------------------------------------------


def _both_bases(blobs: BlobStore, first: Live, other: Json | None, before: Json | None) -> Live:
    """What two common ancestors have together, so that what either side did since is seen. Nobody ever wrote it."""
    second, origin = (Live() if one is None else read_live(blobs, one) for one in (other, before))
    return Live(
        data=_joined(origin.data, first.data, second.data),
        deletes=_joined(origin.deletes, first.deletes, second.deletes),
    )


def _joined(
    origin: Mapping[FileId, LiveFile], first: Mapping[FileId, LiveFile], second: Mapping[FileId, LiveFile]
) -> dict[FileId, LiveFile]:
    gone = {key for key in origin if key not in first or key not in second}
    return {key: one for key, one in (*second.items(), *first.items()) if key not in gone}


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a side has done to the files of the base.

    Attributes:
        added, removed: data files.
        attached, detached: delete files.
    """

    added: Mapping[FileId, LiveFile]
    removed: frozenset[FileId]
    attached: Mapping[FileId, LiveFile]
    detached: frozenset[FileId]

    @property
    def has_equality_deletes(self) -> bool:
        return any(one.content == EQUALITY_DELETES for one in self.attached.values())

    @property
    def only_adds(self) -> bool:
        return not (self.removed or self.attached or self.detached)


def _changes(base: Live, side: Live) -> _Changes:
    return _Changes(
        {key: one for key, one in side.data.items() if key not in base.data},
        frozenset(base.data) - frozenset(side.data),
        {key: one for key, one in side.deletes.items() if key not in base.deletes},
        frozenset(base.deletes) - frozenset(side.deletes),
    )


def _touched(blobs: BlobStore, base: Live, changes: _Changes, others: _Changes) -> set[str]:
    """The data files of the base of which a side has changed rows, and the other one not in the same way."""
    found = {path for path, _ in changes.removed}
    held = {path for path, _ in base.data}
    for key, one in changes.attached.items():
        if one.content != EQUALITY_DELETES and key not in others.attached:
            found |= targets(blobs, one) & held
    return found


def _gone_alike(theirs: Json, theirs_did: _Changes, ours_did: _Changes, ours: Json) -> set[str]:
    """The data files that both sides removed, where neither has written any of their rows anew in a file of its own.

    After merges to and fro, both sides may have one and the same removal since the base.
    """
    both = {path for path, _ in theirs_did.removed & ours_did.removed}
    if not both:
        return both
    for table, changes, others in ((theirs, theirs_did, ours_did), (ours, ours_did, theirs_did)):
        operations = {one["snapshot-id"]: _operation(one) for one in table.get("snapshots") or ()}
        own = [one for key, one in changes.added.items() if key not in others.added]
        if any(operations.get(one.entry["snapshot_id"]) != "append" for one in own):
            return set()
    return both


def _steps(blobs: BlobStore, tables: Sequence[Json], sides: Sequence[Live]) -> list[Step]:
    """The snapshots that bring the source's changes onto the branch.

    Args:
        tables, sides: base, source and branch: their metadata, and what they consist of.

    Raises:
        Clash: both sides have changed rows of the same files.
    """
    base, theirs, ours = tables
    before, source, branch = sides
    theirs_did, ours_did = _changes(before, source), _changes(before, branch)
    if theirs_did.has_equality_deletes:
        raise Clash("the source deleted rows by their values, which would delete rows that the branch added as well")
    if ours_did.has_equality_deletes and not theirs_did.only_adds:
        raise Clash("the branch deleted rows by their values, and the source changed rows that these may be among")
    chain = _chain(base, theirs)
    theirs_did, chain = _without_compactions(blobs, before, theirs_did, ours_did, chain)
    both = _touched(blobs, before, theirs_did, ours_did) & _touched(blobs, before, ours_did, theirs_did)
    both -= _gone_alike(theirs, theirs_did, ours_did, ours)
    if both:
        raise Clash(_both(both, before, chain))
    fresh = {key: one for key, one in theirs_did.added.items() if key not in branch.data}
    if theirs_did.only_adds and chain and all(_operation(one) in ("append", "replace") for one in chain):
        by_snapshot: dict[int, list[LiveFile]] = {}
        for one in fresh.values():
            by_snapshot.setdefault(one.entry["snapshot_id"], []).append(one)
        if set(by_snapshot) <= {one["snapshot-id"] for one in chain}:
            return [
                Step(by_snapshot[one["snapshot-id"]], [], one) for one in chain if one["snapshot-id"] in by_snapshot
            ]
    attached = [one for key, one in theirs_did.attached.items() if key not in branch.deletes]
    removed = [key for key in theirs_did.removed if key in branch.data]
    detached = [key for key in theirs_did.detached if key in branch.deletes]
    step = Step([*fresh.values(), *attached], [*removed, *detached], chain[0] if len(chain) == 1 else None)
    return [step] if step.added or step.removed else []


def _both(paths: set[str], before: Live, chain: Sequence[Json]) -> str:
    rows = sum(one.rows for (path, _), one in before.data.items() if path in paths)
    files = f"{len(paths):,} data file{'s' * (len(paths) > 1)} with {rows:,} row{'s' * (rows != 1)}"
    compacted = [one for one in chain if _operation(one) == "replace"]
    hint = f"; snapshot {compacted[0]['snapshot-id']} of the source rewrote files" if compacted else ""
    return f"both sides changed rows of the same files: {files}{hint}"


def _chain(base: Json, side: Json) -> list[Json]:
    """The snapshots of main since the base, oldest first; empty if the base is none of its ancestors."""
    found: list[Json] = []
    number, first = head_of(side), head_of(base)
    while number != first:
        one = snapshot_of(side, number)
        if one is None or len(found) > len(side.get("snapshots") or ()):
            return []
        found.append(one)
        number = one.get("parent-snapshot-id")
    return found[::-1]


def _operation(snapshot: Json) -> str:
    return str((snapshot.get("summary") or {}).get("operation", ""))


def _without_compactions(
    blobs: BlobStore, before: Live, theirs: _Changes, ours: _Changes, chain: list[Json]
) -> tuple[_Changes, list[Json]]:
    """Leave out that the source rewrote files without changing rows, where the branch changed rows in these.

    Invariant: what is left out is the last that happened to its files: what it wrote is live still, and nothing was
    deleted from that, so that the files it replaced hold the same rows.
    """
    clashing = theirs.removed & {(path, 0) for path in _touched(blobs, before, ours, theirs)}
    if not clashing or not chain:
        return theirs, chain
    written: dict[int, set[FileId]] = {}
    for key, one in theirs.added.items():
        written.setdefault(one.entry["snapshot_id"], set()).add(key)
    later = {path for one in theirs.attached.values() for path in targets(blobs, one)}
    removed, added = set(theirs.removed), dict(theirs.added)
    kept = []
    for snapshot in chain:
        summary = snapshot.get("summary") or {}
        own = written.get(snapshot["snapshot-id"], set())
        replaced = removed_by(blobs, snapshot)
        is_whole = str(len(own)) == summary.get("added-data-files", "0")
        is_last = not {path for path, _ in own} & later
        if _operation(snapshot) == "replace" and is_whole and is_last and replaced <= set(before.data):
            removed -= replaced
            for key in own:
                del added[key]
        else:
            kept.append(snapshot)
    return _Changes(added, frozenset(removed), theirs.attached, theirs.detached), kept


# --- shape, properties, refs --------------------------------------------------------------------------------------


def _shape(base: Json, theirs: Json, ours: Json) -> list[Json]:
    """The source's changes of schema, partitioning, order and version.

    Raises:
        Clash: both changed one of them.
    """
    updates: list[Json] = []
    if theirs["format-version"] > ours["format-version"]:
        updates.append({"action": "upgrade-format-version", "format-version": theirs["format-version"]})
    for what in (_SCHEMA, _SPEC, _ORDER):
        updates += what.updates(base, theirs, ours)
    return updates


@dataclass(frozen=True, slots=True)
class _Shape:
    """A list of a table's metadata of which one is in use.

    Attributes:
        word: for people.
        items, id, current: the names of the list, of the ids in it, and of the id that is in use.
        counter: the highest id that was given to a part of one; "" if parts have none.
        add, use: the names of the updates, and of what they carry.
    """

    word: str
    items: str
    id: str
    current: str
    counter: str
    add: tuple[str, str]
    use: tuple[str, str]
    same: Callable[[Json], Any]

    def updates(self, base: Json, theirs: Json, ours: Json) -> list[Json]:
        before, source, branch = (self._used(one) for one in (base, theirs, ours))
        if source in (branch, before):
            self._refuse_ids(base, theirs, ours)
            return []
        if branch != before or self._gave_ids(base, ours):
            raise Clash(f"both sides changed its {self.word}")
        held = {one[self.id] for one in ours.get(self.items) or ()}
        fresh = [one for one in theirs[self.items] if one[self.id] not in held]
        fresh.sort(key=lambda one: one[self.id] == theirs[self.current])  # the one that is used comes last
        added = [{"action": self.add[0], self.add[1]: one} for one in fresh]
        used = -1 if theirs[self.current] not in held else theirs[self.current]
        return [*added, {"action": self.use[0], self.use[1]: used}]

    def _used(self, table: Json) -> Any:
        found = next((one for one in table.get(self.items) or () if one[self.id] == table.get(self.current)), None)
        return None if found is None else self.same(found)

    def _gave_ids(self, base: Json, side: Json) -> bool:
        return bool(self.counter) and side.get(self.counter) != base.get(self.counter)

    def _refuse_ids(self, base: Json, theirs: Json, ours: Json) -> None:
        """Both sides may have given one id to different columns and taken these back: their files have it still."""
        if self._gave_ids(base, theirs) and self._gave_ids(base, ours) and self._all(theirs) != self._all(ours):
            raise Clash(f"both sides added to its {self.word}, with the same ids for different things")

    def _all(self, table: Json) -> list[Any]:
        return [self.same(one) for one in table.get(self.items) or ()]


_SCHEMA = _Shape(
    "schema",
    "schemas",
    "schema-id",
    "current-schema-id",
    "last-column-id",
    ("add-schema", "schema"),
    ("set-current-schema", "schema-id"),
    content,
)
_SPEC = _Shape(
    "partitioning",
    "partition-specs",
    "spec-id",
    "default-spec-id",
    "last-partition-id",
    ("add-spec", "spec"),
    ("set-default-spec", "spec-id"),
    lambda one: one["fields"],
)
_ORDER = _Shape(
    "sort order",
    "sort-orders",
    "order-id",
    "default-sort-order-id",
    "",
    ("add-sort-order", "sort-order"),
    ("set-default-sort-order", "sort-order-id"),
    lambda one: one["fields"],
)


def _properties(base: Json, theirs: Json, ours: Json) -> list[Json]:
    held, source, branch = (one.get("properties") or {} for one in (base, theirs, ours))
    changed: dict[str, str] = {}
    gone: list[str] = []
    for name in sorted({*held, *source, *branch} - set(_OURS)):
        before, new, now = held.get(name), source.get(name), branch.get(name)
        if new in (before, now):
            continue
        if now != before:
            raise Clash(f"its property {name!r} is {_shown(now)} on the branch and {_shown(new)} in the source")
        if new is None:
            gone.append(name)
        else:
            changed[name] = new
    updates: list[Json] = [{"action": "set-properties", "updates": changed}] if changed else []
    return updates + ([{"action": "remove-properties", "removals": gone}] if gone else [])


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value[:80])


def _refs(base: Json, theirs: Json, ours: Json) -> tuple[list[Json], list[Json]]:
    """The source's changes of tags and branches of the table, and the snapshots that these lead to."""
    held, source, branch = (one.get("refs") or {} for one in (base, theirs, ours))
    updates: list[Json] = []
    snapshots: dict[int, Json] = {}
    known = {one["snapshot-id"] for one in ours.get("snapshots") or ()}
    for name in sorted({*held, *source, *branch} - {MAIN}):
        before, new, now = held.get(name), source.get(name), branch.get(name)
        if new in (before, now):
            continue
        if now != before:
            raise Clash(f"both sides changed its {(new or now or {}).get('type', 'ref')} {name!r}")
        if new is None:
            updates.append({"action": "remove-snapshot-ref", "ref-name": name})
            continue
        updates.append({"action": "set-snapshot-ref", "ref-name": name, **new})
        number: int | None = new["snapshot-id"]
        while number is not None and number not in known and number not in snapshots:
            one = snapshot_of(theirs, number)
            if one is None:
                break
            snapshots[number] = one
            number = one.get("parent-snapshot-id") if new["type"] == "branch" else None
    return updates, list(snapshots.values())
