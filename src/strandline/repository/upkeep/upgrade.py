"""Writing mutable records of older formats anew. Commits, trees and table records never change, and are always read.

Each record is swapped by itself, against the bytes that were read, so that it may run while others work, be
interrupted, and be run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from strandline.branch.cell import BranchCell, Moved
from strandline.branch.rules.record import BranchRecord, RefRecord
from strandline.branch.stores import Stores
from strandline.envelope import FORMAT_VERSION, decode, encode, version_of
from strandline.kv.store import PredicateFailed, Store

UPGRADE_ATTEMPTS = 20


class Upgraded(msgspec.Struct, frozen=True):
    """What an upgrade wrote, or would write: how many records of each kind, and the format that they have now."""

    format: int
    written: dict[str, int]


def is_old(raw: bytes) -> bool:
    return version_of(raw) < FORMAT_VERSION


def rewrite(
    kv: Store, partition: bytes, key: bytes, kind: Any, name: str, changes: dict[str, Any] | None = None
) -> bool:
    """Write a record in the newest format; whether it was an older one."""
    for _ in range(UPGRADE_ATTEMPTS):
        raw = kv.get(partition, key)
        if raw is None or not is_old(raw):
            return False
        record = msgspec.structs.replace(decode(kind, raw, name), **(changes or {}))
        try:
            kv.set_if(partition, key, encode(record), raw)
            return True
        except PredicateFailed:
            continue
    return False  # somebody else keeps writing it, in the newest format


def upgrade_refs(stores: Stores, *, dry_run: bool) -> dict[str, int]:
    """Branches, tags and tombstones of a repository; returns how many were old."""
    written: dict[str, int] = {}
    for key, raw in list(stores.kv.scan(stores.refs)):
        if not is_old(raw):
            continue
        record = decode(RefRecord, raw, f"ref {key.decode()!r}")
        kind = str(record.__struct_config__.tag)
        if dry_run or _upgrade_ref(stores, key, record):
            written[kind] = written.get(kind, 0) + 1
    return written


def _upgrade_ref(stores: Stores, key: bytes, record: Any) -> bool:
    if not isinstance(record, BranchRecord):
        return rewrite(stores.kv, stores.refs, key, RefRecord, f"ref {key.decode()!r}")
    cell = BranchCell(stores, key.decode())
    for _ in range(UPGRADE_ATTEMPTS):
        seen = cell.read()
        if not is_old(seen.raw):
            return False
        try:
            cell.swap(seen, seen.branch)  # a new write id, so that no swap against the old bytes can follow
            return True
        except Moved:
            continue
    return False


def total(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for kind, count in part.items():
            found[kind] = found.get(kind, 0) + count
    return found
