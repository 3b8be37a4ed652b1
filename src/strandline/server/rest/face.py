"""A request of the REST interface, from its head to its answer: which operation, from whom, whether it may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from strandline.errors import StrandlineError
from strandline.server.auth.verifier import FRESH_S, Principal
from strandline.server.bodies import Limited
from strandline.server.face import MEMORY_MAX_BYTES, Face
from strandline.server.messages import Exchange, Request, Response
from strandline.server.operation import SMALL_BYTES, Call, Need, NoQuery, Operation, branch_named, fill
from strandline.server.refusals import BadRequest, Forbidden, NotSupported, Refusal
from strandline.server.rest.replies import broken, refusal
from strandline.server.routing import Router
from strandline.server.services import Services

BASE = "/api/v1/"
REVOKED_AFTER_S = FRESH_S + 0.1
DECODED_HERE_MAX_BYTES = 128 << 10
"""Bodies of JSON up to this size are read by the event loop itself."""
LARGE_LIST_BYTES = 8 << 20
_NO_QUERY = NoQuery()


class RestFace(Face[Operation, Call]):
    """The REST interface of a worker."""

    def __init__(self, services: Services, operations: tuple[Operation, ...]) -> None:
        super().__init__(services)
        self._router = Router(operations)
        self._decoders = {one.id: msgspec.json.Decoder(one.body) for one in operations if one.body not in (None, bytes)}

    def _refusal(self, error: StrandlineError, request: Request) -> Response:
        return refusal(error, request)

    def _fault(self, request: Request) -> Response:
        return broken(request)

    def _reply(self, exchange: Exchange, operation: Operation, response: Response) -> None:
        if operation.revokes:
            # by then every worker has looked at the epoch, or lets nobody in
            asyncio.get_running_loop().call_later(REVOKED_AFTER_S, exchange.reply, response)
        else:
            exchange.reply(response)

    def _begin(self, exchange: Exchange) -> None:
        request = exchange.request
        raw = request.raw_path.decode("ascii", "replace")
        try:
            operation, parameters, methods = self._router.find(request.method, raw.removeprefix(BASE))
        except UnicodeDecodeError:
            raise BadRequest("The path of the request is not UTF-8.") from None
        if operation is None:
            if methods:
                refused = Refusal(f"This address takes {', '.join(methods)}, not {request.method}.", status=405)
                answer = refusal(refused, request)
                answer.headers = [*answer.headers, (b"Allow", ", ".join(methods).encode())]
                exchange.reply(answer)
                return
            raise Refusal("There is no such address.", status=404, next="GET /openapi.json lists those that there are.")
        exchange.operation = operation.id
        _refuse_other_sites(request)
        if operation.needs is None:
            self._known(exchange, operation, parameters, None)
            return
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
        self, exchange: Exchange, operation: Operation, parameters: dict[str, str], principal: Principal | None
    ) -> None:
        request, services = exchange.request, self._services
        query = _query(operation, request)
        if principal is not None:
            exchange.user = principal.user
            if operation.judges_each and operation.body_max > LARGE_LIST_BYTES:
                self._refuse_strangers(operation, principal)
            if not operation.needs_body:
                self._permit(operation, lambda: {**_texts(query), **parameters}, principal, request)
        if operation.unsupported:
            raise NotSupported(operation.unsupported)
        call = Call(services, request, principal, parameters, query)  # type: ignore[arg-type]
        if principal is not None:
            self._remember_how_to_judge(operation, call)
        if operation.body is None:
            self._passing_over(exchange, operation, call)
        elif operation.body is bytes:
            length, most = request.content_length, min(operation.body_max, services.options.object_max_bytes)
            if length is not None and length > most:
                raise Refusal(f"The body has more than {most:,} bytes.", status=413)

            def take() -> None:
                exchange.collect(
                    MEMORY_MAX_BYTES,
                    lambda data: self._content(exchange, operation, call, data),
                    lambda file: self._streamed(exchange, operation, call, file),
                )

            if operation.early is not None and (length is None or length > SMALL_BYTES):
                early = operation.early
                self._early(exchange, call, lambda: early(call), take)
            else:
                take()
        else:
            exchange.collect(operation.body_max, lambda data: self._decoded(exchange, operation, call, data))

    def _content(self, exchange: Exchange, operation: Operation, call: Call, data: bytes) -> None:
        call.body = data
        self._guarded(exchange, lambda: self._run(exchange, operation, call, is_small=len(data) <= SMALL_BYTES))

    def _streamed(self, exchange: Exchange, operation: Operation, call: Call, file: BinaryIO) -> None:
        call.body = Limited(file, min(operation.body_max, self._services.options.object_max_bytes))
        self._guarded(exchange, lambda: self._in_thread(exchange, operation, call, self._services.bodies))

    def _decoded(self, exchange: Exchange, operation: Operation, call: Call, data: bytes) -> None:
        def read() -> Any:
            try:
                return self._decoders[operation.id].decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadRequest(f"The body is not what {operation.id} takes: {error}.") from None

        def step() -> None:
            if not data and operation.is_body_optional:
                self._understood(exchange, operation, call)
            elif len(data) > DECODED_HERE_MAX_BYTES:  # the others would wait for it
                self._later(exchange, self._services.work, read, understood, call.principal_name)
            else:
                understood(read())

        def understood(body: Any) -> None:
            call.body = body
            self._understood(exchange, operation, call)

        self._guarded(exchange, step)

    def _understood(self, exchange: Exchange, operation: Operation, call: Call) -> None:
        if operation.needs_body:
            self._permit(operation, lambda: _given(operation, call), call.principal, call.request)
        self._run(exchange, operation, call, is_small=True)

    def _judge(self, operation: Operation, call: Call) -> None:
        call.principal = self._services.verifier.verify(call.request)
        self._permit(operation, lambda: _given(operation, call), call.principal, call.request)

    def _refuse_strangers(self, operation: Operation, principal: Principal) -> None:
        """Take no large list from callers whose policies allow nothing of its kind anywhere."""
        needs = operation.needs
        if isinstance(needs, Need) and not principal.may_somewhere(needs.action):
            raise Forbidden("insufficient permissions", next="Ask an admin for a policy that allows it.")

    def _permit(
        self, operation: Operation, fields: Callable[[], dict[str, str]], principal: Principal, request: Request
    ) -> None:
        needs = operation.needs
        assert needs is not None
        if operation.judges_each or (isinstance(needs, Need) and principal.may_everywhere(needs.action)):
            return
        given = fields()
        filled = fill(needs, {**given, "user_name": principal.user})
        named = given[operation.makes_branch] if operation.makes_branch else branch_named(given)
        self._services.verifier.permit(principal, filled, request.peer, named)


def _refuse_other_sites(request: Request) -> None:
    """Raise if a page of another site makes a browser change something with the cookie of its user's login.

    Browsers send the cookie to every port of a host, and say from which page a request comes.
    """
    origin = request.headers.get(b"origin", b"")
    if not origin or request.method in ("GET", "HEAD") or b"authorization" in request.headers:
        return
    if b"cookie" in request.headers and origin.partition(b"://")[2] != request.headers.get(b"host", b""):
        raise Forbidden("The request comes from a page of another site.", next="Send an access key or a token instead.")


def _given(operation: Operation, call: Call) -> dict[str, str]:
    """What fills the fields of an operation's needs."""
    body = _texts(call.body) if operation.needs_body else {}
    return {**body, **_texts(call.query), **call.path}


def _query(operation: Operation, request: Request) -> Any:
    if operation.query is NoQuery:
        return _NO_QUERY
    given: dict[str, Any] = {}
    for name, value in request.query:
        if name in operation.lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise BadRequest(f"The parameter {name[:80]!r} is there twice.")
        else:
            given[name] = value
    try:
        return msgspec.convert(given, operation.query, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The query is not what {operation.id} takes: {error}.") from None


def _texts(query: msgspec.Struct) -> dict[str, str]:
    return {name: value for name in query.__struct_fields__ if isinstance(value := getattr(query, name), str)}
