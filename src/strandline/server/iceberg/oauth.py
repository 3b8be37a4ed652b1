"""Tokens for an access key (RFC 6749, section 4.4), and for a token that is still good (RFC 8693)."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import parse_qsl, unquote_plus

from strandline.server.auth.tokens import Expired
from strandline.server.iceberg.operation import IcebergCall, IcebergOperation
from strandline.server.iceberg.replies import secret_json
from strandline.server.messages import Response
from strandline.server.refusals import NotAuthenticated

LASTS_S = 3_600
FORM_MAX_BYTES = 64 << 10
FIELDS_MAX = 20
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
JWT = "urn:ietf:params:oauth:token-type:jwt"


def give_token(call: IcebergCall) -> Response:
    try:
        pairs = parse_qsl(call.body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        return _refused("invalid_request", "The body is not a form.")
    form = dict(pairs)
    if len(form) < len(pairs):
        return _refused("invalid_request", "A field of the form is there twice.")
    grant = form.get("grant_type", "")
    try:
        if grant == "client_credentials":
            key, secret = _client(call, form)
            token, expires_s = call.services.verifier.log_in(key, secret, call.request.peer, LASTS_S)
        elif grant == EXCHANGE:
            if form.get("subject_token_type") not in (ACCESS_TOKEN, JWT):
                return _refused("invalid_request", "The subject token is not an access token.")
            token, expires_s = call.services.verifier.renew(form.get("subject_token", ""), LASTS_S)
        else:
            return _refused("unsupported_grant_type", "Use client_credentials, with an access key as client.")
    except Expired as error:
        return _refused("invalid_grant", str(error))
    except NotAuthenticated as error:
        kind = "invalid_client" if grant == "client_credentials" else "invalid_grant"
        return _refused(kind, str(error), 401 if kind == "invalid_client" else 400)
    body = {
        "access_token": token,
        "token_type": "bearer",
        "expires_in": expires_s - call.services.clock.now_us() // 1_000_000,
        "issued_token_type": ACCESS_TOKEN,
        "scope": form.get("scope") or "catalog",
    }
    return secret_json(body)


def _client(call: IcebergCall, form: dict[str, str]) -> tuple[str, str]:
    """The access key and its secret: from the form, or from a Basic header, where both are form-encoded."""
    shown = call.request.headers.get(b"authorization", b"")
    if "client_id" in form:
        return form["client_id"], form.get("client_secret", "")
    if shown.startswith(b"Basic "):
        try:
            key, _, secret = base64.b64decode(shown[6:], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise NotAuthenticated("The Authorization header is malformed.") from None
        return unquote_plus(key), unquote_plus(secret)
    # Iceberg's Java client sends a credential without a colon as a secret alone
    raise NotAuthenticated("The request names no client.", next="Give the credential as key:secret.")


def _refused(error: str, description: str, status: int = 400) -> Response:
    headers = ((b"WWW-Authenticate", b'Basic realm="strandline"'),) if status == 401 else ()
    made = secret_json({"error": error, "error_description": description}, status)
    made.headers = (*made.headers, *headers)
    return made


OPERATIONS = (
    IcebergOperation(
        "getToken", "POST", "oauth/tokens", give_token, None, body=bytes, body_max=FORM_MAX_BYTES, is_listed=False
    ),
)
