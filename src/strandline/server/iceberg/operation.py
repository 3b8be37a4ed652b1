"""A row of the table of the catalog's operations, and a request of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from strandline.iam.policy import Needs
from strandline.iceberg import names
from strandline.iceberg.names import Identifier
from strandline.server.iceberg.prefixes import Warehouse, warehouse_at
from strandline.server.messages import Response
from strandline.server.operation import AnyCall, Cost, NoQuery, object_arn
from strandline.server.refusals import BadRequest

BODY_MAX_BYTES = 32 << 20
"""Of a commit: its snapshots have a summary each, and a new schema may be wide."""
SEPARATOR = "\x1f"
"""Between the levels of a namespace in an address."""
Kind = Literal["namespace", "table", "view"]


@dataclass(slots=True)
class IcebergCall(AnyCall):
    """A request of the catalog.

    Attributes:
        path: the parameters in the path, by name.
        query: a struct of the operation's kind.
        body: a struct of the operation's kind, or what JSON has there.
        raw: the body as it was sent.
        waits_until: when it waits for a lock of somebody else no longer, in seconds of `time.monotonic`; 0 at first.
    """

    path: dict[str, str]
    query: Any
    raw: bytes = b""
    waits_until: float = 0.0

    @property
    def repository(self) -> str:
        return self.path.get("repository", "")

    @property
    def warehouse(self) -> Warehouse:
        """What the prefix means; raises `BadRequest` if it means nothing."""
        return warehouse_at(self.repository, self.path["ref"])

    @property
    def named_branch(self) -> str:
        """The branch that policies judge: the very one that is used, however the prefix was written."""
        return self.warehouse.ref if "ref" in self.path else ""

    @property
    def namespace(self) -> Identifier:
        """The namespace that the path names."""
        return levels_of(self.path["namespace"])

    @property
    def identifier(self) -> Identifier:
        """The table or the view that the path names."""
        return (*self.namespace, self.path["name"])

    @property
    def body_identifier(self) -> Identifier | None:
        """The table that is made, whose name is in the body; None if the path names it."""
        if "name" in self.path:
            return None
        name = self.body.get("name") if isinstance(self.body, dict) else getattr(self.body, "name", None)
        return (*self.namespace, str(name))

    def may_commit(self) -> bool:
        """Whether the caller may commit to the branch, as each change of the catalog does."""
        arn = f"arn:lakefs:fs:::repository/{self.repository}/branch/{self.named_branch}"
        return self.warehouse.stages or self.may("fs:CreateCommit", arn)

    def permit_object(self, action: str, path: str) -> None:
        """Raise `Forbidden` unless the caller may do something to an object of the branch."""
        self.permit(action, object_arn(self.repository, path))

    def permit_commit(self) -> None:
        """Raise `Forbidden` unless the caller may commit to the branch, as each change of the catalog does."""
        if not self.warehouse.stages:
            self.permit("fs:CreateCommit", f"arn:lakefs:fs:::repository/{self.repository}/branch/{self.named_branch}")

    def permit_write(self, *paths: str) -> None:
        """Raise `Forbidden` unless the caller may write objects of the branch, and commit them."""
        for path in paths:
            self.permit_object("fs:WriteObject", path)
        self.permit_commit()


def levels_of(text: str) -> Identifier:
    """The levels of a namespace in an address."""
    return tuple(text.split(SEPARATOR))


def pointer_path(identifier: Identifier, kind: Kind = "table") -> str:
    """The path of a table, a view or a namespace on the branch, by which policies judge it; raises `InvalidName`."""
    if kind == "namespace":
        return names.marker_of(names.check_identifier(identifier, "namespace"))
    checked = names.check_identifier(identifier, kind)
    return names.pointer_of(checked) if kind == "table" else names.view_of(checked)


def identifier_in(value: Any, what: str) -> Identifier:
    """An identifier in a body, as Iceberg writes it."""
    levels = value.get("namespace") if isinstance(value, dict) else None
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(levels, list) or not all(isinstance(one, str) for one in (*levels, name)):
        raise BadRequest(f"The body names no {what}: it has a namespace, a list of texts, and a name.")
    return (*levels, str(name))


class Rename(msgspec.Struct, frozen=True):
    """An old name and a new one."""

    source: dict[str, Any]
    destination: dict[str, Any]


Handler = Callable[[IcebergCall], Response]


@dataclass(frozen=True, slots=True)
class IcebergOperation:
    """An operation of the catalog.

    Attributes:
        id: as its specification calls it.
        path: below the base, with parameters in braces.
        needs: what the caller has to be allowed besides what the handler judges by the names in the request; None for
            operations that anybody may call.
        body: what the body is decoded as; None if there is none.
        waits: whether it waits for a lock of somebody else, for as long as the server's patience lasts.
        is_listed: whether clients have to know that it is there.
    """

    id: str
    method: str
    path: str
    handler: Handler
    needs: Needs | None
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    body_max: int = BODY_MAX_BYTES
    cost: Cost = "blocking"
    waits: bool = False
    is_listed: bool = True

    @property
    def endpoint(self) -> str:
        """As the configuration lists it."""
        kind = "{view}" if "/views/" in self.path else "{table}"
        return f"{self.method} /v1/{self.path.replace('{repository}/{ref}', '{prefix}').replace('{name}', kind)}"
