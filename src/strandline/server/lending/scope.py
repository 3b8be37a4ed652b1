"""Which requests to the object store a client may make for one table. Pure.

A client says what it would send; what is not plainly a read below the table's prefix, or a write below the part of it
that is this branch's, is refused. Source: the operations of the Amazon S3 API Reference, and the remote signing of
Iceberg's REST catalog.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from strandline.server.refusals import BadRequest, Forbidden

URI_MAX_CHARS = 4_096
_PLAIN = "-_.~"
_AWS_HOST = re.compile(r"(?:(?P<bucket>[a-z0-9.-]+)\.)?s3(?:[.-](?:dualstack\.)?[a-z0-9-]+)?\.amazonaws\.com(?:\.cn)?")
_LISTING = frozenset(
    "list-type prefix delimiter continuation-token start-after max-keys encoding-type fetch-owner".split()  # noqa: SIM905
)
_UPLOAD = re.compile(r"[\w.~+/=-]{1,1024}", re.ASCII)
_PART = re.compile(r"[0-9]{1,5}", re.ASCII)
_HARMLESS = frozenset({"x-id"})
"""Clients of Amazon's say here once more what they want."""
_SHAPES: tuple[tuple[str, frozenset[str], bool], ...] = (
    ("GET", frozenset(), False),
    ("HEAD", frozenset(), False),
    ("PUT", frozenset(), True),
    ("PUT", frozenset({"partNumber", "uploadId"}), True),
    ("POST", frozenset({"uploads"}), True),
    ("POST", frozenset({"uploadId"}), True),
    ("DELETE", frozenset({"uploadId"}), True),
)
"""Method, names of the query, and whether it writes: objects read and written, whole or in parts."""
_AMZ_HEADERS = re.compile(
    r"x-amz-(?:content-sha256|date|security-token|te|decoded-content-length|trailer|sdk-checksum-algorithm"
    r"|checksum-(?:[a-z0-9]+|mode|algorithm|type)|mp-object-size)"
)
"""Headers of S3 that change nothing but how bytes travel: no copies, no rights, no other kinds of storage."""
_CHUNKED = ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a repository's files lie in an object store.

    Attributes:
        root: what all keys begin with; "" or something that ends with a slash.
        host: of the store, with its port; "" for Amazon's own.
    """

    bucket: str
    root: str
    host: str
    region: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What a client may reach of a table.

    Attributes:
        reads: below which keys of the repository it reads.
        writes: below which it writes; "" for none.
        is_referred: whether the table refers to a file that lies elsewhere in the repository.
    """

    place: StorePlace
    reads: str
    writes: str
    is_referred: Callable[[str], bool]


def judge(scope: Scope, method: str, uri: str, headers: Mapping[str, list[str]]) -> None:
    """Raise unless a request stays within the scope.

    Raises:
        BadRequest: the address is malformed.
        Forbidden: it is more than this client may do.
    """
    if len(uri) > URI_MAX_CHARS or not uri.isascii() or not uri.isprintable():
        raise BadRequest("The uri is malformed.")
    bucket, path, query = _taken_apart(scope.place, uri)
    if bucket != scope.place.bucket:
        raise Forbidden(f"The bucket {bucket[:80]!r} is not this table's.")
    _judge_headers(headers)
    if method == "GET" and not path and "list-type" in query:
        _judge_listing(scope, query)
        return
    names = frozenset(query) - _HARMLESS
    writes = next((writes for verb, shape, writes in _SHAPES if (verb, shape) == (method, names)), None)
    if writes is None:
        raise Forbidden(f"{method[:10]} with {', '.join(sorted(names))[:80] or 'no query'} is not signed.")
    _judge_upload(query)
    key = _key(scope.place, path)
    if writes:
        if not scope.writes or not key.startswith(scope.writes):
            raise Forbidden(f"{key[:200]!r} is not below what this table's writers write.")
    elif not key.startswith(scope.reads) and not scope.is_referred(key):
        raise Forbidden(f"{key[:200]!r} is not a file of this table.")


def normal(uri: str) -> str:
    """An address that was judged, spelled as signatures spell it: all is encoded that may be, and nothing twice."""
    parts = urlsplit(uri)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    path = quote(unquote(parts.path, errors="strict"), safe="/-_.~")
    text = "&".join(f"{quote(name, safe=_PLAIN)}={quote(value, safe=_PLAIN)}" for name, value in query)
    return f"{parts.scheme}://{parts.netloc}{path}{'?' if text else ''}{text}"


def _taken_apart(place: StorePlace, uri: str) -> tuple[str, str, dict[str, str]]:
    """The bucket, the path behind it, still encoded, and the query of an address."""
    try:
        parts = urlsplit(uri)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise BadRequest("The uri is malformed.") from None
    query = dict(pairs)
    if parts.scheme not in ("http", "https") or parts.fragment or "@" in parts.netloc or len(query) < len(pairs):
        raise BadRequest("The uri is malformed.")
    host = parts.netloc.lower()
    path = parts.path.removeprefix("/")
    if place.host:
        if host == place.host:
            bucket, _, path = path.partition("/")
            return unquote(bucket), path, query
        # never a bucket in the host: a store that does not know it takes the first part of the path for the bucket
    elif found := _AWS_HOST.fullmatch(host):
        if found["bucket"]:
            return found["bucket"], path, query
        bucket, _, path = path.partition("/")
        return unquote(bucket), path, query
    raise Forbidden(f"{host[:80]!r} is not this repository's object store.")


def _key(place: StorePlace, path: str) -> str:
    """The key in the storage namespace that a path means to the store, which decodes it once."""
    try:
        full = unquote(path, errors="strict") if "%" in path else path
    except UnicodeDecodeError:
        raise BadRequest("The uri is malformed.") from None
    if any(part in ("", ".", "..") for part in full.split("/")) or not full.isprintable():
        raise Forbidden(f"{full[:200]!r} is not a key of this repository.")
    if not full.startswith(place.root):
        raise Forbidden(f"{full[:200]!r} lies outside of this repository.")
    return full[len(place.root) :]


def _judge_upload(query: Mapping[str, str]) -> None:
    """An upload that has no name is none: some stores take its end for the deletion of the object."""
    upload, part = query.get("uploadId"), query.get("partNumber")
    if upload is not None and (not _UPLOAD.fullmatch(upload) or {".", ".."} & set(upload.split("/"))):
        raise Forbidden(f"{upload[:80]!r} is not the id of an upload.")
    if part is not None and not _PART.fullmatch(part):
        raise Forbidden(f"{part[:80]!r} is not the number of a part.")


def _judge_listing(scope: Scope, query: Mapping[str, str]) -> None:
    if set(query) - _LISTING - _HARMLESS:
        raise Forbidden("Such a listing is not signed.")
    prefix = query.get("prefix", "")
    if not prefix.startswith(scope.place.root + scope.reads) or {".", ".."} & set(prefix.split("/")):
        raise Forbidden(f"The prefix {prefix[:200]!r} is not this table's.")


def _judge_headers(headers: Mapping[str, list[str]]) -> None:
    for name, values in headers.items():
        lower = name.lower()
        if lower.startswith("x-amz-") and not _AMZ_HEADERS.fullmatch(lower):
            raise Forbidden(f"The header {name[:80]!r} is not signed.")
        if lower == "x-amz-content-sha256" and any(value in _CHUNKED for value in values):
            raise Forbidden("Bodies whose chunks carry signatures are not signed.")
        if not name.isascii() or not all(value.isascii() and value.isprintable() for value in (name, *values)):
            raise BadRequest("A header is malformed.")
