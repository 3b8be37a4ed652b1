"""What the two parts of a catalog's prefix mean: a repository, and a ref, perhaps with how its changes land."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from strandline.server.refusals import BadRequest

STAGED = "+staged"
TRANSACTION = "@tx="
SAFE_OF_PATHS = "~@=,:!$&'()*;"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """What a client attaches.

    Attributes:
        ref: an expression.
        stages: whether changes are staged instead of committed.
        writer: of the open transaction that is meant; "" for the ref itself.
    """

    repository: str
    ref: str
    stages: bool = False
    writer: str = ""

    @property
    def prefix(self) -> str:
        """The two segments of addresses that mean it, as clients put them there."""
        end = STAGED if self.stages else f"{TRANSACTION}{self.writer}" if self.writer else ""
        return f"{quote(self.repository, safe='')}/{quote(self.ref + end, safe=SAFE_OF_PATHS)}"


def warehouse_of(text: str) -> Warehouse:
    """What `warehouse=` names: `repository/ref`, `repository/branch+staged` or `repository/branch@tx=writer`.

    Raises:
        BadRequest: it is none of them.
    """
    repository, slash, rest = text.strip("/").partition("/")
    if not repository or not slash or not rest or "/" in rest:
        raise BadRequest(
            f"{text[:80]!r} is not a warehouse.", next="Write repository/branch, such as nyc/main; a tag works too."
        )
    return warehouse_at(repository, rest)


def warehouse_at(repository: str, part: str) -> Warehouse:
    """What the two parts of a prefix mean."""
    ref, at, writer = part.partition(TRANSACTION)
    if at:
        if not ref or not writer:
            raise BadRequest(f"{part[:80]!r} names no transaction.", next="Write branch@tx=writer.")
        return Warehouse(repository, ref, writer=writer)
    for end in (STAGED, STAGED.replace("+", " ")):  # some clients decode a plus sign of a path as a space
        if part.endswith(end):
            return Warehouse(repository, part.removesuffix(end), stages=True)
    return Warehouse(repository, part)
