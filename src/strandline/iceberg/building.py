"""The metadata of a table while updates are applied to it, one after the other. Pure.

Nothing of the metadata that it begins with is changed in place: what differs is made anew. Fields that are not known
stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.schemas import Json

VERSION_MAX = 3
MAIN = "main"
NO_SNAPSHOT = -1


class Building:
    """Metadata of a table with some updates applied.

    Attributes:
        data: the metadata.
        now_ms: when the request came, in milliseconds since 1970 UTC.
        is_new: the table is being made by this request.
        last: by list, the id of what this request has added last; None if nothing.
        added: by list, the ids of all that it has added.
        added_snapshots: by id, the snapshots that it has added.
        moved: the snapshots that it has moved main to.
        snapshot_ids: of all snapshots that there are.
    """

    def __init__(self, base: Json | None, now_ms: int) -> None:
        self.is_new = base is None
        self.data: Json = _nothing() if base is None else dict(base)
        self.now_ms = now_ms
        self.last: defaultdict[str, int | None] = defaultdict(lambda: None)
        self.added: defaultdict[str, set[int]] = defaultdict(set)
        self.added_snapshots: dict[int, Json] = {}
        self.moved: list[int] = []
        self.snapshot_ids = {one["snapshot-id"] for one in self.items("snapshots")}
        self._own: set[str] = set()

    @property
    def version(self) -> int:
        """Of the format."""
        return int(self.data["format-version"])

    def items(self, name: str) -> list[Json]:
        """One of the lists of the metadata; empty if it is not there."""
        found: list[Json] = self.data.get(name) or []
        return found

    def add(self, name: str, item: Json) -> None:
        """Put something at the end of a list."""
        if name not in self._own:
            self.put(name, [*self.items(name)])
        self.data[name].append(item)

    def add_numbered(self, name: str, key: str, item: Json) -> None:
        """Add something that has an id: an update may mean it as the last one."""
        self.add(name, item)
        self.last[name] = item[key]
        self.added[name].add(item[key])

    def note_known(self, name: str, id: int) -> None:
        """What an update would add is there: it is the last one if this request has added it."""
        self.last[name] = id if id in self.added[name] else None

    def put(self, name: str, items: list[Json]) -> None:
        """Replace a list."""
        self.data[name] = items
        self._own.add(name)

    def keep(self, name: str, wanted: Callable[[Json], bool]) -> None:
        """Leave out of a list what is not wanted."""
        held = self.items(name)
        kept = [item for item in held if wanted(item)]
        if len(kept) != len(held):
            self.put(name, kept)

    def by_id(self, name: str, key: str) -> dict[int, Json]:
        """The items of a list by their ids."""
        return {item[key]: item for item in self.items(name)}

    @property
    def schema(self) -> Json:
        """The current schema; of a table that is being made, the one added last until one is the current one.

        Raises:
            BadUpdate: there is none yet.
        """
        schemas = self.by_id("schemas", "schema-id")
        found = schemas.get(self.data.get("current-schema-id", NO_SNAPSHOT))
        if found is None and self.is_new and schemas:
            found = self.items("schemas")[-1]  # some clients set it at the end of their updates
        if found is None:
            raise BadUpdate("The table has no schema.", next="Add a schema, and make it the current one, first.")
        return found


def _nothing() -> Json:
    return {
        "format-version": 2,
        "last-sequence-number": 0,
        "last-column-id": 0,
        "schemas": [],
        "partition-specs": [],
        "last-partition-id": 999,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": NO_SNAPSHOT,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }


def field_of(update: Json, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field that an update must have; raises `BadUpdate`."""
    found = update.get(name)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
        raise BadUpdate(f"{str(update.get('action'))[:80]} lacks {name}, or has another type there.")
    return found


def numbers_of(update: Json, name: str) -> list[int]:
    """A list of ids that an update must have."""
    found = field_of(update, name, list)
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise BadUpdate(f"{str(update.get('action'))[:80]} has something in {name} that is not an id.")
    return list(found)


def chosen(given: int, last: int | None, what: str) -> int:
    """The id that an update means; -1 stands for what this request has added last.

    Raises:
        BadUpdate: it has added none.
    """
    if given != NO_SNAPSHOT:
        return given
    if last is None:
        raise BadUpdate(f"-1 means the {what} that the request added last, and it added none.")
    return last
