"""The checksum of an object that is completed of parts, compared with what its client says.

Source: "Checking object integrity" of the Amazon S3 documentation: one of a full object is that of its bytes, a
composite one is that of its parts' checksums, with their number behind a hyphen.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import BinaryIO

from strandline.server.messages import Request
from strandline.server.refusals import BadRequest
from strandline.server.s3.bodies import ALGORITHMS, READ_BYTES, decoded, expected

COMPOSITE, FULL = "COMPOSITE", "FULL_OBJECT"


class WholeChecksum:
    """What a completion says of its object: one checksum of all its bytes, or of those of its parts."""

    def __init__(self, name: str, wanted: bytes, parts: int | None) -> None:
        self._name = name
        self._wanted = wanted
        self._parts = parts

    def check(self, file: BinaryIO, sizes: Sequence[int], alive: Callable[[], None]) -> None:
        """Read an object and compare.

        Args:
            sizes: of its parts, in bytes.
            alive: called now and then.

        Raises:
            BadRequest: it is another object.
        """
        make = ALGORITHMS[self._name]
        whole = make()
        for size in sizes:
            digest = make() if self._parts is not None else whole
            left = size
            while left and (data := file.read(min(left, READ_BYTES))):
                digest.update(data)
                left -= len(data)
                alive()
            if digest is not whole:
                whole.update(digest.digest())
        is_right = hmac.compare_digest(whole.digest(), self._wanted)
        if not is_right or self._parts not in (None, len(sizes)):
            raise BadRequest(f"The parts give another {self._name} checksum.", s3_code="BadDigest")


def whole_checksum(request: Request) -> WholeChecksum | None:
    """What a completion says of its object; None if nothing.

    Raises:
        BadRequest: it says several things, or malformed ones.
    """
    kind = request.header(b"x-amz-checksum-type").upper()
    if kind not in ("", COMPOSITE, FULL):
        raise BadRequest("x-amz-checksum-type is COMPOSITE or FULL_OBJECT.", s3_code="InvalidRequest")
    found = expected(request)
    if not found:
        return None
    ((name, text),) = found.items()
    value, hyphen, count = text.partition("-")
    if (hyphen and (kind == FULL or not (count.isascii() and count.isdigit() and len(count) < 6))) or (
        kind == COMPOSITE and not hyphen
    ):
        raise BadRequest("A checksum of the request is malformed.", s3_code="InvalidRequest")
    wanted = decoded(value, len(ALGORITHMS[name]().digest()), "InvalidRequest")
    return WholeChecksum(name, wanted, int(count) if hyphen else None)
