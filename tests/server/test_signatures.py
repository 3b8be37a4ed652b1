"""Signatures of S3: botocore signs, and every replay with something else is refused."""

from __future__ import annotations

import time
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from strandline.redaction import Secret
from strandline.server.auth.sigv4 import SKEW_S, check_signature, read_signature
from strandline.server.messages import Request
from strandline.server.refusals import NotAuthenticated

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HOST = "lake.example:8000"


def signed(
    method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None, expires: int | None = None
) -> Request:
    """A request as botocore signs it, by headers or, if it expires, by its query."""
    request = AWSRequest(method, f"http://{HOST}{target}", headers or {}, body)
    credentials = Credentials(KEY, SECRET)
    signer: Any
    if expires is None:
        signer = botocore.auth.S3SigV4Auth(credentials, "s3", "eu-central-1")
    else:
        signer = botocore.auth.S3SigV4QueryAuth(credentials, "s3", "eu-central-1", expires)
    signer.add_auth(request)
    prepared = request.prepare()
    sent = {str(name).lower().encode(): _bytes(value) for name, value in prepared.headers.items()}
    sent[b"host"] = HOST.encode()
    path = prepared.url.partition(HOST)[2]
    return Request(method, path.encode(), sent, "127.0.0.1")


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def check(request: Request, now: float | None = None) -> None:
    found = read_signature(request, time.time() if now is None else now)
    assert found.key_id == KEY
    check_signature(request, found, Secret(SECRET))


TARGETS = (
    "/repo/main/a",
    "/repo/main/a%20b%2Fc",
    "/repo/main//double/",
    "/repo/main/~tilde-_.",
    "/repo?list-type=2&prefix=main%2F&delimiter=%2F",
    "/repo?prefix=a%2Bb&prefix=a&empty=&list-type=2",
    "/repo/main/%C3%BC?uploads=",
    "/",
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_botocore_signs_is_accepted(method: str, target: str) -> None:
    check(signed(method, target, b"body", {"x-amz-meta-key": " two   spaces ", "Content-Type": "text/plain"}))
    check(signed(method, target, expires=600))


@given(
    path=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    value=st.text(max_size=10),
)
def test_any_path_and_query(path: str, value: str) -> None:
    from urllib.parse import quote

    target = f"/repo/main/{quote(path, safe='/-_.~')}?prefix={quote(value, safe='-_.~')}"
    check(signed("GET", target))


def changed(request: Request, **what: Any) -> Request:
    """The same request with something else in it."""
    target = what.get("target") or request.raw_path + (b"?" + request.raw_query if request.raw_query else b"")
    headers = dict(request.headers) | what.get("headers", {})
    for name in what.get("without", ()):
        headers.pop(name)
    return Request(what.get("method", request.method), target, headers, "127.0.0.1")


@pytest.mark.parametrize(
    "what",
    [
        {"method": "PUT"},
        {"target": b"/repo/main/b"},
        {"target": b"/repo/main/a?x=1"},
        {"target": b"/repo/main/%61"},
        {"target": b"/repo/main/./a"},
        {"headers": {b"host": b"other.example"}},
        {"headers": {b"x-amz-content-sha256": b"0" * 64}},
        {"headers": {b"x-amz-content-sha256": b"UNSIGNED-PAYLOAD"}},
        {"headers": {b"x-amz-date": b"20200101T000000Z"}},
        {"headers": {b"x-amz-meta-new": b"unsigned"}},
        {"headers": {b"x-amz-meta-key": b"other"}},
        {"without": [b"x-amz-date"]},
        {"without": [b"x-amz-content-sha256"]},
        {"without": [b"x-amz-meta-key"]},
    ],
    ids=str,
)
def test_a_replay_with_something_else_is_refused(what: dict[str, Any]) -> None:
    request = signed("GET", "/repo/main/a", headers={"x-amz-meta-key": "value"})
    check(request)
    with pytest.raises(NotAuthenticated):
        check(changed(request, **what))


def test_signatures_hold_for_a_while() -> None:
    request, now = signed("GET", "/repo/main/a"), time.time()
    check(request, now + SKEW_S - 60)
    check(request, now - SKEW_S + 60)
    for then in (now + SKEW_S + 60, now - SKEW_S - 60):
        with pytest.raises(NotAuthenticated, match="another time"):
            check(request, then)
    link = signed("GET", "/repo/main/a", expires=3600)
    check(link, now + 3500)  # the rule of fifteen minutes is not for links
    with pytest.raises(NotAuthenticated, match="expired"):
        check(link, now + 3700)


@pytest.mark.parametrize(
    "replace",
    [
        (b"X-Amz-Expires=600", b"X-Amz-Expires=700"),
        (b"X-Amz-Expires=600", b"X-Amz-Expires=604801"),
        (b"X-Amz-Expires=600", b"X-Amz-Expires=-1"),
        (b"X-Amz-Expires=600", b""),
        (b"X-Amz-Algorithm=AWS4-HMAC-SHA256", b"X-Amz-Algorithm=AWS4-HMAC-SHA1"),
        (b"eu-central-1", b"us-east-1"),
        (b"%2Fs3%2F", b"%2Fsts%2F"),
        (b"X-Amz-SignedHeaders=host", b"X-Amz-SignedHeaders="),
        (b"X-Amz-Signature=", b"X-Amz-Signature=0"),
        (b"X-Amz-Expires=600", b"X-Amz-Expires=600&X-Amz-Expires=600"),
    ],
    ids=str,
)
def test_a_link_with_something_else_is_refused(replace: tuple[bytes, bytes]) -> None:
    link = signed("GET", "/repo/main/a", expires=600)
    target = link.raw_path + b"?" + link.raw_query
    assert replace[0] in target
    with pytest.raises(NotAuthenticated):
        check(changed(link, target=target.replace(*replace)))


@pytest.mark.parametrize(
    "header",
    [
        "AWS AKIA:signature",
        "AWS4-ECDSA-P256-SHA256 Credential=x",
        "AWS4-HMAC-SHA256 ",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=AKIA/20200101/us-east-1/s3/aws4_request, SignedHeaders=host;host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=AKIA/20200101/us-east-1/s3/aws4_request, SignedHeaders=Host, Signature="
        + "g" * 64,
    ],
)
def test_malformed_signatures(header: str) -> None:
    headers = {b"authorization": header.encode(), b"host": b"x", b"x-amz-date": b"20200101T000000Z"}
    headers[b"x-amz-content-sha256"] = b"UNSIGNED-PAYLOAD"
    with pytest.raises(NotAuthenticated) as caught:
        read_signature(Request("GET", b"/a", headers), 1577836800.0)
    assert caught.value.status in (400, 403)


def test_an_access_key_of_any_length_is_well_formed() -> None:
    """So that one which does not exist gets the answer of one that does not exist."""
    rest = "20200101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date"
    for key_id in ("A", "B" * 128):
        text = f"AWS4-HMAC-SHA256 Credential={key_id}/{rest}, Signature=" + "0" * 64
        headers = {b"authorization": text.encode(), b"host": b"x", b"x-amz-date": b"20200101T000000Z"}
        headers[b"x-amz-content-sha256"] = b"UNSIGNED-PAYLOAD"
        assert read_signature(Request("GET", b"/a", headers), 1577836800.0).key_id == key_id


@given(st.binary(max_size=200))
def test_any_header_is_refused_or_read(raw: bytes) -> None:
    headers = {b"authorization": b"AWS4-HMAC-SHA256 " + raw, b"host": b"x"}
    with pytest.raises(NotAuthenticated):
        read_signature(Request("GET", b"/a", headers), 0.0)
