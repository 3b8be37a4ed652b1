"""Which bucket and which key a request is about."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from strandline.server.messages import Request
from strandline.server.refusals import BadRequest

_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{2,62}", re.ASCII)


def bucket_and_key(request: Request, domain: str) -> tuple[str, str]:
    """The bucket, "" for none, and the key, "" for the bucket itself.

    Args:
        domain: a host below it names a bucket; "" for none.

    Raises:
        BadRequest: the key is not UTF-8.
    """
    # only the first slash is the path's own: a key may begin with one
    raw = request.raw_path[1:]
    bucket = bucket_of_host(request.header(b"host"), domain)
    if not bucket:
        first, _, raw = raw.partition(b"/")
        bucket = _text(first)
    return bucket, _text(raw)


def bucket_of_host(host: str, domain: str) -> str:
    """The bucket that a host names below the domain of buckets, or ""."""
    if not domain:
        return ""
    name = host.partition(":")[0].lower()
    label, dot, rest = name.partition(".")
    return label if dot and rest == domain.lower() and _LABEL.fullmatch(label) else ""


def _text(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadRequest("The key is not UTF-8.", s3_code="InvalidURI") from None


def ref_and_path(key: str, flat: str) -> tuple[str, str]:
    """The ref and the path of a key.

    Args:
        flat: the branch that all keys lie on, or "".
    """
    if flat:
        return flat, key
    ref, _, path = key.partition("/")
    return ref, path
