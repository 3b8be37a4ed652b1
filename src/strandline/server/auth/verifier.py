"""Who a request is from and what it may do, remembered for as long as that is surely still so.

Invariant: a remembered principal is used only while the last look at the directory's epoch that succeeded began less
than two seconds ago, and found the epoch under which the principal was read. A call that revokes something returns two
seconds after its change. So a revocation that returned holds in every worker. Without a look in time nobody is let in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict

from strandline.clock import Clock
from strandline.errors import InvalidSettings, NotFound
from strandline.iam.directory import Directory
from strandline.iam.policy import Caller, Needs, Rules, Verdict
from strandline.iam.records import Credential, User
from strandline.operations import warning
from strandline.redaction import Secret
from strandline.server.auth.login_limit import FEW, MANY, REGAINED_EACH_S, LoginLimit, refuse_full, shown_address
from strandline.server.auth.sigv4 import Signed, check_signature
from strandline.server.auth.tokens import LASTS_S, Tokens
from strandline.server.messages import Request
from strandline.server.refusals import Busy, Forbidden, NotAuthenticated, Refusal

FRESH_S = 2.0
LOOK_EACH_S = 1.0
KEPT_AT_MOST_S = 30.0
KEPT_MAX = 4_096
VERDICTS_MAX = 256
"""Of one principal: paths have up to 1,024 bytes."""
COOKIE = "internal_auth_session"
_WRONG = "The access key or its secret is wrong."
_NOBODY = Secret("the secret of an access key that does not exist")


if hasattr(time, "CLOCK_BOOTTIME"):

    def steady_s() -> float:
        """Seconds that go on while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def steady_s() -> float:
        """Seconds; here they may stand still while the machine sleeps."""
        return time.monotonic()


class Principal:
    """A user as a request showed it.

    Attributes:
        user: its name.
        rules: what it may do.
        key_id: the access key that it showed, or that its token was given for.
        secret: of its access key, if it showed one by a signature.
        epoch: of the directory when all this was read.
    """

    __slots__ = ("_everywhere", "_known", "epoch", "key_id", "read_at", "rules", "secret", "user")

    def __init__(self, user: str, key_id: str, rules: Rules, secret: Secret, epoch: bytes, read_at: float) -> None:
        self.user = user
        self.key_id = key_id
        self.rules = rules
        self.secret = secret
        self.epoch = epoch
        self.read_at = read_at
        self._known: dict[tuple[Needs, str, str], Verdict] = {}
        self._everywhere: dict[str, Verdict | None] = {}

    def may_everywhere(self, action: str) -> bool:
        """Whether its policies allow an action on all resources and from all addresses, so that neither matters."""
        return self._on_everything(action) is Verdict.ALLOWED

    def may_somewhere(self, action: str) -> bool:
        """Whether its policies may allow an action on some resource, from some address."""
        return self._on_everything(action) in (None, Verdict.ALLOWED)

    def _on_everything(self, action: str) -> Verdict | None:
        if action not in self._everywhere:
            self._everywhere[action] = self.rules.everywhere(action)
        return self._everywhere[action]

    def verdict(self, needs: Needs, source_ip: str, branch: str = "") -> Verdict:
        """What its policies say; remembered, since clients ask for the same things again and again."""
        key = (needs, source_ip, branch)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= VERDICTS_MAX:
                self._known.clear()
            found = self._known[key] = self.rules.judge(needs, Caller(self.user, source_ip, branch))
        return found


class Verifier:
    """Safe to share between threads; what is remembered is read by the event loop without a lock."""

    def __init__(self, directory: Directory, tokens: Tokens, clock: Clock) -> None:
        self._directory = directory
        self._tokens = tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._limit = LoginLimit()
        self._key = os.urandom(32)
        self._principals: OrderedDict[bytes, Principal] = OrderedDict()
        self._epoch = b""
        self._looked_at = float("-inf")

    # --- the epoch ---------------------------------------------------------------------------------------------------

    @property
    def is_fresh(self) -> bool:
        """Whether what is remembered may be used now."""
        return steady_s() - self._looked_at < FRESH_S

    def look(self) -> None:
        """Read the epoch; what was remembered under another one is forgotten."""
        began = steady_s()
        epoch = self._directory.epoch()
        with self._lock:
            if began < self._looked_at:
                return
            if epoch != self._epoch:
                self._principals.clear()
                self._epoch = epoch
            self._looked_at = began

    def holds(self, principal: Principal) -> bool:
        """Whether what was read of a principal is surely so still, and was read lately."""
        now = steady_s()
        return (
            principal.epoch == self._epoch
            and now - self._looked_at < FRESH_S
            and now - principal.read_at < KEPT_AT_MOST_S
        )

    # --- Basic, tokens and cookies -----------------------------------------------------------------------------------

    def remembered(self, request: Request) -> Principal | None:
        """Who showed this very header before, if that is surely still so."""
        shown = _shown(request)
        if not shown:
            return None
        found = self._principals.get(self._name(shown))
        return found if found is not None and self.holds(found) else None

    def verify(self, request: Request) -> Principal:
        """Who a request is from, by Basic, a token or a cookie; reads the directory.

        Raises:
            NotAuthenticated: nobody.
        """
        shown = _shown(request)
        kind, _, text = shown.partition(b" ")
        self._see_to_it()
        epoch = self._epoch
        if kind == b"Basic":
            user, key_id = self._basic(text, request.peer)
        elif kind in (b"Bearer", b"Cookie"):
            user, key_id = self._token(text.decode("latin-1"))
        else:
            raise NotAuthenticated("error authenticating request", next="Show an access key, or a token of a login.")
        principal = self._principal(user, key_id, Secret(""), epoch)
        if kind == b"Basic":  # a token expires at a moment of its own, so it is read each time
            self._remember(self._name(shown), principal)
        return principal

    def log_in(self, key_id: str, secret: str, peer: str, lasts_s: int = LASTS_S) -> tuple[str, int]:
        """A token for an access key, and when it expires; raises `NotAuthenticated`."""
        self._see_to_it()
        user = self._check(key_id, secret, peer)
        return self._tokens.issue(user, key_id, self._clock.now_us(), lasts_s)

    def renew(self, text: str, lasts_s: int) -> tuple[str, int]:
        """Another token for one that is still good; raises `NotAuthenticated`."""
        self._see_to_it()
        user, key_id = self._token(text)
        return self._tokens.issue(user, key_id, self._clock.now_us(), lasts_s)

    def _basic(self, text: bytes, peer: str) -> tuple[str, str]:
        try:
            key_id, _, secret = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise NotAuthenticated(
                "The Authorization header is malformed.", next="Send an access key and its secret."
            ) from None
        return self._check(key_id, secret, peer), key_id

    def _check(self, key_id: str, secret: str, peer: str) -> str:
        """The user of an access key whose secret this is, compared in constant time even if there is no such key."""
        # a stranger that guesses must not lock the owner of a key out, nor one of many behind a proxy all others
        pair, address = f"{key_id[:64]} {peer}", shown_address(peer)
        limited: tuple[tuple[str, int], ...] = ((pair, FEW),)
        now = steady_s()
        with self._lock:
            if not self._limit.is_good(pair, now):
                limited = (*limited, (f"key {key_id[:64]}", MANY), (f"address {address}", MANY))
            self._limit.check(limited, now)
            suspicious = self._limit.suspicious(limited, now)
        for name, most in suspicious:
            refuse_full(self._directory.failures(name, REGAINED_EACH_S), most)
        credential = self._directory.credential(key_id)
        expected = _NOBODY if credential is None else self._secret_of(credential)
        is_right = hmac.compare_digest(expected.reveal().encode(), secret.encode())
        if credential is None or not is_right:
            with self._lock:
                self._limit.failed(limited, now)
                suspicious = self._limit.suspicious(limited, now)
            for name, _ in suspicious:
                self._directory.count_failure(name, REGAINED_EACH_S)
            raise NotAuthenticated(_WRONG, next="Look at the access key; an admin can make a new one.")
        with self._lock:
            self._limit.succeeded(pair, now)
        return credential.user

    def _secret_of(self, credential: Credential) -> Secret:
        try:
            return self._directory.secret_of(credential)
        except InvalidSettings as error:  # no fault of the caller's
            warning("%s", error)
            raise Refusal("The server cannot read its access keys.", status=503, s3_code="ServiceUnavailable") from None

    def _token(self, text: str) -> tuple[str, str]:
        token = self._tokens.read(text, self._clock.now_us())
        self._refuse_void("token", token.user, token.key_id, token.issued_us)
        return token.user, token.key_id

    def _refuse_void(self, what: str, name: str, key_id: str, issued_us: int) -> None:
        """Raise `NotAuthenticated` if a token or a link outlived its user, its access key, or a logout everywhere."""
        user = self._user(name, issued_us)
        credential = self._directory.credential(key_id)
        if credential is None or credential.user != user.name or issued_us < credential.created_at:
            raise NotAuthenticated(f"The access key of the {what} was deleted.", next="Log in again.")
        if issued_us < user.sessions_from:
            raise NotAuthenticated(f"The session of the {what} was ended.", next="Log in again.")

    # --- signatures --------------------------------------------------------------------------------------------------

    def remembered_key(self, signed: Signed) -> Principal | None:
        """Whose access key this is, if that is surely still so. The signature is not checked here."""
        found = self._principals.get(b"key " + signed.key_id.encode())
        return found if found is not None and self.holds(found) else None

    def principal_of_key(self, signed: Signed) -> Principal:
        """Whose access key this is; reads the directory. The signature is not checked here.

        Raises:
            NotAuthenticated: nobody's.
        """
        self._see_to_it()
        epoch = self._epoch
        credential = self._directory.credential(signed.key_id)
        if credential is None:
            raise NotAuthenticated("There is no such access key.", status=403, s3_code="InvalidAccessKeyId")
        principal = self._principal(credential.user, signed.key_id, self._secret_of(credential), epoch)
        self._remember(b"key " + signed.key_id.encode(), principal)
        return principal

    def check_signed(self, request: Request, signed: Signed, principal: Principal) -> bytes:
        """Compare a signature; returns the key that signs the chunks of the body. Raises `NotAuthenticated`."""
        return check_signature(request, signed, principal.secret)

    # --- what is shared ----------------------------------------------------------------------------------------------

    def permit(self, principal: Principal, needs: Needs, source_ip: str, branch: str = "") -> None:
        """Raise `Forbidden` unless the policies of a user allow it what it asks for."""
        if principal.verdict(needs, source_ip, branch) is not Verdict.ALLOWED:
            raise Forbidden("insufficient permissions", next="Ask an admin for a policy that allows it.")

    def principal_of_link(self, name: str, key_id: str, issued_us: int) -> Principal:
        """What a user may do now, for what it asked for earlier.

        Raises:
            NotAuthenticated: it was deleted since, whoever has its name now; or its key was; or its sessions ended.
        """
        self._see_to_it()
        self._refuse_void("link", name, key_id, issued_us)
        return self._principal(name, key_id, Secret(""), self._epoch)

    def _user(self, name: str, since_us: int) -> User:
        try:
            user = self._directory.get(User, name)
        except NotFound:
            raise NotAuthenticated("The user was deleted.", status=401) from None
        if since_us < user.created_at:
            raise NotAuthenticated("The user was deleted; another one has its name.", status=401)
        return user

    def _principal(self, user: str, key_id: str, secret: Secret, epoch: bytes) -> Principal:
        began = steady_s()
        try:
            name = self._directory.get(User, user).name
        except NotFound:
            raise NotAuthenticated("The user of the access key was deleted.", s3_code="InvalidAccessKeyId") from None
        rules = Rules(name, self._directory.statements_of(name))
        return Principal(name, key_id, rules, secret, epoch, began)

    def _see_to_it(self) -> None:
        if not self.is_fresh:
            self.look()
            if not self.is_fresh:
                raise Busy("The users' directory answers too slowly to know what still holds.")

    def _remember(self, name: bytes, principal: Principal) -> None:
        with self._lock:
            if principal.epoch == self._epoch:
                self._principals[name] = principal
                if len(self._principals) > KEPT_MAX:
                    self._principals.popitem(last=False)

    def _name(self, shown: bytes) -> bytes:
        # never the header itself: it holds a secret
        return hashlib.blake2b(shown, key=self._key, digest_size=16).digest()


def _shown(request: Request) -> bytes:
    """What the request shows of its caller: the Authorization header, or the cookie of a browser's login."""
    found = request.headers.get(b"authorization", b"")
    if found:
        return found
    for part in request.headers.get(b"cookie", b"").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            return b"Cookie " + value
    return b""
