"""What private changes rely on, and whether what others did meanwhile contradicts them: pure, judged when they land."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.core.overwrite import Keep, keep_nothing
from strandline.tree.diff import Difference
from strandline.tree.rows import TOMBSTONE, Entry, encode_staged, entries_of


@dataclass(frozen=True, slots=True)
class Guard:
    """A range that was overwritten, and what others may do to it until the commit.

    Attributes:
        keep: which objects there the overwrite leaves alone.
        replaces: what else appeared there since goes as well, instead of being a conflict.
    """

    prefix: str
    keep: Keep = keep_nothing
    replaces: bool = False

    def covers(self, path: str) -> bool:
        return path.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Step:
    """Private changes that are made together, with what they rely on.

    Attributes:
        changes: staged values by key.
        exact: paths that nobody else may have changed.
        guards: ranges that they overwrite.
        is_kept: the bytes that they refer to are kept by something else than what holds the changes.
    """

    changes: Mapping[bytes, bytes]
    exact: Collection[str] = ()
    guards: Sequence[Guard] = ()
    is_kept: bool = False


@dataclass(slots=True)
class Claims:
    """Private changes with all that they rely on.

    Attributes:
        changes: staged values by key.
        guards: the ranges that were overwritten.
        exact: paths that nobody else may have changed.
        unchanged: prefixes below which nobody else may have changed anything.
    """

    changes: dict[bytes, bytes] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    exact: set[str] = field(default_factory=set)
    unchanged: Sequence[str] = ()

    def add(self, step: Step) -> None:
        self.changes.update(step.changes)
        self.exact.update(step.exact)
        self.guards += step.guards

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.guards or self.exact or self.unchanged)

    def judge_committed(self, since: Iterable[Difference]) -> tuple[list[str], dict[bytes, bytes]]:
        """Judge what others have committed since.

        Returns:
            The paths that contradict, sorted; and what has to go besides the changes.
        """
        tombstone = encode_staged(TOMBSTONE)
        blockers: set[str] = set()
        more: dict[bytes, bytes] = {}
        for path, entry in _right_sides(since):
            key = path.encode()
            if path in self.exact or any(path.startswith(prefix) for prefix in self.unchanged):
                blockers.add(path)
            elif key in self.changes:
                is_same = self.changes[key] == (tombstone if entry is None else encode_staged(entry))
                if not is_same and not any(guard.replaces and guard.covers(path) for guard in self.guards):
                    blockers.add(path)
            elif entry is not None:
                for guard in self.guards:
                    if not guard.covers(path) or guard.keep(path, entry):
                        continue
                    if guard.replaces:
                        more[key] = tombstone
                    else:
                        blockers.add(path)
        return sorted(blockers), more

    def judge_staged(self, staged: Difference) -> list[str]:
        """The staged changes of others that the changes would contradict."""
        found: list[str] = []
        for path, entry in _right_sides([staged]):
            is_mine = path.encode() in self.changes or path in self.exact
            if is_mine or any(
                guard.covers(path) and (entry is None or not guard.keep(path, entry)) for guard in self.guards
            ):
                found.append(path)
        return found


def kept_or_own(keep: Keep, own: Mapping[bytes, bytes]) -> Keep:
    return lambda path, entry: path.encode() in own or keep(path, entry)


def _right_sides(parts: Iterable[Difference]) -> Iterable[tuple[str, Entry | None]]:
    """The paths of differences with what the right side has there."""
    for part in parts:
        rows = part.as_changes()
        for (path, entry), gone in zip(entries_of(rows.rows), rows.deleted.tolist(), strict=True):
            yield path, None if gone else entry
