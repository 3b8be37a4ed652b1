"""How two sides' changes of one table become one. Pure but for `settle_table`, which reads manifests.

Shape, properties and refs are merged by what each side changed. Rows are judged by files: what each side has added, and
which files of the base it has removed or attached deletes to. Sides that touched different files can be joined, as if
the source's statements had run after the branch's, each on what it had read (snapshot isolation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strandline.blob import BlobStore
from strandline.iceberg.building import MAIN
from strandline.iceberg.live import FileId, Live, LiveFile, head_of, read_live, snapshot_of
from strandline.iceberg.row_merging import JOINED, Step, steps_of
from strandline.iceberg.schemas import Json
from strandline.iceberg.shape_merging import refuse_other_types, with_shapes
from strandline.tables.merging import Clash

_OURS = ("gc.enabled", "write.metadata.delete-after-commit.enabled", JOINED)


@dataclass(slots=True)
class TableMerge:
    """What has to be done to a table of the branch.

    Attributes:
        shaped: the table of the branch with the shapes of both sides; None if the branch has them all.
        updates: of its properties and refs.
        snapshots: of the source that become known, as they are: refs lead to them.
        main: the source's snapshot that main goes to as it is; None if it stays, or if there are steps.
        beside: what belongs to snapshots that become known: statistics, and keys of encryption, by the name of the
            list.
        steps: the snapshots to be made on the head of the branch.
        theirs, ours: what the sides consist of, where there are steps.
    """

    shaped: Json | None = None
    updates: list[Json] = field(default_factory=list)
    snapshots: list[Json] = field(default_factory=list)
    main: int | None = None
    beside: dict[str, list[Json]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    theirs: Live = field(default_factory=Live)
    ours: Live = field(default_factory=Live)


def settle_table(
    blobs: BlobStore,
    base: Json | None,
    theirs: Json,
    ours: Json,
    others: Sequence[tuple[Json | None, Json | None]] = (),
    *,
    is_serializable: bool = False,
) -> TableMerge:
    """What makes a table of the branch hold the changes of both sides.

    Args:
        base: the table that both sides come from.
        theirs: in the source of the merge.
        ours: on the branch.
        others: of a criss-cross history, the table in the other common ancestors, each with what that and the first
            one come from.
        is_serializable: rows that the branch added where the source changed some are a clash.

    Raises:
        Clash: both changed the same thing in different ways; the message says which.
        Corrupted: a manifest cannot be read.
    """
    if base is None or not base["table-uuid"] == theirs["table-uuid"] == ours["table-uuid"]:
        raise Clash("both sides made a table of this name" if base is None else "a side dropped it and made it anew")
    shaped = with_shapes(base, theirs, ours)
    found = TableMerge(shaped=shaped)
    names = [_virtual(name, base, others) for name in ("properties", "refs")]
    found.updates += _properties(names[0], theirs, ours)
    refs, found.snapshots = _refs(names[1], theirs, ours)
    found.updates += refs
    found.beside = _beside(theirs, ours, {one["snapshot-id"] for one in found.snapshots})
    heads = head_of(base), head_of(theirs), head_of(ours)
    if heads[1] in (heads[0], heads[2]):
        return found
    if heads[2] == heads[0]:  # only the source has other rows
        if heads[1] is None:
            found.updates.append({"action": "remove-snapshot-ref", "ref-name": MAIN})
            return found
        found.main = heads[1]
        known = {one["snapshot-id"] for one in (*(ours.get("snapshots") or ()), *found.snapshots)}
        found.snapshots += [one for one in theirs["snapshots"] if one["snapshot-id"] not in known]
        found.beside = _beside(theirs, ours, {one["snapshot-id"] for one in found.snapshots})
        return found
    if heads[1] is None or heads[2] is None:
        raise Clash("a side emptied it, and the other one changed its rows")
    refuse_other_types(theirs, ours)
    if theirs.get("encryption-keys") or ours.get("encryption-keys"):
        raise Clash("both sides changed its rows, and its manifests are encrypted")
    sides = [read_live(blobs, one) for one in (base, theirs, ours)]
    for one, before in others:
        sides[0] = _both_bases(blobs, sides[0], one, before)
    found.theirs, found.ours = sides[1], sides[2]
    bases = [one for one, _ in others if one is not None]
    found.steps = steps_of(blobs, (base, theirs, ours), sides, bases, is_serializable=is_serializable)
    return found


def _beside(theirs: Json, ours: Json, snapshots: set[int]) -> dict[str, list[Json]]:
    """What the source has of snapshots that become known to the branch, besides themselves."""
    found = {
        name: [one for one in theirs.get(name) or () if one.get("snapshot-id") in snapshots]
        for name in ("statistics", "partition-statistics")
    }
    held = {one["key-id"] for one in ours.get("encryption-keys") or ()}
    found["encryption-keys"] = [one for one in theirs.get("encryption-keys") or () if one["key-id"] not in held]
    return {name: fresh for name, fresh in found.items() if fresh and snapshots}


def _virtual(name: str, base: Json, others: Sequence[tuple[Json | None, Json | None]]) -> Json:
    """A map of the base; in a criss-cross history, what all common ancestors make of it together."""
    held: Json = dict(base.get(name) or {})
    for one, before in others:
        other, origin = ((side or {}).get(name) or {} for side in (one, before))
        for key in {*held, *other, *origin}:
            if other.get(key) != origin.get(key):
                held[key] = other.get(key)
    return {key: value for key, value in held.items() if value is not None}


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


# --- shape, properties, refs --------------------------------------------------------------------------------------


def _properties(held: Json, theirs: Json, ours: Json) -> list[Json]:
    source, branch = (one.get("properties") or {} for one in (theirs, ours))
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


def _refs(held: Json, theirs: Json, ours: Json) -> tuple[list[Json], list[Json]]:
    """The source's changes of tags and branches of the table, and the snapshots that these lead to."""
    source, branch = (one.get("refs") or {} for one in (theirs, ours))
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
