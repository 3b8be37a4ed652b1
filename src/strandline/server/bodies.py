"""The content of an object in a form, as browsers and some clients send it, read as it comes."""

from __future__ import annotations

import base64
import hashlib
import io
from email.message import Message
from email.parser import BytesHeaderParser
from typing import BinaryIO

from strandline.server.refusals import BadRequest, BrokenBody, TooLarge

CHUNK_BYTES = 1 << 20
HEADERS_MAX_BYTES = 16 << 10
FIELDS_MAX = 32
MD5_BYTES = 16


class Limited:
    """A body that may have so many bytes and no more.

    Args:
        is_hashed: whether what passes is hashed.

    Attributes:
        md5: of what has passed, if it is hashed.
        is_begun: whether some of it was read.
    """

    def __init__(self, source: BinaryIO, most: int, *, is_hashed: bool = False) -> None:
        self._source = source
        self._left = most
        self.is_begun = False
        self._is_hashed = is_hashed
        self.md5 = hashlib.md5(usedforsecurity=False)

    def read(self, size: int = -1) -> bytes:
        """The next bytes; raises `TooLarge` if there are more than allowed."""
        self.is_begun = True
        data = self._source.read(CHUNK_BYTES if size < 0 else min(size, CHUNK_BYTES))
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge("The body has more bytes than allowed.")
        if self._is_hashed:
            self.md5.update(data)
        return data


class WithMd5:
    """A body whose MD5 the client has said, in base64; its end is an error if it is another one.

    Raises:
        BadRequest: what it said is no MD5.
    """

    def __init__(self, source: BinaryIO, said: str) -> None:
        try:
            self._wanted = base64.b64decode(said, validate=True)
        except ValueError:
            self._wanted = b""
        if len(self._wanted) != MD5_BYTES:
            raise BadRequest("Content-MD5 is not an MD5 in base64.", s3_code="InvalidDigest")
        self._source = source
        self._md5 = hashlib.md5(usedforsecurity=False)

    def read(self, size: int = -1) -> bytes:
        """The next bytes; raises `BadRequest` at the end of another body than was said."""
        data = self._source.read(CHUNK_BYTES if size < 0 else min(size, CHUNK_BYTES))
        if not data and self._md5.digest() != self._wanted:
            raise BadRequest("The body has another MD5.", s3_code="BadDigest")
        self._md5.update(data)
        return data


class FormContent(io.RawIOBase):
    """One field of a body of multipart/form-data (RFC 7578), as a file that is read once.

    Args:
        source: the body.
        boundary: that the content type names.
        field: the name of the field; what comes before it is passed over, what comes after it is not read.

    Attributes:
        content_type: of the field, or "".
    """

    def __init__(self, source: BinaryIO, boundary: str, field: str) -> None:
        self._source = source
        self._mark = b"\r\n--" + boundary.encode("latin-1", "replace")
        self._buffer = b"\r\n"  # so that the first boundary looks like the others
        self._has_ended = False
        self.content_type = ""
        for _ in range(FIELDS_MAX):
            self._pass_to_boundary()
            headers = self._headers()
            if headers.get_param("name", header="content-disposition") == field:
                self.content_type = headers.get("content-type", "")
                return
        raise BadRequest(f"The form has no field {field!r} among its first {FIELDS_MAX}.")

    def readable(self) -> bool:
        return True

    def _more(self) -> None:
        data = self._source.read(CHUNK_BYTES)
        if not data:
            raise BrokenBody("The form ends before its last boundary.")
        self._buffer += data

    def _pass_to_boundary(self) -> None:
        while (at := self._buffer.find(self._mark)) < 0:
            self._buffer = self._buffer[-len(self._mark) :]
            self._more()
        self._buffer = self._buffer[at + len(self._mark) :]
        while len(self._buffer) < 2:
            self._more()
        if self._buffer.startswith(b"--"):
            raise BadRequest("The form does not have the field of the content.")

    def _headers(self) -> Message:
        while (at := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HEADERS_MAX_BYTES:
                raise BadRequest("The head of a field of the form is too large.")
            self._more()
        head, self._buffer = self._buffer[: at + 4], self._buffer[at + 2 :]
        if at == 0:
            raise BadRequest("A field of the form has no name.")
        self._buffer = self._buffer[2:]
        return BytesHeaderParser().parsebytes(head.lstrip(b"\r\n"))

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the field, some at least; none at its end."""
        limit = CHUNK_BYTES if size < 0 else min(size, CHUNK_BYTES)
        while not self._has_ended:
            at = self._buffer.find(self._mark)
            # what could be the beginning of the boundary stays until more has come
            safe = at if at >= 0 else len(self._buffer) - len(self._mark) + 1
            if safe > 0:
                taken = self._buffer[: min(limit, safe)]
                self._buffer = self._buffer[len(taken) :]
                return taken
            if at == 0:
                self._has_ended = True
            else:
                self._more()
        return b""
