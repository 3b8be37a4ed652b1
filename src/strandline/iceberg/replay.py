"""Makes the snapshots of a merge: manifests that are written anew, a manifest list, and the metadata that names it.

Manifests are never shared between sides: sequence numbers, snapshot ids and the ids of rows are inherited from the list
that a manifest stands in, so the same manifest in another list would say something else.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.iceberg import names
from strandline.iceberg.building import MAIN
from strandline.iceberg.live import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    POSITION_DELETES,
    AvroFile,
    FileId,
    Live,
    LiveFile,
    Manifest,
    avro_bytes,
    head_of,
)
from strandline.iceberg.merging import TableMerge
from strandline.iceberg.row_merging import JOINED, JOINED_MAX, SOURCES, Step
from strandline.iceberg.schemas import Json
from strandline.iceberg.updates import apply, log_max

ROW_LINEAGE_VERSION = 3
SNAPSHOT_ID_BITS = 62
_DERIVED = frozenset(
    "added-data-files deleted-data-files total-data-files added-records deleted-records total-records "  # noqa: SIM905
    "added-files-size removed-files-size total-files-size added-delete-files removed-delete-files total-delete-files "
    "added-position-delete-files removed-position-delete-files added-dvs removed-dvs added-position-deletes "
    "removed-position-deletes total-position-deletes added-equality-deletes removed-equality-deletes "
    "total-equality-deletes added-equality-delete-files removed-equality-delete-files changed-partition-count "
    "manifests-created manifests-kept manifests-replaced entries-processed".split()
)
"""What a summary counts: counted anew."""
_UPGRADES = (
    ("sequence_number", ["null", "long"], 3),
    ("file_sequence_number", ["null", "long"], 4),
)


_FIRST_ROW = {"name": "first_row_id", "type": ["null", "long"], "default": None, "field-id": 142}
_FIRST_ROW_OF_MANIFEST = {"name": "first_row_id", "type": ["null", "long"], "default": None, "field-id": 520}


@dataclass(slots=True)
class Made:
    """What a merge made of a table.

    Attributes:
        metadata: of the table.
        files: manifests and manifest lists, by key; the metadata names them.
    """

    metadata: Json
    files: dict[str, bytes] = field(default_factory=dict)


def merged_table(
    plan: TableMerge, ours: Json, previous: str, folder: str, place: Callable[[str], str], now_ms: int
) -> Made:
    """The table that a plan leads to.

    Args:
        ours: the table on the branch.
        previous: where its metadata is.
        folder: the key below which new files go.
        place: where clients find the file of a key.
        now_ms: milliseconds since 1970 UTC.
    """
    made = Made(ours)
    table = ours if plan.shaped is None else plan.shaped
    if plan.snapshots:
        table = _with_snapshots(table, plan.snapshots)
        table |= {name: [*(table.get(name) or ()), *fresh] for name, fresh in plan.beside.items()}
    updates = list(plan.updates)
    if plan.main is not None:
        updates.append({"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": plan.main})
    table = apply(table, updates, now_ms) if updates else table
    writer = _Writer(plan, folder, place, made.files)
    for step in plan.steps:
        snapshot = writer.snapshot(table, step, now_ms)
        move = {
            "action": "set-snapshot-ref",
            "ref-name": MAIN,
            "type": "branch",
            "snapshot-id": snapshot["snapshot-id"],
        }
        joined = {"action": "set-properties", "updates": {JOINED: _joined(table, step)}}
        table = apply(table, [{"action": "add-snapshot", "snapshot": snapshot}, move, joined], now_ms)
    made.metadata = _logged(table, ours, previous) if table is not ours else ours
    return made


def _joined(table: Json, step: Step) -> str:
    """The property that says, after snapshots have expired, which ones of other branches the table has."""
    held = str((table.get("properties") or {}).get(JOINED, "")).split(",")
    return ",".join([*(text for text in held if text), *map(str, step.sources)][-JOINED_MAX:])


def _with_snapshots(table: Json, snapshots: list[Json]) -> Json:
    """A table that knows more snapshots, as they were made elsewhere."""
    held = [*(table.get("snapshots") or ()), *snapshots]
    changed = {**table, "snapshots": held}
    newest = max(one.get("sequence-number") or 0 for one in held)
    if "last-sequence-number" in table:
        changed["last-sequence-number"] = max(table["last-sequence-number"], newest)
    if "next-row-id" in table:
        ends = [one["first-row-id"] + one.get("added-rows", 0) for one in snapshots if "first-row-id" in one]
        changed["next-row-id"] = max([table["next-row-id"], *ends])
    return changed


def _logged(table: Json, before: Json, previous: str) -> Json:
    entry = {"timestamp-ms": before["last-updated-ms"], "metadata-file": previous}
    return {**table, "metadata-log": [*(before.get("metadata-log") or ()), entry][-log_max(table) :]}


class _Writer:
    """Writes what the steps of one merge need."""

    def __init__(self, plan: TableMerge, folder: str, place: Callable[[str], str], files: dict[str, bytes]) -> None:
        self._plan = plan
        self._live = _Standing(plan.ours)
        self._folder = folder
        self._place = place
        self._files = files

    def snapshot(self, table: Json, step: Step, now_ms: int) -> Json:
        """Write a step's manifests and their list; what the table's metadata says of them."""
        number = secrets.randbits(SNAPSHOT_ID_BITS) + 1
        version = table["format-version"]
        sequence = table.get("last-sequence-number", 0) + 1 if version > 1 else 0
        removed = self._live.remove(set(step.removed))
        listed = [self._rewritten(_upgraded(one, version), gone, number, sequence) for one, gone in removed]
        kept = self._live.untouched
        fresh = self._added(step, number, sequence, version)
        first_row, added_rows = int(table.get("next-row-id") or 0), 0
        if version >= ROW_LINEAGE_VERSION:
            for one in [*kept, *listed, *fresh]:
                if one.listed["content"] == DATA and one.listed.get("first_row_id") is None:
                    one.listed["first_row_id"] = first_row + added_rows
                    added_rows += one.listed["added_rows_count"] + one.listed["existing_rows_count"]
        manifests = [*fresh, *listed, *kept]
        key = self._new_key(f"snap-{number}-1")
        header = {"snapshot-id": str(number), "format-version": str(version)}
        if (parent := head_of(table)) is not None:
            header["parent-snapshot-id"] = str(parent)
        if version > 1:
            header["sequence-number"] = str(sequence)
        self._files[key] = avro_bytes([one.listed for one in manifests], self._list_schema(version), header)
        summary = self._summary(step, removed)
        self._live.stand(manifests, step.added)
        made: Json = {
            "snapshot-id": number,
            "timestamp-ms": max(now_ms, table.get("last-updated-ms", 0)),
            "manifest-list": self._place(key),
            "summary": {**summary, **self._live.totals()},
            "schema-id": table["current-schema-id"],
        }
        if parent is not None:
            made["parent-snapshot-id"] = parent
        if version > 1:
            made["sequence-number"] = sequence
        if version >= ROW_LINEAGE_VERSION:
            made |= {"first-row-id": first_row, "added-rows": added_rows}
        return made

    def _new_key(self, name: str) -> str:
        return f"{self._folder}/metadata/{name}-{names.new_uuid()}.avro"

    def _list_schema(self, version: int) -> Json:
        """The schema of the list with more fields: one side's may be of an older version of the format."""
        lists = [one.listing for one in (self._plan.ours, self._plan.theirs) if one.listing is not None]
        schema = max((one.schema for one in lists), key=lambda one: len(one["fields"]))
        if version >= ROW_LINEAGE_VERSION and not any(one["name"] == "first_row_id" for one in schema["fields"]):
            schema = {**schema, "fields": [*schema["fields"], _FIRST_ROW_OF_MANIFEST]}
        return schema

    def _rewritten(self, manifest: Manifest, gone: set[int], number: int, sequence: int) -> Manifest:
        """A manifest of the branch without some of its files, which it says are deleted."""
        entries = []
        for at, entry in enumerate(manifest.file.records):
            if entry["status"] == DELETED:
                continue
            status = DELETED if at in gone else EXISTING
            entries.append({**entry, "status": status, **({"snapshot_id": number} if at in gone else {})})
        return self._written(manifest, entries, number, sequence)

    def _added(self, step: Step, number: int, sequence: int, version: int) -> list[Manifest]:
        """Manifests of the source's files: one for each of its manifests that they are in."""
        by_manifest: defaultdict[int, list[LiveFile]] = defaultdict(list)
        for one in step.added:
            by_manifest[one.manifest].append(one)
        found = []
        for at in sorted(by_manifest):
            entries = []
            for one in by_manifest[at]:
                file = {**one.file, **({"first_row_id": None} if "first_row_id" in one.file else {})}
                inherited = {"snapshot_id": number, "file_sequence_number": None}
                inherited["sequence_number"] = step.numbers.get(file["file_path"])
                entries.append({**one.entry, **inherited, "status": ADDED, "data_file": file})
            source = _upgraded(self._plan.theirs.manifests[at], version)
            found.append(self._written(source, entries, number, sequence))
        return found

    def _written(self, source: Manifest, entries: list[Json], number: int, sequence: int) -> Manifest:
        key = self._new_key("merged")
        held = source.file
        data = avro_bytes(entries, held.schema, held.metadata, held.codec)
        self._files[key] = data
        counts = {status: [one for one in entries if one["status"] == status] for status in (EXISTING, ADDED, DELETED)}
        live = [*counts[EXISTING], *counts[ADDED]]
        numbers = [sequence if one.get("sequence_number") is None else one["sequence_number"] for one in live]
        listed = {
            **source.listed,
            "manifest_path": self._place(key),
            "manifest_length": len(data),
            "sequence_number": sequence,
            "min_sequence_number": min(numbers, default=sequence),
            "added_snapshot_id": number,
            "content": source.listed.get("content") or DATA,
        }
        for status, word in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
            rows = sum(one["data_file"]["record_count"] for one in counts[status])
            for name in (f"{word}_files_count", f"{word}_data_files_count"):
                listed[name] = len(counts[status])
            listed[f"{word}_rows_count"] = rows
        if counts[ADDED]:
            listed["first_row_id"] = None
        return Manifest(listed, AvroFile(key, entries, held.schema, held.metadata, held.codec))

    def _summary(self, step: Step, removed: list[tuple[Manifest, set[int]]]) -> dict[str, str]:
        source = (step.source or {}).get("summary") or {}
        kept = {name: value for name, value in source.items() if name not in _DERIVED}
        gone = [one.file.records[at]["data_file"] for one, places in removed for at in places]
        added = [one.file for one in step.added]
        summary: dict[str, str] = {**kept, "operation": _operation(step, added, gone)}
        summary[SOURCES] = ",".join(map(str, step.sources[:JOINED_MAX]))
        if step.source is not None:
            summary["source-snapshot-id"] = str(step.source["snapshot-id"])
        for word, files in (("added", added), ("deleted", gone)):
            data = [one for one in files if not one.get("content")]
            deletes = [one for one in files if one.get("content") == POSITION_DELETES]
            other = "removed" if word == "deleted" else word
            counts = {
                f"{word}-data-files": len(data),
                f"{word}-records": sum(one["record_count"] for one in data),
                f"{other}-files-size": sum(one["file_size_in_bytes"] for one in files),
                f"{other}-delete-files": len(deletes),
                f"{other}-position-deletes": sum(one["record_count"] for one in deletes),
            }
            summary |= {name: str(count) for name, count in counts.items() if count}
        return summary


def _operation(step: Step, added: list[Json], gone: list[Json]) -> str:
    if step.source is not None:
        return str((step.source.get("summary") or {}).get("operation", "overwrite"))
    if not gone and not any(one.get("content") for one in added):
        return "append"
    return "overwrite" if any(not one.get("content") for one in added) else "delete"


class _Standing:
    """The manifests of the branch while steps are made on them."""

    def __init__(self, live: Live) -> None:
        self._manifests = [_with_counts(one) for one in live.manifests]
        self._places: dict[FileId, tuple[int, int]] = {}
        for files in (live.data, live.deletes):
            for key, one in files.items():
                self._places[key] = one.manifest, one.place
        self._all = {**live.data, **live.deletes}
        self.untouched = list(self._manifests)

    def remove(self, gone: set[FileId]) -> list[tuple[Manifest, set[int]]]:
        """The manifests that hold files which go, and at which places."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for key in gone:
            manifest, at = self._places[key]
            found[manifest].add(at)
            self._all.pop(key, None)
        self.untouched = [one for at, one in enumerate(self._manifests) if at not in found]
        return [(self._manifests[at], found[at]) for at in sorted(found)]

    def stand(self, manifests: list[Manifest], added: list[LiveFile]) -> None:
        """Go on from what a step has made. Only the last step may remove files: the places of others are forgotten."""
        self._manifests = manifests
        self.untouched = list(manifests)
        for one in added:
            self._all[one.file["file_path"], int(one.file.get("content_offset") or 0)] = one

    def totals(self) -> dict[str, str]:
        """What a summary says of all files."""
        data = [one.file for one in self._all.values() if one.content == DATA]
        deletes = [one.file for one in self._all.values() if one.content == POSITION_DELETES]
        others = len(self._all) - len(data) - len(deletes)
        return {
            "total-data-files": str(len(data)),
            "total-records": str(sum(one["record_count"] for one in data)),
            "total-files-size": str(sum(one.file["file_size_in_bytes"] for one in self._all.values())),
            "total-delete-files": str(len(deletes) + others),
            "total-position-deletes": str(sum(one["record_count"] for one in deletes)),
            "total-equality-deletes": str(
                sum(one.rows for one in self._all.values() if one.content > POSITION_DELETES)
            ),
        }


def _with_counts(manifest: Manifest) -> Manifest:
    """What the list says of a manifest, with the counts that old lists may leave out."""
    counts: dict[str, Any] = {}
    for status, word in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
        held = [one for one in manifest.file.records if one["status"] == status]
        for name in (f"{word}_files_count", f"{word}_data_files_count"):
            counts[name] = len(held)
        counts[f"{word}_rows_count"] = sum(one["data_file"]["record_count"] for one in held)
    listed = {"content": DATA, "sequence_number": 0, "min_sequence_number": 0, **counts, **manifest.listed}
    for name, count in counts.items():
        if listed.get(name) is None:
            listed[name] = count
    return Manifest(listed, manifest.file)


def _upgraded(manifest: Manifest, version: int) -> Manifest:
    """A manifest whose schema has the fields of a newer version of the format: the table was upgraded since."""
    schema = manifest.file.schema
    have = {one["name"] for one in schema["fields"]}
    inside_have = {one["name"] for one in _data_file(schema)["fields"]}
    needs_rows = version >= ROW_LINEAGE_VERSION and "first_row_id" not in inside_have
    if version == 1 or ({name for name, _, _ in _UPGRADES} <= have and not needs_rows):
        return manifest
    fields = []
    for one in schema["fields"]:
        if one["name"] == "data_file":
            own = one["type"]["fields"]
            kind = {"name": "content", "type": "int", "default": 0, "field-id": 134}
            inside = own if any(held["name"] == "content" for held in own) else [kind, *own]
            inside = [*inside, _FIRST_ROW] if needs_rows else inside
            one = {**one, "type": {**one["type"], "fields": inside}}
        fields.append(one)
    more = [
        {"name": name, "type": kind, "default": None, "field-id": id}
        for name, kind, id in _UPGRADES
        if name not in have
    ]
    content = "deletes" if manifest.listed.get("content") else "data"
    metadata = {**manifest.file.metadata, "format-version": str(version), "content": content}
    next_row = manifest.listed.get("first_row_id")
    for entry in manifest.file.records:
        data = entry["data_file"]
        data.setdefault("content", DATA)
        if needs_rows and entry["status"] != DELETED:
            data["first_row_id"] = next_row
            next_row = None if next_row is None else next_row + data["record_count"]
    file = manifest.file
    return Manifest(
        manifest.listed,
        AvroFile(file.key, file.records, {**schema, "fields": [*fields[:2], *more, *fields[2:]]}, metadata, file.codec),
    )


def _data_file(schema: Json) -> Json:
    kind: Json = next(one["type"] for one in schema["fields"] if one["name"] == "data_file")
    return kind
