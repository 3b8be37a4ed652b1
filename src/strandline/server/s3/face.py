"""A request of the S3 interface, from its head to its answer: whose signature, which operation, whether it may."""

from __future__ import annotations

import io
from typing import BinaryIO

from strandline.errors import StrandlineError
from strandline.iam.policy import Need
from strandline.server.auth.sigv4 import is_signed, read_signature
from strandline.server.auth.verifier import Principal
from strandline.server.face import MEMORY_MAX_BYTES, Face
from strandline.server.messages import Exchange, Request, Response
from strandline.server.operation import SMALL_BYTES, fill
from strandline.server.refusals import BadRequest, NotAuthenticated, Refusal
from strandline.server.s3.bodies import Content, is_chunked, object_length
from strandline.server.s3.errors import broken, refusal
from strandline.server.s3.names import bucket_and_key, ref_and_path
from strandline.server.s3.operation import S3Call, S3Operation
from strandline.server.services import Services


class S3Face(Face[S3Operation, S3Call]):
    """The S3 interface of a worker."""

    def __init__(self, services: Services, operations: tuple[S3Operation, ...]) -> None:
        super().__init__(services)
        self._rows: dict[tuple[str, str], list[S3Operation]] = {}
        for one in sorted(operations, key=lambda row: -(len(row.asks) * 2 + bool(row.header))):
            self._rows.setdefault((one.level, one.method), []).append(one)
        self._plain = {at: [row for row in rows if not row.asks] for at, rows in self._rows.items()}

    def _refusal(self, error: StrandlineError, request: Request) -> Response:
        return refusal(error, request)

    def _fault(self, request: Request) -> Response:
        return broken(request)

    def _begin(self, exchange: Exchange) -> None:
        request, services = exchange.request, self._services
        query: dict[str, str] = {}
        for name, value in request.signed_query:
            if name in query:
                raise BadRequest(f"The parameter {name[:80]!r} is there twice.", s3_code="InvalidArgument")
            query[name] = value
        bucket, key = bucket_and_key(request, services.options.s3_domain)
        operation = self._find(request.method, bucket, key, query, request.headers)
        exchange.operation = operation.id
        if not is_signed(request):
            raise NotAuthenticated("Requests without a signature are not answered.", status=403)
        signed = read_signature(request, services.clock.now_us() / 1_000_000)

        def known(principal: Principal) -> None:
            signing_key = services.verifier.check_signed(request, signed, principal)
            exchange.user = principal.user
            ref, path = ref_and_path(key, services.options.s3_flat)
            call = S3Call(services, request, principal, signed, signing_key, bucket, ref, path, query)
            self._remember_how_to_judge(operation, call)
            self._permit(operation, call)
            self._take(exchange, operation, call)

        principal = services.verifier.remembered_key(signed) if services.verifier.is_fresh else None
        if principal is not None:
            known(principal)
        else:
            self._later(exchange, services.knowing, lambda: services.verifier.principal_of_key(signed), known)

    def _judge(self, operation: S3Operation, call: S3Call) -> None:
        found = self._services.verifier.principal_of_key(call.signed)
        if found.secret != call.principal.secret:
            raise NotAuthenticated("The access key was changed during the request.", status=403)
        call.principal = found
        self._permit(operation, call)

    def _find(
        self, method: str, bucket: str, key: str, query: dict[str, str], headers: dict[bytes, bytes]
    ) -> S3Operation:
        level = "object" if key else "bucket" if bucket else "service"
        for row in (self._rows if query else self._plain).get((level, method), ()):
            if (not row.header or row.header in headers) and all(name in query for name in row.asks):
                if method not in ("GET", "HEAD"):
                    _refuse_unasked(query, row)
                return row
        raise Refusal("The method is not one of S3 there.", status=405, s3_code="MethodNotAllowed")

    def _permit(self, operation: S3Operation, call: S3Call) -> None:
        needs = operation.needs
        if operation.judges_each or (isinstance(needs, Need) and call.principal.may_everywhere(needs.action)):
            return
        values = {"repository": call.bucket, "branch": call.ref, "ref": call.ref, "path": call.path}
        self._services.verifier.permit(call.principal, fill(needs, values), call.request.peer, call.named_branch)

    def _take(self, exchange: Exchange, operation: S3Operation, call: S3Call) -> None:
        if call.signed.is_streaming and operation.body != "content":
            raise BadRequest("Only the content of objects comes in signed chunks.")
        request = call.request
        if operation.body == "content":
            call.length = object_length(request, call.signed)
            if call.length is not None and call.length > self._services.options.object_max_bytes:
                raise Refusal("The object is too large for one request.", status=400, s3_code="EntityTooLarge")
            if request.content_length is None and not is_chunked(call.signed):
                call.length = None

            def take() -> None:
                exchange.collect(
                    MEMORY_MAX_BYTES,
                    lambda data: self._content(exchange, operation, call, io.BytesIO(data), len(data) <= SMALL_BYTES),
                    lambda file: self._streamed(exchange, operation, call, file),
                )

            is_small = request.content_length is not None and request.content_length <= SMALL_BYTES
            if operation.early is not None and not is_small:
                early = operation.early
                self._early(exchange, call, lambda: early(call), take)
            else:
                take()
        elif operation.body == "document":
            exchange.collect(operation.body_max, lambda data: self._document(exchange, operation, call, data))
        else:
            self._passing_over(exchange, operation, call)

    def _content_of(self, call: S3Call, file: BinaryIO) -> Content:
        most = self._services.options.object_max_bytes
        return Content(file, call.request, call.signed, call.signing_key, most)

    def _document(self, exchange: Exchange, operation: S3Operation, call: S3Call, data: bytes) -> None:
        def step() -> None:
            request, most = call.request, self._services.options.object_max_bytes
            other = operation.is_checksum_anothers
            content = Content(io.BytesIO(data), request, call.signed, call.signing_key, most, of_another=other)
            call.body = b"".join(iter(content.read, b""))
            self._run(exchange, operation, call, is_small=True)

        self._guarded(exchange, step)

    def _content(
        self, exchange: Exchange, operation: S3Operation, call: S3Call, file: BinaryIO, is_small: bool
    ) -> None:
        def step() -> None:
            call.body = self._content_of(call, file)
            self._run(exchange, operation, call, is_small=is_small)

        self._guarded(exchange, step)

    def _streamed(self, exchange: Exchange, operation: S3Operation, call: S3Call, file: BinaryIO) -> None:
        def step() -> None:
            call.body = self._content_of(call, file)
            self._in_thread(exchange, operation, call, self._services.bodies)

        self._guarded(exchange, step)


_HARMLESS = ("x-id", "versionid", "x-amz-", "awsaccesskeyid", "signature", "expires", "list-type", "prefix")


def _refuse_unasked(query: dict[str, str], row: S3Operation) -> None:
    """Refuse a write that is asked for something which it would not do: it might be meant as another operation."""
    for name in query:
        if name not in row.asks and not name.lower().startswith(_HARMLESS):
            raise BadRequest(f"{row.id} takes no parameter {name[:80]!r}.", s3_code="InvalidArgument")
