"""Signatures of S3, version 4: from the bytes of a request to the key id that signed it, or a refusal. Pure.

Source: "Authenticating Requests (AWS Signature Version 4)" of the Amazon S3 API Reference. The canonical path is made
from the path as it was sent: to decode it and to encode it again would let two paths have one signature.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from calendar import timegm
from dataclasses import dataclass
from functools import lru_cache
from time import strptime
from urllib.parse import quote, unquote_to_bytes

from strandline.redaction import Secret
from strandline.server.messages import Request
from strandline.server.refusals import NotAuthenticated

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S = 15 * 60
PRESIGNED_MAX_S = 7 * 24 * 3600
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMING_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
STREAMING_SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
STREAMING_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
SIGNING_KEYS_KEPT = 1_024
REMEMBERED_TEXTS = 256
"""Of a client the credential and the names of the signed headers are the same all day."""

_CREDENTIAL = re.compile(r"([A-Za-z0-9]{1,128})/(\d{8})/([a-z0-9-]+)/(s3)/aws4_request", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_SPACES = re.compile(rb"[ \t]+")
_UNRESERVED = "-_.~"


@dataclass(frozen=True, slots=True)
class Signed:
    """What a request says of its signature.

    Attributes:
        key_id: the access key.
        scope: date/region/service/aws4_request.
        date: when it was signed, as YYYYMMDDTHHMMSSZ.
        payload: the hash of the body as a hexadecimal text, or a word that says how the body is signed.
        expires_s: of a presigned request, how long it holds; else None.
    """

    key_id: str
    scope: str
    date: str
    headers: tuple[str, ...]
    signature: str
    payload: str
    expires_s: int | None

    @property
    def is_streaming(self) -> bool:
        """Whether the body comes in chunks that carry signatures or a trailer."""
        return self.payload.startswith("STREAMING-")


def is_signed(request: Request) -> bool:
    """Whether a request carries any signature of S3, so that its answer is one of S3."""
    authorization = request.headers.get(b"authorization", b"")
    query = request.raw_query
    return (
        authorization.startswith((b"AWS4-", b"AWS "))
        or b"X-Amz-Algorithm=" in query
        or b"AWSAccessKeyId=" in query
        or b"X-Amz-Credential=" in query
    )


def read_signature(request: Request, now_s: float) -> Signed:
    """What a request says of its signature, if that is well formed and of this time.

    Raises:
        NotAuthenticated: it is another kind of signature, malformed, too old or too new.
    """
    authorization = request.header(b"authorization")
    if authorization.startswith("AWS ") or b"AWSAccessKeyId=" in request.raw_query:
        raise _refused("Signatures of version 2 are not accepted.", "InvalidRequest", 400)
    if authorization.startswith("AWS4-ECDSA"):
        raise _refused("Signatures of version 4a are not accepted.", "InvalidRequest", 400)
    signed = _from_header(request, authorization) if authorization else _from_query(request)
    _check_time(signed, now_s)
    if "host" not in signed.headers:
        raise _refused("The host is not among the signed headers.", "AccessDenied", 403)
    known = _encoded(signed.headers)
    for name in request.headers:
        if name.startswith(b"x-amz-") and name not in known:
            raise _refused(f"The header {name.decode('latin-1')[:80]} is not signed.", "AccessDenied", 403)
    return signed


def _from_header(request: Request, authorization: str) -> Signed:
    kind, _, rest = authorization.partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if kind != ALGORITHM or set(fields) != {"Credential", "SignedHeaders", "Signature"}:
        raise _refused("The Authorization header is malformed.", "AuthorizationHeaderMalformed", 400)
    payload = request.header(b"x-amz-content-sha256")
    if not payload:
        raise _refused("The header x-amz-content-sha256 is missing.", "MissingSecurityHeader", 400)
    _check_payload(payload)
    date = request.header(b"x-amz-date")
    if not _DATE.fullmatch(date):
        raise _refused("The header x-amz-date is missing or malformed.", "AccessDenied", 403)
    key_id, scope = _credential(fields["Credential"], date)
    return Signed(key_id, scope, date, _names(fields["SignedHeaders"]), _hex(fields["Signature"]), payload, None)


def _from_query(request: Request) -> Signed:
    fields: dict[str, str] = {}
    for name, value in request.query:
        if name.startswith("X-Amz-") and name in fields:
            raise _refused(f"{name} is there twice.", "AuthorizationQueryParametersError", 400)
        fields[name] = value
    wanted = (
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    )
    missing = [name for name in wanted if name not in fields]
    if missing or fields["X-Amz-Algorithm"] != ALGORITHM:
        what = f"{missing[0]} is missing" if missing else "X-Amz-Algorithm is not AWS4-HMAC-SHA256"
        raise _refused(f"{what}.", "AuthorizationQueryParametersError", 400)
    if not _NUMBER.fullmatch(fields["X-Amz-Expires"]) or not 1 <= int(fields["X-Amz-Expires"]) <= PRESIGNED_MAX_S:
        raise _refused("X-Amz-Expires is not 1 to 604800 seconds.", "AuthorizationQueryParametersError", 400)
    date = fields["X-Amz-Date"]
    if not _DATE.fullmatch(date):
        raise _refused("X-Amz-Date is malformed.", "AuthorizationQueryParametersError", 400)
    try:
        key_id, scope = _credential(fields["X-Amz-Credential"], date)
    except NotAuthenticated as error:
        raise _refused(error.what, "AuthorizationQueryParametersError", 400) from None
    payload = request.header(b"x-amz-content-sha256") or fields.get("X-Amz-Content-Sha256", "") or UNSIGNED
    _check_payload(payload)
    return Signed(
        key_id,
        scope,
        date,
        _names(fields["X-Amz-SignedHeaders"]),
        _hex(fields["X-Amz-Signature"]),
        payload,
        int(fields["X-Amz-Expires"]),
    )


def _credential(text: str, date: str) -> tuple[str, str]:
    key_id, day, scope = _parts_of_credential(text)
    if day != date[:8]:
        raise _refused("The credential has another date than the request.", "AccessDenied", 403)
    return key_id, scope


@lru_cache(REMEMBERED_TEXTS)
def _parts_of_credential(text: str) -> tuple[str, str, str]:
    found = _CREDENTIAL.fullmatch(text)
    if not found:
        raise _refused("The credential of the signature is malformed.", "AuthorizationHeaderMalformed", 400)
    return found[1], found[2], text.partition("/")[2]


@lru_cache(REMEMBERED_TEXTS)
def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(";"))
    if list(names) != sorted(set(names)) or any(name != name.lower() or not name for name in names):
        raise _refused("The names of the signed headers are malformed.", "AuthorizationHeaderMalformed", 400)
    return names


@lru_cache(REMEMBERED_TEXTS)
def _encoded(names: tuple[str, ...]) -> dict[bytes, bytes]:
    """The names as they stand in a request, and as a line of what is signed begins with them."""
    return {name.encode("latin-1", "replace"): f"{name}:".encode() for name in names}


def _hex(text: str) -> str:
    if not _HEX.fullmatch(text):
        raise _refused("The signature is not 64 hexadecimal digits.", "SignatureDoesNotMatch", 403)
    return text


def _check_payload(text: str) -> None:
    known = (UNSIGNED, STREAMING_SIGNED, STREAMING_SIGNED_TRAILER, STREAMING_UNSIGNED_TRAILER)
    if text not in known and not _HEX.fullmatch(text):
        raise _refused("x-amz-content-sha256 is not a hash or a known word.", "InvalidArgument", 400)


@lru_cache(64)
def _seconds(date: str) -> int:
    """Seconds since 1970 UTC; the requests of one second share a date."""
    return timegm(strptime(date, "%Y%m%dT%H%M%SZ"))


def _check_time(signed: Signed, now_s: float) -> None:
    try:
        signed_at = _seconds(signed.date)
    except ValueError:
        raise _refused("The date of the signature is not one.", "AccessDenied", 403) from None
    if signed.expires_s is None:
        if abs(now_s - signed_at) > SKEW_S:
            raise _refused("The request was signed at another time, or by a wrong clock.", "RequestTimeTooSkewed", 403)
    elif signed_at - SKEW_S > now_s:
        raise _refused("The link is not valid yet.", "AccessDenied", 403)
    elif now_s > signed_at + signed.expires_s:
        raise _refused("The link has expired.", "AccessDenied", 403)


def check_signature(request: Request, signed: Signed, secret: Secret) -> bytes:
    """Compare the signature in constant time; returns the signing key, with which chunks are signed.

    Raises:
        NotAuthenticated: it is another one.
    """
    key = signing_key(secret, signed.scope)
    to_sign = "\n".join((ALGORITHM, signed.date, signed.scope, _canonical_hash(request, signed)))
    expected = hmac.digest(key, to_sign.encode(), "sha256").hex()
    if not hmac.compare_digest(expected, signed.signature):
        raise _refused("The signature does not match the request.", "SignatureDoesNotMatch", 403)
    return key


@lru_cache(SIGNING_KEYS_KEPT)
def signing_key(secret: Secret, scope: str) -> bytes:
    """The key that signs all requests of one day, region and service."""
    key = b"AWS4" + secret.reveal().encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _canonical_hash(request: Request, signed: Signed) -> str:
    headers = []
    for name, beginning in _encoded(signed.headers).items():
        value = request.headers.get(name)
        if value is None:
            raise _refused(f"The signed header {name.decode('latin-1')[:80]} was not sent.", "AccessDenied", 403)
        text = value.strip()
        if b"  " in text or b"\t" in text:
            text = _SPACES.sub(b" ", text)
        headers.append(beginning + text + b"\n")
    canonical = b"\n".join(
        (
            request.method.encode(),
            request.raw_path,
            _canonical_query(request.raw_query, is_presigned=signed.expires_s is not None),
            b"".join(headers),
            ";".join(signed.headers).encode(),
            signed.payload.encode(),
        )
    )
    return hashlib.sha256(canonical).hexdigest()


def _canonical_query(raw: bytes, *, is_presigned: bool) -> bytes:
    if not raw:
        return b""
    pairs = []
    for part in raw.split(b"&"):
        if not part:
            continue
        name, _, value = part.partition(b"=")
        if is_presigned and name == b"X-Amz-Signature":
            continue
        pairs.append((_reencoded(name), _reencoded(value)))
    return b"&".join(name + b"=" + value for name, value in sorted(pairs))


def _reencoded(text: bytes) -> bytes:
    return quote(unquote_to_bytes(text), safe=_UNRESERVED).encode()


class ChunkSignatures:
    """The signatures of the chunks of a body, each of which signs the one before.

    Args:
        key: that `check_signature` returned.
    """

    def __init__(self, key: bytes, signed: Signed) -> None:
        self._key = key
        self._date, self._scope = signed.date, signed.scope
        self._before = signed.signature

    def check(self, data_sha256: str, signature: str) -> None:
        """Check the signature of the next chunk; raises `NotAuthenticated`."""
        self._compare(
            (f"{ALGORITHM}-PAYLOAD", self._date, self._scope, self._before, EMPTY_SHA256, data_sha256), signature
        )

    def check_trailer(self, trailer_sha256: str, signature: str) -> None:
        """Check the signature of what follows the chunks."""
        self._compare((f"{ALGORITHM}-TRAILER", self._date, self._scope, self._before, trailer_sha256), signature)

    def _compare(self, parts: tuple[str, ...], signature: str) -> None:
        expected = hmac.digest(self._key, "\n".join(parts).encode(), "sha256").hex()
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise _refused("The signature of a part of the body does not match.", "SignatureDoesNotMatch", 403)
        self._before = expected


def _refused(what: str, code: str, status: int) -> NotAuthenticated:
    return NotAuthenticated(what, status=status, s3_code=code)
