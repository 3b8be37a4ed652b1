"""The Iceberg views of a ref: like tables, each is one object on the branch, and each change a commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.errors import NotFound
from strandline.iceberg import names
from strandline.iceberg.entities import Entities, Kind, Loaded
from strandline.iceberg.landing import Plan
from strandline.iceberg.names import Identifier
from strandline.iceberg.schemas import Json
from strandline.iceberg.view_updates import apply_to_view, check_view, check_view_requirements, new_view
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo


class NoSuchView(NotFound):
    """A view that does not exist."""


class Views(Entities):
    """The views of a ref; only those of a branch, or of a transaction, can be changed."""

    kind = Kind("view", names.VIEW, check_view, NoSuchView)

    def create(self, identifier: Sequence[str], request: Json) -> Loaded:
        """Make a view.

        Args:
            request: see `view_updates.new_view`.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: the namespace does not exist.
            BadUpdate: the request is malformed.
        """
        view, key = self._checked(identifier), names.new_table_key()
        made = new_view(request, names.new_uuid(), self._location(key), self._now_ms())

        def decide(head: Ref) -> Plan:
            self._refuse_taken(head, view)
            plan = self._plan(f"create view {names.shown(view)}", view)
            plan.result = self._put_view(plan, view, made, None, key)
            self._expect_room(plan, head, view)
            return plan

        loaded: Loaded = self._publish(decide, lambda state: self._shown_at(state, view))
        return loaded

    def commit(self, identifier: Sequence[str], requirements: Any, updates: Any) -> Loaded:
        """Apply what a client asks of a view.

        Raises:
            Stale: a requirement does not hold, or others went on publishing.
            NotFound: the view is not there.
            BadUpdate: the request is malformed.
        """
        view = self._checked(identifier)

        def decide(head: Ref) -> Plan:
            found = self._found(head, view)
            before = self._read(found.physical_address, view)
            check_view_requirements(requirements, before)
            after = apply_to_view(before, updates, self._now_ms())
            if after is before:
                return Plan(result=self._loaded(found, before))
            key = names.table_key_of(found.physical_address) or names.new_table_key()
            changed = after["current-version-id"] != before["current-version-id"]
            plan = self._plan(f"{'replace' if changed else 'change'} view {names.shown(view)}", view)
            plan.result = self._put_view(plan, view, {**after, "location": self._location(key)}, found, key)
            return plan

        loaded: Loaded = self._publish(decide, lambda state: self._shown_at(state, view))
        return loaded

    def register(self, identifier: Sequence[str], location: str) -> Loaded:
        """Make a view of metadata that lies in the lake already, such as that of a view that was dropped.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: the namespace does not exist.
            ObjectMissing: the metadata does not.
            BadUpdate: the location is not one of this repository's views.
        """
        view = self._checked(identifier)
        key, place = self._own_metadata(location)
        made: Json | None = None

        def decide(head: Ref) -> Plan:
            nonlocal made
            if made is None:  # as for tables
                made = self._read(place, view)
                self._announce(place)
            self._refuse_taken(head, view)
            plan = self._plan(f"register view {names.shown(view)}", view)
            plan.result = self._put_view(plan, view, {**made, "location": self._location(key)}, None, key)
            self._expect_room(plan, head, view)
            return plan

        loaded: Loaded = self._publish(decide, lambda state: self._shown_at(state, view))
        return loaded

    def _put_view(self, plan: Plan, view: Identifier, made: Json, found: ObjectInfo | None, key: str) -> Loaded:
        version = str(made["current-version-id"])
        told = {"iceberg.uuid": made["view-uuid"], "iceberg.view-version": version}
        return self._put(plan, view, made, found, key, told)
