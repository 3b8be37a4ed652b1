"""What the two parts of a catalog's prefix mean: a repository, and a ref, perhaps with how its changes land."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from strandline.server.refusals import BadRequest

STAGED = "+staged"
TRANSACTION = "@tx="
NUMBER = "@id="
"""After the name of a writer, which cannot have this in it: the one of its transactions that is meant."""
_NUMBER = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
SAFE_OF_PATHS = "~@=,:!$&'()*;"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """What a client attaches.

    Attributes:
        ref: an expression.
        stages: whether changes are staged instead of committed.
        writer: of the open transaction that is meant; "" for the ref itself.
        number: that transaction's id; 0 for the writer's newest.
    """

    repository: str
    ref: str
    stages: bool = False
    writer: str = ""
    number: int = 0

    @property
    def prefix(self) -> str:
        """The two segments of addresses that mean it, as clients put them there."""
        end = STAGED if self.stages else transaction_part(self.writer, self.number) if self.writer else ""
        return f"{quote(self.repository, safe='')}/{quote(self.ref + end, safe=SAFE_OF_PATHS)}"


def transaction_part(writer: str, number: int = 0) -> str:
    """What follows the branch in the name of a transaction's warehouse."""
    return f"{TRANSACTION}{writer}{NUMBER}{number}" if number else f"{TRANSACTION}{writer}"


def warehouse_of(text: str) -> Warehouse:
    """What `warehouse=` names: `repository/ref`, `repository/branch+staged` or `repository/branch@tx=writer`.

    Raises:
        BadRequest: it is none of them.
    """
    repository, slash, rest = text.strip("/").partition("/")
    if not repository or not slash or not rest or "/" in rest.partition(TRANSACTION)[0]:
        raise BadRequest(
            f"{text[:80]!r} is not a warehouse.", next="Write repository/branch, such as nyc/main; a tag works too."
        )
    return warehouse_at(repository, rest)


def warehouse_at(repository: str, part: str) -> Warehouse:
    """What the two parts of a prefix mean."""
    ref, at, writer = part.partition(TRANSACTION)
    if at:
        writer, said, number = writer.partition(NUMBER)
        if not ref or not writer or (said and not _NUMBER.fullmatch(number)):
            raise BadRequest(f"{part[:80]!r} names no transaction.", next="Write branch@tx=writer.")
        return Warehouse(repository, ref, writer=writer, number=int(number or 0))
    for end in (STAGED, STAGED.replace("+", " ")):  # some clients decode a plus sign of a path as a space
        if part.endswith(end):
            return Warehouse(repository, part.removesuffix(end), stages=True)
    return Warehouse(repository, part)
