"""Links to objects that the server signed, for stores that sign none themselves: /links/CLAIMS."""

from __future__ import annotations

from io import BytesIO
from typing import BinaryIO

from strandline.blob import BlobExists
from strandline.errors import BranchGone, RefNotFound, StrandlineError
from strandline.iam.policy import Need
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.server.auth.verifier import Principal
from strandline.server.bodies import Limited
from strandline.server.face import MEMORY_MAX_BYTES, Answering
from strandline.server.links import LinkClaims
from strandline.server.messages import Exchange, Request, Response
from strandline.server.operation import Call, NoQuery, object_arn
from strandline.server.refusals import NotAuthenticated, Refusal
from strandline.server.rest.objects import serve_object
from strandline.server.rest.replies import broken, refusal

LINKS_BASE = b"/links/"


class LinkFace(Answering):
    """Answers requests by links. What a link allows is judged when it is used, by what its user may do then."""

    def _refusal(self, error: StrandlineError, request: Request) -> Response:
        return refusal(error, request)

    def _fault(self, request: Request) -> Response:
        return broken(request)

    def _begin(self, exchange: Exchange) -> None:
        exchange.operation = "link"
        claims, services = self._claims(exchange.request), self._services
        if claims.method == "GET":
            self._later(exchange, services.work, lambda: self._get(exchange.request, claims), exchange.reply)
            return

        def stored(file: BinaryIO) -> None:
            def work() -> Response:
                return self._put(exchange.request, claims, file)

            self._guarded(exchange, lambda: self._later(exchange, services.bodies, work, exchange.reply, claims.user))

        exchange.collect(MEMORY_MAX_BYTES, lambda data: stored(BytesIO(data)), stored)

    def _claims(self, request: Request) -> LinkClaims:
        claims = self._services.links.read(LinkClaims, request.raw_path[len(LINKS_BASE) :].decode("ascii", "replace"))
        if self._services.clock.now_us() // 1_000_000 >= claims.expires_s:
            raise NotAuthenticated("The link has expired.", status=403, next="Ask for a new one.")
        if request.method != claims.method and (request.method, claims.method) != ("HEAD", "GET"):
            raise Refusal(f"The link is for {claims.method}.", status=405)
        length = request.content_length
        if claims.method == "PUT" and length is not None and length > claims.size_max:
            raise Refusal("The body is larger than the link allows.", status=413)
        return claims

    def _principal(self, request: Request, claims: LinkClaims, action: str) -> Principal:
        verifier = self._services.verifier
        principal = verifier.principal_of_link(claims.user, claims.key_id, claims.issued_us)
        need = Need(action, object_arn(claims.repository, claims.path))
        verifier.permit(principal, need, request.peer, claims.ref)
        return principal

    def _ref(self, claims: LinkClaims) -> Ref:
        """What a link is about; a branch or a repository that has its name since then is another one."""
        for is_last in (False, True):
            try:
                ref = self._services.ref(claims.repository, claims.ref)
                if ref._core.stores.repository_id == claims.repository_id and (
                    not isinstance(ref, Branch) or ref._at.read(shared=True).branch.branch_id == claims.branch_id
                ):
                    return ref
            except BranchGone:
                if is_last:
                    break
            self._services.forget(claims.repository)
        raise RefNotFound("What the link was for is not there any more.", next="Ask for a new link.")

    def _get(self, request: Request, claims: LinkClaims) -> Response:
        principal = self._principal(request, claims, "fs:ReadObject")
        ref = self._ref(claims)
        call = Call(self._services, request, principal, {"repository": claims.repository}, NoQuery())
        return serve_object(call, ref, ref.stat(claims.path), is_head=request.method == "HEAD")

    def _put(self, request: Request, claims: LinkClaims, file: BinaryIO) -> Response:
        self._principal(request, claims, "fs:WriteObject")
        blobs = self._ref(claims)._core.resolver.namespace
        content = Limited(file, claims.size_max, is_hashed=True)
        try:
            blobs.put(claims.place, content, "create")  # type: ignore[arg-type]
        except BlobExists:
            raise Refusal("The link was used before.", status=409, next="Ask for a new address.") from None
        self._principal(request, claims, "fs:WriteObject")  # the body may have taken long
        return Response(200, b"", [(b"ETag", f'"{content.md5.hexdigest()}"'.encode())])
