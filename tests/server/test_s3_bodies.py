"""Bodies of S3's clients: chunks, signatures, trailers and checksums, right and wrong in each part."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import StrandlineError
from strandline.redaction import Secret
from strandline.server.auth.sigv4 import (
    EMPTY_SHA256,
    STREAMING_SIGNED,
    STREAMING_SIGNED_TRAILER,
    STREAMING_UNSIGNED_TRAILER,
    Signed,
    signing_key,
)
from strandline.server.messages import Request
from strandline.server.s3.bodies import ALGORITHMS, Content

SCOPE = "20260101/us-east-1/s3/aws4_request"
DATE = "20260101T000000Z"
KEY = signing_key(Secret("secret"), SCOPE)
SEED = "0" * 64


def signed(payload: str) -> Signed:
    return Signed("AKIA", SCOPE, DATE, ("host",), SEED, payload, None)


class Dribbling(io.RawIOBase):
    """A file that gives its bytes in pieces, as a socket does."""

    def __init__(self, data: bytes, piece: int) -> None:
        self._data, self._piece = data, piece

    def read(self, size: int = -1) -> bytes:
        taken = self._data[: self._piece]
        self._data = self._data[len(taken) :]
        return taken


def sign(before: str, data: bytes) -> str:
    parts = ("AWS4-HMAC-SHA256-PAYLOAD", DATE, SCOPE, before, EMPTY_SHA256, hashlib.sha256(data).hexdigest())
    return hmac.new(KEY, "\n".join(parts).encode(), hashlib.sha256).hexdigest()


def chunked(data: bytes, size: int, *, signs: bool, trailer: dict[str, str] | None = None) -> bytes:
    """A body in chunks as S3's clients send it."""
    pieces = [data[first : first + size] for first in range(0, len(data), size)] + [b""]
    before, out = SEED, b""
    for piece in pieces:
        before = sign(before, piece) if signs else ""
        extension = f";chunk-signature={before}".encode() if signs else b""
        out += b"%x" % len(piece) + extension + b"\r\n" + piece + (b"\r\n" if piece else b"")
    if trailer is not None:
        lines = [f"{name}:{value}" for name, value in trailer.items()]
        if signs:
            canonical = "".join(f"{line}\n" for line in lines).encode()
            parts = ("AWS4-HMAC-SHA256-TRAILER", DATE, SCOPE, before, hashlib.sha256(canonical).hexdigest())
            signature = hmac.new(KEY, "\n".join(parts).encode(), hashlib.sha256).hexdigest()
            lines.append(f"x-amz-trailer-signature:{signature}")
        out += "".join(f"{line}\r\n" for line in lines).encode()
    return out + b"\r\n"


def read(body: bytes, payload: str, piece: Any = 7, **headers: Any) -> bytes:
    given = {name.replace("_", "-").encode(): str(value).encode() for name, value in headers.items()}
    given |= {b"x-amz-content-sha256": payload.encode()}
    given.setdefault(b"content-length", str(len(body)).encode())
    request = Request("PUT", b"/a", given)
    content = Content(Dribbling(body, piece), request, signed(payload), KEY)  # type: ignore[arg-type]
    return b"".join(iter(lambda: content.read(5), b""))


@given(data=st.binary(max_size=100), size=st.integers(1, 40), piece=st.integers(1, 60), kind=st.sampled_from("usT"))
def test_chunks_are_taken_apart(data: bytes, size: int, piece: int, kind: str) -> None:
    crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    if kind == "s":
        body, payload, more = chunked(data, size, signs=True), STREAMING_SIGNED, {}
    else:
        signs = kind == "T"
        body = chunked(data, size, signs=signs, trailer={"x-amz-checksum-crc32": crc})
        payload = STREAMING_SIGNED_TRAILER if signs else STREAMING_UNSIGNED_TRAILER
        more = {"x_amz_trailer": "x-amz-checksum-crc32"}
    assert read(body, payload, piece, x_amz_decoded_content_length=len(data), **more) == data


@given(data=st.binary(min_size=1, max_size=60), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_is_noticed(data: bytes, at: int, flip: int) -> None:
    body = bytearray(chunked(data, 16, signs=True))
    body[at % len(body)] ^= flip
    try:
        found = read(bytes(body), STREAMING_SIGNED, x_amz_decoded_content_length=len(data))
    except StrandlineError:
        return
    assert found == data  # the last line break and the case of a size change nothing


def test_changed_content_under_its_old_signatures_is_refused() -> None:
    body = chunked(b"hello world", 4, signs=True)
    for old, new in ((b"hell", b"HELL"), (b"rld", b"RLD")):
        with pytest.raises(StrandlineError, match="signature"):
            read(body.replace(old, new), STREAMING_SIGNED, x_amz_decoded_content_length=11)


@given(data=st.binary(min_size=1, max_size=60), cut=st.integers(3, 10_000))
def test_a_cut_body_is_noticed(data: bytes, cut: int) -> None:
    body = chunked(data, 16, signs=True)
    with pytest.raises(StrandlineError):
        read(body[: -(cut % (len(body) - 3)) - 3], STREAMING_SIGNED, x_amz_decoded_content_length=len(data))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_checksums(name: str) -> None:
    data = b"some content"
    digest = ALGORITHMS[name]()
    digest.update(data)
    right = base64.b64encode(digest.digest()).decode()
    wrong = base64.b64encode(bytes(len(digest.digest()))).decode()
    payload = hashlib.sha256(data).hexdigest()
    assert read(data, payload, **{f"x_amz_checksum_{name}": right}) == data
    for value, code in ((wrong, "BadDigest"), ("nonsense", "InvalidRequest")):
        with pytest.raises(StrandlineError) as caught:
            read(data, payload, **{f"x_amz_checksum_{name}": value})
        assert caught.value.s3_code == code  # type: ignore[attr-defined]
    trailer = chunked(data, 5, signs=False, trailer={f"x-amz-checksum-{name}": wrong})
    with pytest.raises(StrandlineError):
        more = {"x_amz_trailer": f"x-amz-checksum-{name}", "x_amz_decoded_content_length": len(data)}
        read(trailer, STREAMING_UNSIGNED_TRAILER, **more)


def test_known_values_of_checksums() -> None:
    """ "123456789", as the standards give it (CRC-32/ISO-HDLC, CRC-32/ISCSI, CRC-64/NVME)."""
    known = {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}
    for name, value in known.items():
        digest = ALGORITHMS[name]()
        digest.update(b"12345")
        digest.update(b"6789")
        assert digest.digest().hex() == value


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"hello", {"content_length": 6}, "IncompleteBody"),
        (b"hello", {"content_md5": base64.b64encode(bytes(16)).decode()}, "BadDigest"),
        (b"hello", {"content_md5": "x"}, "InvalidDigest"),
        (b"hello", {"x_amz_checksum_crc32": "AAAAAA==", "x_amz_checksum_sha1": "x"}, "InvalidRequest"),
        (b"hello", {"x_amz_checksum_md7": "x"}, "InvalidRequest"),
    ],
)
def test_plain_bodies(body: bytes, headers: dict[str, Any], code: str) -> None:
    with pytest.raises(StrandlineError) as caught:
        read(body, "UNSIGNED-PAYLOAD", **headers)
    assert caught.value.s3_code == code  # type: ignore[attr-defined]


def test_a_hash_of_another_body() -> None:
    with pytest.raises(StrandlineError) as caught:
        read(b"hello", hashlib.sha256(b"other").hexdigest())
    assert caught.value.s3_code == "XAmzContentSHA256Mismatch"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhello\r\n0\r\nx-amz-checksum-sha1:AAAA\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"zz\r\n",
        b"5;ext=1\r\nhello\r\n0\r\n\r\n",
        b"ffffffffff\r\n",
        b"7fffffff\r\n",
        b"5\r\nhelloXX0\r\n",
        b"a" * 1000,
        b"",
    ],
)
def test_malformed_chunks(body: bytes) -> None:
    with pytest.raises(StrandlineError):
        read(
            body,
            STREAMING_UNSIGNED_TRAILER,
            x_amz_decoded_content_length=5,
            x_amz_trailer="x-amz-checksum-crc32",
        )


def test_lengths_that_lie() -> None:
    body = chunked(b"hello", 16, signs=True)
    for length in (4, 6):
        with pytest.raises(StrandlineError):
            read(body, STREAMING_SIGNED, x_amz_decoded_content_length=length)
    for text in ("", "-5", "five", "9" * 20):
        with pytest.raises(StrandlineError):
            read(body, STREAMING_SIGNED, x_amz_decoded_content_length=text)
