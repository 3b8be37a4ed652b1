"""Documents of S3: written as text, read with a parser that follows no entities."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from strandline.server.etags import LAST_DAY_S
from strandline.server.messages import Response
from strandline.server.refusals import BadRequest

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
XML = (b"Content-Type", b"application/xml")
DOCUMENT_MAX_BYTES = 1 << 20
_KEPT = {"\r": "&#13;"}
"""Read as it is, a carriage return would be taken for the end of a line, and a key for another one."""
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def element(name: str, *content: str) -> str:
    """An element around what is marked up already."""
    return f"<{name}>{''.join(content)}</{name}>"


def text(name: str, value: object) -> str:
    """An element around a text.

    Raises:
        BadRequest: the text holds what no document of XML can.
    """
    shown = str(value)
    if _FORBIDDEN.search(shown):
        raise BadRequest("A name holds characters that XML cannot hold.", next="Ask for encoding-type=url.")
    return f"<{name}>{escape(shown, _KEPT)}</{name}>"


def document(name: str, *content: str) -> bytes:
    """A whole document."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{NAMESPACE}">{"".join(content)}</{name}>'.encode()


def answer(body: bytes, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> Response:
    """An answer with a document."""
    return Response(status, body, (XML, *headers))


def moment(us: int) -> str:
    """A time as S3 writes it."""
    return (
        datetime.fromtimestamp(min(max(us // 1_000_000, 0), LAST_DAY_S), UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        + f"{us // 1000 % 1000:03d}Z"
    )


def encoder(kind: str) -> Any:
    """How names are written: as they are, or percent-encoded; raises `BadRequest`."""
    if kind == "url":
        return lambda name: quote(name, safe="/-_.~*")
    if kind:
        raise BadRequest(f"The encoding {kind[:40]!r} is not known.", s3_code="InvalidArgument")
    return lambda name: name


def parse(body: bytes, root: str) -> Any:
    """The root of a document that a client sent, its names without their namespace.

    Raises:
        BadRequest: it is no such document.
    """
    from defusedxml import DefusedXmlException  # noqa: PLC0415 - most requests bring no document
    from defusedxml.ElementTree import ParseError, fromstring  # noqa: PLC0415 - most requests bring no document

    try:
        found = fromstring(body)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise malformed() from None
    for one in found.iter():
        one.tag = str(one.tag).rpartition("}")[2]
    if found.tag != root:
        raise malformed()
    return found


def malformed() -> BadRequest:
    """The refusal of a document that is not what the operation takes."""
    return BadRequest("The document is not what the operation takes.", s3_code="MalformedXML")
