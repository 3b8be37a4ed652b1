"""What the two parts of a catalog's prefix mean: a repository, and a ref, perhaps with how its changes land."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from blake3 import blake3

from strandline.errors import RefNotFound
from strandline.iceberg.landing import Once
from strandline.iceberg.namespaces import Namespaces
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.server.iceberg.operation import IcebergCall
from strandline.server.refusals import BadRequest
from strandline.server.services import Services

STAGED = "+staged"
TRANSACTION = "@tx="
KEY_MAX = 128
CatalogT = TypeVar("CatalogT", bound=Namespaces)
SAFE_OF_PATHS = "~@=,:!$&'()*;"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """What a client attaches.

    Attributes:
        ref: an expression.
        stages: whether changes are staged instead of committed.
        writer: of the open transaction that is meant; "" for the ref itself.
    """

    repository: str
    ref: str
    stages: bool = False
    writer: str = ""

    @property
    def prefix(self) -> str:
        """The two segments of addresses that mean it, as clients put them there."""
        end = STAGED if self.stages else f"{TRANSACTION}{self.writer}" if self.writer else ""
        return f"{quote(self.repository, safe='')}/{quote(self.ref + end, safe=SAFE_OF_PATHS)}"


def warehouse_of(text: str) -> Warehouse:
    """What `warehouse=` names: `repository/ref`, `repository/branch+staged` or `repository/branch@tx=writer`.

    Raises:
        BadRequest: it is none of them.
    """
    repository, slash, rest = text.strip("/").partition("/")
    if not repository or not slash or not rest or "/" in rest:
        raise BadRequest(
            f"{text[:80]!r} is not a warehouse.", next="Write repository/branch, such as nyc/main; a tag works too."
        )
    return warehouse_at(repository, rest)


def warehouse_at(repository: str, part: str) -> Warehouse:
    """What the two parts of a prefix mean."""
    ref, at, writer = part.partition(TRANSACTION)
    if at:
        if not ref or not writer:
            raise BadRequest(f"{part[:80]!r} names no transaction.", next="Write branch@tx=writer.")
        return Warehouse(repository, ref, writer=writer)
    for end in (STAGED, STAGED.replace("+", " ")):  # some clients decode a plus sign of a path as a space
        if part.endswith(end):
            return Warehouse(repository, part.removesuffix(end), stages=True)
    return Warehouse(repository, part)


def place_of(services: Services, warehouse: Warehouse) -> Ref:
    """The branch, the transaction, or the ref that a warehouse means.

    Raises:
        RepositoryNotFound, RefNotFound: there is none.
    """
    ref = services.ref(warehouse.repository, warehouse.ref)
    if warehouse.stages and not isinstance(ref, Branch):
        raise BadRequest(f"{warehouse.ref[:80]!r} is not a branch: nothing can be staged on it.")
    if not warehouse.writer:
        return ref
    if isinstance(ref, Branch):
        found: Ref | None = ref._core.transactions.get((ref.branch_id, warehouse.writer))
        if found is not None:
            return found
    raise RefNotFound(
        f"This server knows no open transaction of {warehouse.writer[:80]!r} on {warehouse.ref[:80]!r}.",
        next="Serve the catalog from the process that began it.",
    )


def catalog_of(call: IcebergCall, kind: type[CatalogT]) -> CatalogT:
    """The tables, or the views, that a request is about; its changes are made once for each idempotency key.

    The address stands in the token and the body in its digest: a key that is used for another address is another
    token, and one that is used for another body is refused.
    """
    warehouse = warehouse_at(call.path["repository"], call.path["ref"])
    place = place_of(call.services, warehouse)
    key = call.request.header(b"idempotency-key")
    once = None
    if key and call.request.method != "GET" and not warehouse.writer:
        if len(key) > KEY_MAX or not key.isascii() or not key.isprintable():
            raise BadRequest("The Idempotency-Key is malformed.", next="Send a UUID.")
        name = "\0".join((call.principal_name, call.request.method, call.request.path, key))
        once = Once(f"iceberg {_hash(name.encode())}", _hash(call.raw))
    return kind(place, committer=call.principal_name, stages=warehouse.stages, once=once, cache=call.services.metadata)


def _hash(data: bytes) -> str:
    return blake3(data).hexdigest(length=16)
