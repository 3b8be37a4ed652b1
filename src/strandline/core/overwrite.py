"""What else goes when entries are written: the words in which a table says it, and a branch or transaction does it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from strandline.tree.rows import Entry

IfChanged = Literal["fail", "replace"]
"""What a transaction's overwrite does if others have changed its range since the transaction was begun."""


Keep = Callable[[str, Entry], bool]
"""Which objects below a prefix an overwrite leaves alone, by path and entry; it may raise `Conflict`."""


def keep_nothing(_path: str, _entry: Entry) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """What else goes when entries are written.

    Attributes:
        below: all paths below this prefix that are not among the entries and not kept.
        keep: which of the objects present there stay; it may raise.
        present: paths below the prefix that must be there at that instant.
        if_changed: of a transaction only.
    """

    below: str
    keep: Keep = keep_nothing
    present: Collection[str] = ()
    if_changed: IfChanged = "fail"
