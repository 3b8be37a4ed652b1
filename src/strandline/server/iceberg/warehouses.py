"""The tables and views that a request is about: of a branch, of what is staged on it, or of an open transaction."""

from __future__ import annotations

from typing import TypeVar

from blake3 import blake3

from strandline.branch.rules.record import ONE_SHOT_FORMAT
from strandline.iceberg.landing import Once
from strandline.iceberg.namespaces import Namespaces
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.transaction import Transaction
from strandline.server.iceberg.operation import IcebergCall
from strandline.server.iceberg.prefixes import Warehouse
from strandline.server.refusals import BadRequest
from strandline.server.services import Services

KEY_MAX = 128
CatalogT = TypeVar("CatalogT", bound=Namespaces)


def place_of(services: Services, warehouse: Warehouse) -> Ref:
    """The branch, the transaction, or the ref that a warehouse means.

    Raises:
        RepositoryNotFound, RefNotFound: there is none.
        Fenced: the transaction was replaced or aborted.
    """
    ref = services.ref(warehouse.repository, warehouse.ref)
    if warehouse.stages and not isinstance(ref, Branch):
        raise BadRequest(f"{warehouse.ref[:80]!r} is not a branch: nothing can be staged on it.")
    if not warehouse.writer:
        return ref
    if not isinstance(ref, Branch):
        raise BadRequest(f"{warehouse.ref[:80]!r} is not a branch: nobody begins transactions on it.")
    found: Transaction | None = ref._core.transactions.get((ref.branch_id, warehouse.writer))
    if found is not None:
        # one that has ended here may have a successor elsewhere
        is_meant = warehouse.number == found.id if warehouse.number else found.phase == "open"
        if is_meant:
            return found
    return services.joined(ref, warehouse.writer, warehouse.number or None)


def catalog_of(call: IcebergCall, kind: type[CatalogT]) -> CatalogT:
    """The tables, or the views, that a request is about; its changes are made once for each idempotency key.

    The address stands in the token and the body in its digest: a key that is used for another address is another
    token, and one that is used for another body is refused.
    """
    warehouse = call.warehouse
    place = place_of(call.services, warehouse)
    key = call.request.header(b"idempotency-key")
    once = None
    if key and call.request.method != "GET" and knows_repetitions(warehouse, place):
        if len(key) > KEY_MAX or not key.isascii() or not key.isprintable():
            raise BadRequest("The Idempotency-Key is malformed.", next="Send a UUID.")
        name = "\0".join((call.principal_name, call.request.method, call.request.path, key))
        once = Once(f"iceberg {_hash(name.encode())}", _hash(call.raw))
    return kind(place, committer=call.principal_name, stages=warehouse.stages, once=once, cache=call.services.metadata)


def knows_repetitions(warehouse: Warehouse, place: Ref) -> bool:
    """Whether a repeated change is recognised: where each is a commit of its own, in a lake whose records keep that."""
    return not warehouse.stages and not warehouse.writer and place._core.max_format >= ONE_SHOT_FORMAT


def _hash(data: bytes) -> str:
    return blake3(data).hexdigest(length=16)
