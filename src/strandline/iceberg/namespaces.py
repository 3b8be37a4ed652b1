"""The namespaces of a ref: folders, with an object each for its properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from strandline.branch.one_shot import Unchanged
from strandline.errors import AlreadyExists, Conflict, Corrupted, NotFound, some_paths
from strandline.iceberg import names
from strandline.iceberg.landing import Plan, before
from strandline.iceberg.names import Identifier
from strandline.iceberg.publishing import OnRef
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.shapes import encoded
from strandline.repository.refs.ref import Ref

OBJECTS = (names.POINTER, names.VIEW, names.NATIVE)
"""What makes a folder a table or a view, and no namespace."""


class NoSuchNamespace(NotFound):
    """A namespace that does not exist."""


class NotEmpty(Conflict):
    """A namespace with something in it."""


class Namespaces(OnRef):
    """Each change is a commit of its own."""

    def namespaces(self, parent: Sequence[str] = ()) -> list[Identifier]:
        """The namespaces right below another one, in the order of their names.

        Raises:
            NotFound: the parent does not exist.
        """
        above = names.check_identifier(parent, "namespace") if parent else ()
        head = self._head(names.folder_of(above))
        if above and not has_namespace(head, above):
            raise no_namespace(above)
        found = []
        for row in head.list(names.folder_of(above), delimiter="/"):
            level = row.path[len(names.folder_of(above)) :].rstrip("/")
            if row.path.endswith("/") and not is_table(head, (*above, level)):
                found.append((*above, level))
        return found

    def namespace(self, levels: Sequence[str]) -> dict[str, str]:
        """The properties of a namespace; raises `NotFound`."""
        namespace = names.check_identifier(levels, "namespace")
        head = self._head(names.marker_of(namespace))
        if not has_namespace(head, namespace):
            raise no_namespace(namespace)
        return _properties(head, namespace)

    def create_namespace(self, levels: Sequence[str], properties: Mapping[str, str]) -> None:
        """Make a namespace; raises `AlreadyExists`."""
        namespace = names.check_identifier(levels, "namespace")

        def decide(head: Ref) -> Plan:
            if has_namespace(head, namespace):
                raise AlreadyExists(f"Namespace already exists: {names.shown(namespace)}.", next="Take another name.")
            for depth in range(1, len(namespace) + 1):
                if is_table(head, namespace[:depth]):
                    raise AlreadyExists(
                        f"A table or view of that name already exists: {names.shown(namespace[:depth])}.",
                        next="Take another name.",
                    )
            plan = Plan(f"create namespace {names.shown(namespace)}")
            self._put_properties(plan, head, namespace, dict(properties))
            for depth in range(1, len(namespace) + 1):
                expect_no_table(plan, namespace[:depth])
            return plan

        self._publish(decide)

    def drop_namespace(self, levels: Sequence[str]) -> None:
        """Remove an empty namespace.

        Raises:
            NotFound: it does not exist.
            Conflict: something is in it.
        """
        namespace = names.check_identifier(levels, "namespace")

        def decide(head: Ref) -> Plan:
            if not has_namespace(head, namespace):
                raise no_namespace(namespace, next="There is nothing to drop.")
            marker = names.marker_of(namespace)
            inside = [row.path for row in head.list(names.folder_of(namespace), amount=2) if row.path != marker]
            if inside:
                raise NotEmpty(
                    f"The namespace {names.shown(namespace)!r} is not empty: {some_paths(inside)}.",
                    paths=inside,
                    next="Drop what is in it first.",
                )
            plan = Plan(f"drop namespace {names.shown(namespace)}")
            plan.expected[marker], plan.changes[marker] = head.find(marker), None
            plan.unchanged = Unchanged(head.commit_id, (names.folder_of(namespace),))  # nothing came in meanwhile
            return plan

        self._publish(decide)

    def update_namespace(
        self, levels: Sequence[str], removals: Sequence[str], changed: Mapping[str, str]
    ) -> dict[str, str]:
        """Change properties of a namespace; returns those that it had before.

        Raises:
            NotFound: it does not exist.
            BadUpdate: a property is to be removed and set.
        """
        namespace = names.check_identifier(levels, "namespace")
        if both := set(removals) & set(changed):
            raise BadUpdate(f"The property {min(both)[:80]!r} is to be removed and set.")

        def decide(head: Ref) -> Plan:
            if not has_namespace(head, namespace):
                raise no_namespace(namespace)
            held = _properties(head, namespace)
            after = {name: value for name, value in {**held, **changed}.items() if name not in removals}
            plan = Plan(f"set properties of namespace {names.shown(namespace)}", result=held)
            if after != held:
                self._put_properties(plan, head, namespace, after)
            return plan

        found: dict[str, str] = self._publish(decide, lambda state: _properties(before(state), namespace))
        return found

    def _put_properties(self, plan: Plan, head: Ref, namespace: Identifier, properties: dict[str, str]) -> None:
        if not all(isinstance(one, str) for pair in properties.items() for one in pair):
            raise BadUpdate("The properties of a namespace are texts by name.")
        marker = names.marker_of(namespace)
        data = encoded({"properties": dict(sorted(properties.items()))})
        plan.expected[marker] = head.find(marker)
        plan.changes[marker] = self._stored(plan, self._new_key(marker), data, None)


def no_namespace(namespace: Identifier, next: str = "") -> NoSuchNamespace:
    """The error about a namespace that is not there."""
    advice = "Create it first, in SQL or with `strandline iceberg create-namespace`."
    return NoSuchNamespace(f"Namespace does not exist: {names.shown(namespace)}.", next=next or advice)


def expect_no_table(plan: Plan, identifier: Identifier) -> None:
    """Have a plan demand that a name is still that of no table and no view."""
    for end in OBJECTS:
        plan.expected.setdefault(names.folder_of(identifier) + end, None)


def has_namespace(head: Ref, namespace: Identifier) -> bool:
    """Whether somebody made it, or something lies in it that is not one table's."""
    if is_table(head, namespace):
        return False
    return next(iter(head.list(names.folder_of(namespace), amount=1)), None) is not None


def is_table(head: Ref, identifier: Identifier) -> bool:
    """Whether a name is that of a table, of Iceberg's or of our own, or of a view."""
    folder = names.folder_of(identifier)
    return any(head.exists(folder + end) for end in OBJECTS)


def _properties(head: Ref, namespace: Identifier) -> dict[str, str]:
    marker = names.marker_of(namespace)
    if not head.exists(marker):
        return {}
    try:
        return msgspec.json.decode(head.read(marker), type=dict[str, dict[str, str]])["properties"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise Corrupted(f"The properties of namespace {names.shown(namespace)!r} cannot be read: {error}.") from None
