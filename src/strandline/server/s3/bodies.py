"""Bodies of S3's clients, checked while they are read: chunks, signatures, trailers, checksums, lengths.

Source: "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks" and "Checking
object integrity" of the Amazon S3 documentation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from strandline.server.auth.sigv4 import ChunkSignatures, Signed
from strandline.server.messages import Request
from strandline.server.refusals import BadRequest, BrokenBody, TooLarge

READ_BYTES = 1 << 20
OBJECT_MAX_BYTES = 5 << 30
CHUNK_LINE_MAX_BYTES = 256
CHUNK_MAX_BYTES = 1 << 30
TRAILER_MAX_BYTES = 4 << 10


class _Crc:
    """A checksum that grows by a function, with the face of `hashlib`."""

    def __init__(self, step: Callable[[bytes, int], int], size: int) -> None:
        self._step, self._size, self._value = step, size, 0

    def update(self, data: bytes) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


def _crc32c() -> _Crc:
    from awscrt import checksums  # noqa: PLC0415 - few clients send it

    return _Crc(lambda data, before: int(checksums.crc32c(data, before)), 4)


def _crc64nvme() -> _Crc:
    from awscrt import checksums  # noqa: PLC0415 - few clients send it

    return _Crc(lambda data, before: int(checksums.crc64nvme(data, before)), 8)


ALGORITHMS: dict[str, Callable[[], Any]] = {
    "crc32": lambda: _Crc(lambda data, before: zlib.crc32(data, before), 4),
    "crc32c": _crc32c,
    "crc64nvme": _crc64nvme,
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}
PREFIX = b"x-amz-checksum-"
KEPT_HEADERS = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
_KEPT_NAMES = tuple((name, name.encode()) for name in KEPT_HEADERS)
KEPT_PREFIX = "::http::"
"""What the metadata of an object call a header that its readers get as it was given."""


class Content(io.RawIOBase):
    """A body as the object that it carries. What is wrong with it is known at its end at the latest.

    Reading raises:
        BrokenBody: it ends early.
        BadRequest: a checksum, a length or a chunk is wrong.
        NotAuthenticated: the signature of a chunk is wrong.

    Args:
        key: that signs the chunks, if they are signed.
        most: how many bytes the object may have.
        of_another: the checksum in the headers is that of something else.
    """

    def __init__(
        self,
        source: BinaryIO,
        request: Request,
        signed: Signed,
        key: bytes,
        most: int = OBJECT_MAX_BYTES,
        *,
        of_another: bool = False,
    ) -> None:
        self._most = most
        self._expected = {} if of_another else _of_body(request)
        self._digests = {name: ALGORITHMS[name]() for name in self._expected}
        self._md5 = hashlib.md5(usedforsecurity=False) if b"content-md5" in request.headers else None
        self._md5_wanted = decoded(request.header(b"content-md5"), 16) if self._md5 is not None else b""
        self._sha256: Any = None
        self._sha256_wanted = ""
        self._length = _length_of(request, is_chunked=is_chunked(signed))
        self._size = 0
        self._has_ended = False
        self._source: Any = source
        if is_chunked(signed):
            signatures = ChunkSignatures(key, signed) if "AWS4" in signed.payload else None
            self._source = _Chunks(source, signatures, request, self._expect_trailer)
            for name in _announced(request):
                self._digests.setdefault(name, ALGORITHMS[name]())
        elif len(signed.payload) == 64:
            self._sha256 = hashlib.sha256()
            self._sha256_wanted = signed.payload

    @property
    def checksums(self) -> dict[str, str]:
        """What was computed, by algorithm, in base64."""
        return {name: base64.b64encode(digest.digest()).decode() for name, digest in self._digests.items()}

    def whole(self) -> bytes:
        """All of it, for bodies that are in memory: then it is checked before anything is stored."""
        parts = list(iter(self.read, b""))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_begun(self) -> bool:
        """Whether some of it was read."""
        return self._size > 0 or self._has_ended

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the object, some at least; none at its end."""
        if self._has_ended:
            return b""
        data: bytes = self._source.read(READ_BYTES if size < 0 else min(size, READ_BYTES))
        if not data:
            self._has_ended = True
            self._check()
            return b""
        self._size += len(data)
        if self._size > (self._most if self._length is None else self._length):
            if self._length is None:
                raise TooLarge("The object is too large for one request.", status=400)
            raise BrokenBody(f"The body has more than {self._length:,} bytes.")
        for digest in self._digests.values():
            digest.update(data)
        if self._md5 is not None:
            self._md5.update(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        return data

    def _expect_trailer(self, name: str, value: str) -> None:
        self._expected[name] = value

    def _check(self) -> None:
        if self._length is not None and self._size != self._length:
            raise BrokenBody(f"The body has {self._size:,} bytes instead of {self._length:,}.")
        if self._sha256 is not None and self._sha256.hexdigest() != self._sha256_wanted:
            raise BadRequest("The body has another SHA-256.", s3_code="XAmzContentSHA256Mismatch")
        if self._md5 is not None and not hmac.compare_digest(self._md5.digest(), self._md5_wanted):
            raise BadRequest("The body has another MD5.", s3_code="BadDigest")
        for name, wanted in self._expected.items():
            found = self._digests[name].digest()
            if not hmac.compare_digest(found, decoded(wanted, len(found), "InvalidRequest")):
                raise BadRequest(f"The body has another {name} checksum.", s3_code="BadDigest")


def is_chunked(signed: Signed) -> bool:
    """Whether the body comes in chunks of S3's own, whatever HTTP does with them."""
    return signed.is_streaming


def expected(request: Request) -> dict[str, str]:
    """The checksum that a request's headers name, by algorithm, as they give it; raises `BadRequest`."""
    found = {
        name[len(PREFIX) :].decode("latin-1"): value.decode("latin-1")
        for name, value in request.headers.items()
        if name.startswith(PREFIX) and name not in (PREFIX + b"algorithm", PREFIX + b"mode", PREFIX + b"type")
    }
    unknown = [name for name in found if name not in ALGORITHMS]
    if unknown:
        raise BadRequest(f"The checksum {unknown[0][:80]} is not known.")
    if len(found) > 1:
        raise BadRequest("The request has more than one checksum.")
    named = request.header(b"x-amz-sdk-checksum-algorithm").lower()
    if named and named not in ALGORITHMS:
        raise BadRequest(f"The checksum {named[:80]} is not known.")
    if named and found and named not in found:
        raise BadRequest("The checksum is of another algorithm than the request names.")
    return found


def _of_body(request: Request) -> dict[str, str]:
    """The checksum of the body itself."""
    found = expected(request)
    for name, value in found.items():
        decoded(value, len(ALGORITHMS[name]().digest()), "InvalidRequest")
    return found


def _announced(request: Request) -> list[str]:
    names = [name.strip() for name in request.header(b"x-amz-trailer").lower().split(",") if name.strip()]
    for name in names:
        if not name.startswith("x-amz-checksum-") or name[len("x-amz-checksum-") :] not in ALGORITHMS:
            raise BadRequest(f"The trailer {name[:80]} is not known.", s3_code="MalformedTrailerError")
    return [name[len("x-amz-checksum-") :] for name in names]


def _length_of(request: Request, *, is_chunked: bool) -> int | None:
    """The size of the object as the client says it, or None."""
    text = request.header(b"x-amz-decoded-content-length")
    if is_chunked:
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise BadRequest("The length of the object is missing.", status=411, s3_code="MissingContentLength")
        return int(text)
    return request.content_length


def object_length(request: Request, signed: Signed) -> int | None:
    """How many bytes the object is said to have; None if the client does not say."""
    return _length_of(request, is_chunked=is_chunked(signed))


def decoded(text: str, size: int, code: str = "InvalidDigest") -> bytes:
    """The bytes of a checksum; raises `BadRequest` with this code unless it has so many."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != size:
        raise BadRequest("A checksum of the request is malformed.", s3_code=code)
    return found


class _Chunks:
    """Takes `aws-chunked` apart."""

    def __init__(
        self,
        source: BinaryIO,
        signatures: ChunkSignatures | None,
        request: Request,
        on_trailer: Callable[[str, str], None],
    ) -> None:
        self._source = source
        self._signatures = signatures
        self._announced = _announced(request)
        self._on_trailer = on_trailer
        self._has_trailer = request.header(b"x-amz-content-sha256").endswith("-TRAILER")
        self._buffer = b""
        self._at = 0
        self._left = 0
        self._hash: Any = None
        self._signature = ""
        self._has_ended = False

    def read(self, size: int) -> bytes:
        if self._has_ended:
            return b""
        if not self._left and not self._next_chunk():
            return b""
        if self._at == len(self._buffer):
            self._more()
        data = self._buffer[self._at : self._at + min(size, self._left)]
        self._at += len(data)
        self._left -= len(data)
        if self._hash is not None:
            self._hash.update(data)
        if not self._left:
            self._end_chunk()
        return data

    def _more(self) -> None:
        data = self._source.read(READ_BYTES)
        if not data:
            raise BrokenBody("The body ends in the middle of a chunk.")
        self._buffer = self._buffer[self._at :] + data
        self._at = 0

    def _line(self, most: int) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._at, self._at + most + 2)) < 0:
            if len(self._buffer) - self._at > most + 1:  # one byte may be half of the line's end
                raise _malformed()
            self._more()
        line = self._buffer[self._at : end]
        self._at = end + 2
        return line

    def _next_chunk(self) -> bool:
        """Begin the next chunk; False if that was the last one, whose trailer has been read."""
        size_text, _, extension = self._line(CHUNK_LINE_MAX_BYTES).partition(b";")
        try:
            if not size_text or len(size_text) > 8 or size_text.strip(b"0123456789abcdefABCDEF"):
                raise ValueError
            self._left = int(size_text, 16)
        except ValueError:
            raise _malformed() from None
        if self._left > CHUNK_MAX_BYTES:
            raise BadRequest("A chunk of the body is too large.", s3_code="EntityTooLarge")
        if self._signatures is not None:
            name, _, value = extension.partition(b"=")
            if name != b"chunk-signature":
                raise BadRequest("A chunk of the body has no signature.", status=403, s3_code="SignatureDoesNotMatch")
            self._signature = value.decode("latin-1")
            self._hash = hashlib.sha256()
        elif extension:
            raise _malformed()
        if not self._left:
            if self._signatures is not None:
                self._signatures.check(self._hash.hexdigest(), self._signature)
            self._trailer()
            self._has_ended = True
            return False
        return True

    def _end_chunk(self) -> None:
        if self._line(0):
            raise _malformed()
        if self._signatures is not None:
            self._signatures.check(self._hash.hexdigest(), self._signature)

    def _trailer(self) -> None:
        lines: list[bytes] = []
        signature = ""
        found: set[str] = set()
        while self._at < len(self._buffer) or self._peek():
            line = self._line(TRAILER_MAX_BYTES)
            if not line:
                break
            name, _, value = line.partition(b":")
            key = name.strip().lower().decode("latin-1")
            if key == "x-amz-trailer-signature":
                signature = value.strip().decode("latin-1")
                continue
            algorithm = key.removeprefix("x-amz-checksum-")
            if algorithm not in self._announced or algorithm in found:
                raise BadRequest("The body has a trailer that was not announced.", s3_code="MalformedTrailerError")
            found.add(algorithm)
            lines.append(key.encode() + b":" + value.strip() + b"\n")
            self._on_trailer(algorithm, value.strip().decode("latin-1"))
        if found != set(self._announced):
            raise BadRequest("A trailer that was announced is missing.", s3_code="MalformedTrailerError")
        if self._has_trailer and self._signatures is not None:
            self._signatures.check_trailer(hashlib.sha256(b"".join(lines)).hexdigest(), signature)

    def _peek(self) -> bool:
        """Whether there is more; a body may end right behind its last chunk."""
        self._buffer, self._at = self._source.read(READ_BYTES), 0
        return bool(self._buffer)


def _malformed() -> BadRequest:
    return BadRequest("The body is not in chunks as it says.", s3_code="IncompleteBody")


def user_metadata(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The user metadata that came in headers.

    Raises:
        BadRequest: there is too much.
    """
    found = {
        name[len(b"x-amz-meta-") :].decode("latin-1"): value.decode("utf-8", "replace")
        for name, value in headers.items()
        if name.startswith(b"x-amz-meta-")
    }
    for name, sent in _KEPT_NAMES:
        if sent not in headers:
            continue
        value = headers[sent].decode("utf-8", "replace")
        if name == "content-encoding":  # what S3's own framing says is not about the object
            value = ", ".join(one for part in value.split(",") if (one := part.strip()) and one != "aws-chunked")
        if value:
            found[KEPT_PREFIX + name] = value
    if found and sum(len(name) + len(value.encode()) for name, value in found.items()) > 2 << 10:
        raise BadRequest("The user metadata have more than 2 KiB.", s3_code="MetadataTooLarge")
    return found
