"""Makes an interleaving readable: tokens, commits and trees get short names in the order in which they appear."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from strandline.branch.rules.record import BranchRecord, RefRecord
from strandline.envelope import decode
from strandline.errors import Corrupted, StrandlineError
from strandline.testing.simulation.history import Broken
from strandline.testing.simulation.scheduler import Fate, Line
from strandline.testing.simulation.world import World
from strandline.tree.rows import Entry, decode_staged

_ID = re.compile(r"[0-9a-f]{20}(?:-[0-9a-f]{20})?")


class _Names:
    def __init__(self) -> None:
        self._short: dict[str, str] = {}

    def shorten(self, text: str) -> str:
        return _ID.sub(lambda found: self._short.setdefault(found[0], f"#{len(self._short)}"), text)


def readable(world: World, broken: Iterable[Broken]) -> str:
    names = _Names()
    events: list[tuple[float, int, str]] = [(line.step, 1, _line(line)) for line in world.scheduler.trace]
    for op in world.history.operations:
        told = " ".join(f"{key}={value}" for key, value in op.arguments.items())
        events.append((op.start, 0, f"{op.start:6} {op.process:14} ▶ {op.value}: {op.kind} {op.branch} {told}"))
        if op.end != float("inf"):
            result = op.seen if op.seen is not None else op.result if isinstance(op.result, str | list | dict) else ""
            shown = f"{op.end:6.0f} {op.process:14} ◀ {op.value}: {op.error or op.status} {result}"
            events.append((op.end, 2, shown))
    lines = [names.shorten(text) for _, _, text in sorted(events, key=lambda event: event[:2])]
    lines.append("")
    lines += [names.shorten(f"BROKEN  {one}") for one in broken]
    return "\n".join(lines)


def _line(line: Line) -> str:
    fate = "" if line.fate is Fate.DONE else f"   !! {line.fate.value}"
    details = line.details[:2] if line.what.startswith("scan") else line.details  # without the end of a scan
    return f"{line.step:6} {line.task:14}     {line.what} {_details(details)}{fate}"


def _details(details: tuple[Any, ...]) -> str:
    if not details:
        return ""
    if isinstance(details[0], str):
        return details[0]
    partition = details[0].decode().partition("/")[2].partition("/")[2] or details[0].decode()
    rest = details[1:]
    if rest and isinstance(rest[0], tuple):
        pairs = [one for one in rest if isinstance(one, tuple)]  # without the guard of a guarded write
        return f"{partition}: " + ", ".join(f"{key.decode()} = {_value(value)}" for key, value in pairs)
    if len(rest) == 2:
        return f"{partition}: {rest[0].decode()} = {_value(rest[1])}"
    return f"{partition}: " + ", ".join(key.decode() for key in rest)


def _value(value: bytes) -> str:
    try:
        record = decode(RefRecord, value, "")
    except StrandlineError:
        return _staged(value)
    if not isinstance(record, BranchRecord):
        return str(record)
    parts = [f"head {record.head}", f"staging {record.staging_token}"]
    if record.sealed_tokens:
        parts.append("sealed " + " ".join(record.sealed_tokens))
    if record.compacted:
        parts.append(f"compacted {record.compacted}")
    parts.append(f"epoch {record.content_epoch} attaches {record.attaches}")
    return "{" + ", ".join(parts) + "}"


def _staged(value: bytes) -> str:
    try:
        staged = decode_staged(value)
        return str(staged.checksum) if isinstance(staged, Entry) else "deleted"
    except Corrupted:
        pass  # it is a record, not a staged entry
    try:
        return str(msgspec.msgpack.decode(value))[:200]
    except msgspec.MsgspecError:
        return f"{len(value)} bytes"
