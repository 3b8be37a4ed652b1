"""The bytes of objects as answers have them, and texts of objects as headers have them."""

from __future__ import annotations

from strandline.blob import BlobNotFound
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo
from strandline.server.messages import FileBody

READ_AT_ONCE_BYTES = 256 << 10
"""Objects, or parts of them, up to this size are answered in one piece."""


def body_of(ref: Ref, info: ObjectInfo, start: int, end: int) -> bytes | FileBody:
    """The bytes of an object from a start to an end.

    Raises:
        ObjectMissing, Corrupted: they are not there, or others are.
    """
    if end - start <= READ_AT_ONCE_BYTES:
        blobs, key = ref._locate(info)
        try:
            data = blobs.get(key, start, end)
        except BlobNotFound:
            raise ref._missing(info) from None
        if len(data) != end - start:
            raise ref._damaged(info, start + len(data))
        return data
    file = ref._open_whole(info)
    if start:
        file.seek(start)
    return FileBody(file, end - start)


def header_text(text: str) -> bytes:
    """A text as a header's value; what no header can hold is left out."""
    return "".join(char for char in text if char == "\t" or (char >= " " and char != "\x7f")).encode()


def is_token(name: str) -> bool:
    """Whether a name can be part of a header's name."""
    return bool(name) and all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in name)


_INLINE = ("image/png", "image/jpeg", "image/gif", "image/webp", "text/plain")


def is_shown_inline(content_type: str | None) -> bool:
    """Whether a browser may show an object itself: a picture, or plain text."""
    return (content_type or "").partition(";")[0].strip().lower() in _INLINE
