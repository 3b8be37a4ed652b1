"""A request of the catalog, from its head to its answer: which operation, from whom, whether it may."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from strandline.errors import RangeLocked, StrandlineError
from strandline.iam.policy import Need
from strandline.server.auth.verifier import Principal
from strandline.server.face import Face
from strandline.server.iceberg.operation import IcebergCall, IcebergOperation
from strandline.server.iceberg.replies import broken, failed, refusal
from strandline.server.messages import Exchange, Request, Response
from strandline.server.operation import fill
from strandline.server.refusals import BadRequest, NotAuthenticated
from strandline.server.routing import Router
from strandline.server.services import Services

MOUNT = "/iceberg"
"""Where clients are told that the catalog is; they add the version themselves."""
BASE = f"{MOUNT}/v1/"
LOCK_PATIENCE_S = 5.0
"""How long a commit waits for a lock of somebody else, before its client hears of a conflict and tries again."""
LOCK_TRIED_EACH_S = 0.25
DECODED_HERE_MAX_BYTES = 64 << 10


class IcebergFace(Face[IcebergOperation, IcebergCall]):
    """The catalog of a worker."""

    def __init__(self, services: Services, operations: tuple[IcebergOperation, ...]) -> None:
        super().__init__(services)
        # the addresses without a prefix are looked up first: a repository may have their names
        self._plain = {(one.method, one.path): one for one in operations if "{" not in one.path}
        self._router = Router(one for one in operations if "{" in one.path)
        self._decoders = {one.id: msgspec.json.Decoder(one.body) for one in operations if one.body not in (None, bytes)}
        self._commits = {f"iceberg:{one.id}" for one in operations if one.waits}

    def _refusal(self, error: StrandlineError, request: Request) -> Response:
        return refusal(error, request)

    def _fault(self, request: Request) -> Response:
        return broken(request)

    def refuse(self, exchange: Exchange, error: StrandlineError) -> None:
        exchange.reply(refusal(error, exchange.request, is_commit=exchange.operation in self._commits))

    def _begin(self, exchange: Exchange) -> None:
        request = exchange.request
        # Java's clients write a space of a name as a plus sign, and a plus sign as %2B
        raw = request.raw_path.decode("ascii", "replace").replace("+", "%20").removeprefix(BASE)
        parameters: dict[str, str] = {}
        operation = self._plain.get((request.method, raw))
        if operation is None:
            try:
                operation, parameters, methods = self._router.find(request.method, raw)
            except UnicodeDecodeError:
                raise BadRequest("The path of the request is not UTF-8.") from None
            if operation is None:
                status, kind = (405, "UnsupportedOperationException") if methods else (404, "NotFoundException")
                exchange.reply(failed(request, status, kind, "The catalog has no such address."))
                return
        exchange.operation = f"iceberg:{operation.id}"
        if operation.needs is None:
            self._known(exchange, operation, parameters, None)
            return
        shown = request.headers.get(b"authorization")
        if not shown:  # nor are cookies looked at: a page of another site could make a browser send one
            raise NotAuthenticated("The request shows no token.", next="Give the catalog a credential or a token.")
        services = self._services
        principal = services.verifier.remembered(request) if services.verifier.is_fresh else None
        if principal is not None:
            self._known(exchange, operation, parameters, principal)
            return
        self._later(
            exchange,
            services.knowing,
            lambda: services.verifier.verify(request),
            lambda found: self._known(exchange, operation, parameters, found),
        )

    def _known(
        self, exchange: Exchange, operation: IcebergOperation, parameters: dict[str, str], principal: Principal | None
    ) -> None:
        request = exchange.request
        query = _query(operation, request)
        call = IcebergCall(self._services, request, principal, parameters, query)  # type: ignore[arg-type]
        if principal is not None:
            exchange.user = principal.user
            self._permit(operation, call)
            self._remember_how_to_judge(operation, call)
        if operation.body is None:
            self._passing_over(exchange, operation, call)
        else:
            exchange.collect(operation.body_max, lambda data: self._decoded(exchange, operation, call, data))

    def _decoded(self, exchange: Exchange, operation: IcebergOperation, call: IcebergCall, data: bytes) -> None:
        call.raw = data

        def read() -> Any:
            if operation.body is bytes:
                return data
            try:
                return self._decoders[operation.id].decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadRequest(f"The body is not what {operation.id} takes: {error}.") from None

        def understood(body: Any) -> None:
            call.body = body
            self._run(exchange, operation, call, is_small=True)

        def step() -> None:
            if len(data) > DECODED_HERE_MAX_BYTES:  # the others would wait for it
                self._later(exchange, self._services.work, read, understood, call.principal_name)
            else:
                understood(read())

        self._guarded(exchange, step)

    def _worth_waiting_s(self, operation: IcebergOperation, call: IcebergCall, error: BaseException) -> float:
        is_patient = operation.waits and isinstance(error, RangeLocked)
        now = time.monotonic()
        call.waits_until = call.waits_until or now + LOCK_PATIENCE_S
        return LOCK_TRIED_EACH_S if is_patient and now < call.waits_until else 0.0

    def _judge(self, operation: IcebergOperation, call: IcebergCall) -> None:
        call.principal = self._services.verifier.verify(call.request)
        self._permit(operation, call)

    def _permit(self, operation: IcebergOperation, call: IcebergCall) -> None:
        needs = operation.needs
        assert needs is not None
        if isinstance(needs, Need) and call.principal.may_everywhere(needs.action):
            return
        values = {"repository": call.repository, "branch": call.named_branch, "ref": call.named_branch}
        self._services.verifier.permit(call.principal, fill(needs, values), call.request.peer, call.named_branch)


def _query(operation: IcebergOperation, request: Request) -> Any:
    given: dict[str, str] = {}
    for name, value in request.query:
        if name in given:
            raise BadRequest(f"The parameter {name[:80]!r} is there twice.")
        given[name] = value
    try:
        return msgspec.convert(given, operation.query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The query is not what {operation.id} takes: {error}.") from None
