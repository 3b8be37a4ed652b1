"""A server of one process for itself: whoever shows its token may do all, and nobody else anything."""

from __future__ import annotations

import hmac

from strandline.clock import Clock
from strandline.iam.directory import Directory
from strandline.iam.fixed import POLICIES
from strandline.iam.policy import Rules
from strandline.redaction import Secret
from strandline.server.auth.sigv4 import Signed
from strandline.server.auth.tokens import Tokens
from strandline.server.auth.verifier import Principal, Verifier, steady_s
from strandline.server.messages import Request
from strandline.server.refusals import NotAuthenticated


class OneUser(Verifier):
    """Knows one token.

    Args:
        name: in whose name its holder commits.
    """

    def __init__(self, directory: Directory, tokens: Tokens, clock: Clock, token: Secret, name: str) -> None:
        super().__init__(directory, tokens, clock)
        self._token_shown = token.reveal().encode()
        self._principal_shown = Principal(name, "", Rules(name, POLICIES["FSFullAccess"]), Secret(""), b"", steady_s())

    @property
    def is_fresh(self) -> bool:
        """Nobody else is known, so nothing can have changed."""
        return True

    def look(self) -> None:
        """There is no directory to look at."""

    def holds(self, principal: Principal) -> bool:
        return True

    def remembered(self, request: Request) -> Principal | None:
        kind, _, shown = request.headers.get(b"authorization", b"").partition(b" ")
        is_shown = hmac.compare_digest(shown.strip(), self._token_shown) and kind.lower() == b"bearer"
        return self._principal_shown if is_shown else None

    def verify(self, request: Request) -> Principal:
        found = self.remembered(request)
        if found is None:
            raise NotAuthenticated("The token is not this server's.", next="Use the one that it was made with.")
        return found

    def log_in(self, key_id: str, secret: str, peer: str, lasts_s: int = 0) -> tuple[str, int]:
        raise NotAuthenticated("This server has no access keys.", next="Give the catalog the server's token.")

    def renew(self, text: str, lasts_s: int) -> tuple[str, int]:
        raise NotAuthenticated("The token of this server does not end.", next="Go on with it.")

    def principal_of_key(self, signed: Signed) -> Principal:
        raise NotAuthenticated("This server has no access keys.", status=403)
