"""Which snapshots bring the rows of one side of a merge to the other, or why that cannot be.

Judged by files: which each side has added, and of which files that both know it has changed rows. What both sides know
counts as the base: the files of the common ancestors, what is live on both sides, and what a snapshot that both sides
know has brought, so that after merges to and fro nothing is brought twice, or back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.blob import BlobStore
from strandline.iceberg.live import (
    DATA,
    EQUALITY_DELETES,
    FileId,
    Live,
    LiveFile,
    head_of,
    id_of,
    read_file,
    read_manifests,
    removed_by,
    snapshot_of,
    targets,
)
from strandline.iceberg.schemas import Json
from strandline.parallel import in_parallel
from strandline.tables.merging import Clash

SOURCES = "strandline.source-snapshots"
"""In the summary of a snapshot that a merge made: the snapshots of other branches whose changes it holds."""
JOINED = "strandline.joined-snapshots"
"""A property: the same of snapshots that have left the record."""
JOINED_MAX = 1_000


@dataclass(slots=True)
class Step:
    """One snapshot to be made.

    Attributes:
        added, removed: data files and delete files.
        numbers: the sequence numbers of added files that are not the snapshot's, by location.
        source: the snapshot of the other side that this one repeats; None if it stands for several.
        sources: the ids of all that it stands for.
    """

    added: list[LiveFile] = field(default_factory=list)
    removed: list[FileId] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    source: Json | None = None
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a side has done to the files that both know.

    Attributes:
        added, attached: data files and delete files.
        removed, detached: likewise.
    """

    added: Mapping[FileId, LiveFile]
    removed: Mapping[FileId, LiveFile]
    attached: Mapping[FileId, LiveFile]
    detached: Mapping[FileId, LiveFile]

    @property
    def only_adds(self) -> bool:
        return not (self.removed or self.attached or self.detached)


def steps_of(
    blobs: BlobStore,
    tables: Sequence[Json],
    sides: Sequence[Live],
    others: Sequence[Json] = (),
    *,
    is_serializable: bool = False,
) -> list[Step]:
    """The snapshots that bring the source's changes onto the branch.

    Args:
        tables, sides: base, source and branch: their metadata, and what they consist of.
        others: the table in the other common ancestors of a criss-cross history.
        is_serializable: the source's changes of rows must be what they would be after the branch's.

    Raises:
        Clash: both sides have changed rows of the same files, or may have.
    """
    base, theirs, ours = tables
    source, branch = sides[1], sides[2]
    before = _known_base(tables, sides, others)
    theirs_did, ours_did = _changes(before, source), _changes(before, branch)
    _refuse_equality(theirs_did, ours_did)
    chain = _chain(base, theirs)
    theirs_did, chain = _without_compactions(blobs, (before, source), theirs_did, ours_did, chain)
    both = _touched(blobs, theirs_did) & _touched(blobs, ours_did)
    both -= _alike(blobs, theirs, ours, theirs_did, ours_did)
    if both:
        raise Clash(_both(both, before, chain, _chain(base, ours)))
    _refuse_replaced_partitions(base, theirs, ours, theirs_did, ours_did)
    if is_serializable:
        _refuse_unseen(blobs, before, theirs_did, ours_did, chain, ours)
    steps = _planned(theirs_did, branch, chain)
    numbers = _numbers_of_then(blobs, [one for step in steps for one in step.added], source, branch)
    for step in steps:
        step.numbers = numbers
    return steps


def _numbers_of_then(blobs: BlobStore, added: Sequence[LiveFile], source: Live, branch: Live) -> dict[str, int]:
    """The sequence numbers of added files that the branch has deletes of: of files that it had before.

    Invariant: a delete takes rows of a file away if its number is not lower than the file's; one by values, if it is
    higher. Deletes that both sides have, and that take rows of the file away in the source, have to do so on the
    branch: they stay for a while after a file is gone, which a revert or a merge may bring back.

    Returns:
        By location; the other files have the number of the new snapshot.

    Raises:
        Clash: no number has this effect.
    """
    named: defaultdict[str, list[FileId]] = defaultdict(list)
    by_value = [key for key, one in branch.deletes.items() if one.content == EQUALITY_DELETES]
    by_place = [(key, one) for key, one in branch.deletes.items() if added and one.content != EQUALITY_DELETES]
    found_paths = in_parallel(lambda pair: targets(blobs, pair[1]), by_place)
    for (key, _), paths in zip(by_place, found_paths, strict=True):
        for path in paths:
            named[path].append(key)
    found: dict[str, int] = {}
    for one in added:
        keys = named.get(id_of(blobs, one.file)[0], [])
        if one.content != DATA or not (keys or by_value):
            continue
        below: list[int] = []
        above: list[int] = []
        for key, lag in (*((key, 0) for key in keys), *((key, 1) for key in by_value if key in source.deletes)):
            if key not in source.deletes:
                raise Clash("the source brings back a file of which the branch has deleted rows")
            takes = _sequence(one) + lag <= _sequence(source.deletes[key])
            (below if takes else above).append(_sequence(branch.deletes[key]) - lag)
        if below and max(above, default=-1) >= min(below):
            raise Clash("the source brings back a file, and delete files are of its rows in the source alone")
        if below:
            found[one.file["file_path"]] = min(below)
    return found


def _sequence(one: LiveFile) -> int:
    return one.entry.get("sequence_number") or 0


def _planned(did: _Changes, branch: Live, chain: Sequence[Json]) -> list[Step]:
    fresh = did.added  # nothing that is live on both sides: `_known_base` has that
    if did.only_adds and chain and all(_operation(one) in ("append", "replace") for one in chain):
        by_snapshot: defaultdict[int, list[LiveFile]] = defaultdict(list)
        for one in fresh.values():
            by_snapshot[one.entry["snapshot_id"]].append(one)
        if set(by_snapshot) <= {one["snapshot-id"] for one in chain}:
            mine = [one for one in chain if one["snapshot-id"] in by_snapshot]
            return [Step(by_snapshot[one["snapshot-id"]], source=one, sources=tuple(_all_ids(one))) for one in mine]
    attached = list(did.attached.values())
    removed = [key for key in did.removed if key in branch.data]
    detached = [key for key in did.detached if key in branch.deletes]
    brought = tuple(sorted({id for one in chain for id in _all_ids(one)}))
    brought = brought or tuple(sorted({one.entry["snapshot_id"] for one in (*fresh.values(), *attached)}))
    only = chain[0] if len(chain) == 1 else None
    step = Step([*fresh.values(), *attached], [*removed, *detached], source=only, sources=brought)
    return [step] if step.added or step.removed else []


# --- what both sides know -----------------------------------------------------------------------------------------


def _all_ids(snapshot: Json) -> set[int]:
    """The id of a snapshot, and those of what it repeats."""
    summary = snapshot.get("summary") or {}
    told = [*str(summary.get(SOURCES, "")).split(","), str(summary.get("source-snapshot-id", ""))]
    return {snapshot["snapshot-id"], *(int(text) for text in told if text.isascii() and text.isdigit())}


def _ids(table: Json) -> dict[int, set[int]]:
    return {one["snapshot-id"]: _all_ids(one) for one in table.get("snapshots") or ()}


def known_to(table: Json) -> set[int]:
    """The snapshots whose changes a table has, or has had: its own, and those that merges brought."""
    kept = str((table.get("properties") or {}).get(JOINED, "")).split(",")
    return {id for ids in _ids(table).values() for id in ids} | {
        int(text) for text in kept if text.isascii() and text.isdigit()
    }


def _known_base(tables: Sequence[Json], sides: Sequence[Live], others: Sequence[Json]) -> Live:
    """The base, and the files since that both sides have got: where one does not have them now, it took them away.

    What the common ancestors had known and given up does not count: a side that has it has brought it back.
    """
    base, source, branch = sides
    before = {number for one in (tables[0], *others) for number in known_to(one)}
    theirs, ours = (known_to(one) - before for one in tables[1:])
    data, deletes = dict(base.data), dict(base.deletes)
    for side, other, know, ids in (
        (source, branch, ours, _ids(tables[1])),
        (branch, source, theirs, _ids(tables[2])),
    ):
        known = {number: _is_known(number, found - before, know) for number, found in ids.items()}
        for held, files, rest in ((data, side.data, other.data), (deletes, side.deletes, other.deletes)):
            for key, one in files.items():
                number = one.entry["snapshot_id"]
                is_known = known.get(number, number in know)
                if key in rest or is_known:
                    held.setdefault(key, one)
                elif is_known is None and key not in held:
                    raise Clash(
                        f"one side has a part of what snapshot {number} of the other one brought by a merge, and it "
                        "cannot be told which of the missing rows it deleted"
                    )
    return Live(data=data, deletes=deletes)


def _is_known(number: int, stands_for: set[int], known: set[int]) -> bool | None:
    """Whether a side has got the changes of a snapshot of the other; None if it has some of what that stands for."""
    sources = stands_for - {number}
    if number in known or (sources and sources <= known):
        return True
    return None if sources & known else False


def _changes(base: Live, side: Live) -> _Changes:
    return _Changes(
        {key: one for key, one in side.data.items() if key not in base.data},
        {key: one for key, one in base.data.items() if key not in side.data},
        {key: one for key, one in side.deletes.items() if key not in base.deletes},
        {key: one for key, one in base.deletes.items() if key not in side.deletes},
    )


# --- what excludes what -------------------------------------------------------------------------------------------


def _refuse_equality(theirs: _Changes, ours: _Changes) -> None:
    def has(files: Mapping[FileId, LiveFile]) -> bool:
        return any(one.content == EQUALITY_DELETES for one in files.values())

    if has(theirs.attached) or has(theirs.detached):
        raise Clash("the source deleted rows by their values, which would delete rows that the branch added as well")
    if (has(ours.attached) or has(ours.detached)) and not theirs.only_adds:
        raise Clash("the branch deleted rows by their values, and the source changed rows that these may be among")


def _touched(blobs: BlobStore, changes: _Changes) -> set[str]:
    """The data files of which a side has changed rows."""
    found = {path for path, _ in changes.removed}
    own = {path for path, _ in changes.added}
    for one in (*changes.attached.values(), *changes.detached.values()):
        if one.content != EQUALITY_DELETES:
            found |= targets(blobs, one) - own
    return found


def _alike(blobs: BlobStore, theirs: Json, ours: Json, theirs_did: _Changes, ours_did: _Changes) -> set[str]:
    """Files that both sides took away by one and the same snapshot, which each may have got from the other."""
    both = theirs_did.removed.keys() & ours_did.removed.keys()
    if not both:
        return set()
    sides = [(theirs, known_to(ours)), (ours, known_to(theirs))]
    gone = [_removed_by_any(blobs, table, know) for table, know in sides]
    return {path for path, _ in both & (gone[0] | gone[1])}


def _removed_by_any(blobs: BlobStore, table: Json, known: set[int]) -> set[FileId]:
    found: set[FileId] = set()
    for one in table.get("snapshots") or ():
        if _all_ids(one) & known:
            found |= removed_by(blobs, one)
    return found


def _both(paths: set[str], before: Live, theirs: Sequence[Json], ours: Sequence[Json]) -> str:
    rows = sum(one.rows for (path, _), one in before.data.items() if path in paths)
    files = f"{len(paths):,} data file{'s' * (len(paths) > 1)} with {rows:,} row{'s' * (rows != 1)}"
    hint = ""
    for chain, side in ((theirs, "source"), (ours, "branch")):
        compacted = [one for one in chain if _operation(one) == "replace"]
        hint += f"; snapshot {compacted[0]['snapshot-id']} of the {side} rewrote files" if compacted else ""
    return f"both sides changed rows of the same files: {files}{hint}"


def _refuse_replaced_partitions(base: Json, theirs: Json, ours: Json, theirs_did: _Changes, ours_did: _Changes) -> None:
    """A side that replaced partitions as wholes has not seen what the other one added to them."""
    known = {one["snapshot-id"] for one in base.get("snapshots") or ()}
    for table, mine, other in ((theirs, theirs_did, ours_did), (ours, ours_did, theirs_did)):
        own = [one for one in table.get("snapshots") or () if one["snapshot-id"] not in known]
        if not any((one.get("summary") or {}).get("replace-partitions") == "true" for one in own):
            continue
        if _share_partitions([*mine.added.values(), *mine.removed.values()], [*other.added.values()]):
            raise Clash("a side replaced partitions to which the other one added rows")


def _refuse_unseen(
    blobs: BlobStore, before: Live, theirs: _Changes, ours: _Changes, chain: Sequence[Json], branch: Json
) -> None:
    """Statements that changed rows have read their partitions, and not the rows that the branch added there since.

    That they put rows into a partition says as well that they have read it: a MERGE has found no match there. Engines
    record a MERGE without any match as an append, so it looks like an INSERT. Compactions bring no rows.
    """
    if chain and all(_operation(one) in ("append", "replace") for one in chain):
        return
    touched = _touched(blobs, theirs)
    changed = [one for (path, _), one in before.data.items() if path in touched]
    quiet = {one["snapshot-id"] for one in chain if _operation(one) in ("append", "replace")}
    changed += [one for one in theirs.added.values() if one.entry["snapshot_id"] not in quiet]
    compactions = {one["snapshot-id"] for one in branch.get("snapshots") or () if _operation(one) == "replace"}
    came = [one for one in ours.added.values() if one.entry["snapshot_id"] not in compactions]
    if _share_partitions(changed, came):
        raise Clash("the branch added rows where the source changed some, which had not seen them")


def _share_partitions(some: Sequence[LiveFile], others: Sequence[LiveFile]) -> bool:
    """Whether rows of some files may be of the partitions of others: by different specs each may have rows of all."""
    if not some or not others:
        return False
    specs = {one.spec for one in (*some, *others)}
    return len(specs) > 1 or not _partitions(some).isdisjoint(_partitions(others))


def _partitions(files: Iterable[LiveFile]) -> set[str]:
    return {str(sorted((one.file.get("partition") or {}).items(), key=str)) for one in files}


def _chain(base: Json, side: Json) -> list[Json]:
    """The snapshots of main since the base, oldest first; empty unless the base is an ancestor."""
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
    blobs: BlobStore, sides: tuple[Live, Live], theirs: _Changes, ours: _Changes, chain: list[Json]
) -> tuple[_Changes, list[Json]]:
    """Leave out that the source rewrote files without changing rows, where the branch changed rows in these.

    Invariant: what is left out is all that happened to its files: what it wrote is live still, and no delete file came
    or went, in no snapshot on the way, that is of it or of what it replaced. So the files it replaced hold the same
    rows: a compaction writes none of those that deletes of before it had taken away.

    Args:
        sides: base and source.
    """
    before, source = sides
    clashing = {path for path, _ in theirs.removed} & _touched(blobs, ours)
    if not clashing or not chain:
        return theirs, chain
    written: defaultdict[int, set[FileId]] = defaultdict(set)
    for key, one in theirs.added.items():
        written[one.entry["snapshot_id"]].add(key)
    passing = _passing_deletes(blobs, before, source, chain)
    if any(one.content == EQUALITY_DELETES for one in passing):
        return theirs, chain  # which may be of rows in any file
    deleted = {path for one in passing for path in targets(blobs, one)}
    removed, added = dict(theirs.removed), dict(theirs.added)
    kept = []
    for snapshot in chain:
        summary = snapshot.get("summary") or {}
        own = written[snapshot["snapshot-id"]]
        is_whole = _operation(snapshot) == "replace" and str(len(own)) == summary.get("added-data-files", "0")
        replaced = removed_by(blobs, snapshot) if is_whole else set()
        is_needed = any(path in clashing for path, _ in replaced)
        is_all = not {path for path, _ in (*own, *replaced)} & deleted
        if is_whole and is_all and is_needed and replaced <= removed.keys() <= before.data.keys():
            for key in replaced:
                del removed[key]
            for key in own:
                del added[key]
        else:
            kept.append(snapshot)
    return _Changes(added, removed, theirs.attached, theirs.detached), kept


def _passing_deletes(blobs: BlobStore, before: Live, source: Live, chain: Sequence[Json]) -> list[LiveFile]:
    """The delete files that came or went in a chain of snapshots, also those that came and went."""
    listed: dict[str, Json] = {}
    for snapshot in chain:
        for one in read_file(blobs, snapshot["manifest-list"]).records if "manifest-list" in snapshot else ():
            if one.get("content"):
                listed[one["manifest_path"]] = one
    found = {**read_manifests(blobs, list(listed.values())).deletes, **before.deletes}
    return [one for key, one in found.items() if key not in before.deletes or key not in source.deletes]
