"""Tables whose creation was staged: nothing is stored yet, and clients write files for them already.

The key that their files lie below was drawn here. A record keeps for whom, so that no client takes a key of another
table, or of another client, and with it the right to its files.
"""

from __future__ import annotations

import msgspec

from strandline.branch.stores import Stores
from strandline.clock import Microseconds
from strandline.envelope import decode, encode
from strandline.ids import keys_below

PREFIX = b"staged-table/"
KEPT_US = 2 * 86_400 * 1_000_000
"""A client makes the table when its statement ends. After that its files are placed anew, and those lie where they are.
"""


class StagedTable(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a key was drawn.

    Attributes:
        part: of the branch or transaction.
        table: its levels.
        by: the client, or "" of a catalog in this process.
    """

    part: str
    table: tuple[str, ...]
    by: str = ""
    at_us: Microseconds = 0


def note(stores: Stores, key: str, staged: StagedTable) -> None:
    """Write down that a key was drawn."""
    stores.kv.set(stores.records, PREFIX + key.encode(), encode(staged))


def find(stores: Stores, key: str) -> StagedTable | None:
    """For whom a key was drawn; None if nobody staged a table with it lately."""
    raw = stores.kv.get(stores.records, PREFIX + key.encode())
    found: StagedTable | None = None if raw is None else decode(StagedTable, raw, "a staged table")
    return found


def forget(stores: Stores, key: str) -> None:
    """The table was made: its key is its own from now on."""
    stores.kv.delete(stores.records, PREFIX + key.encode())


def sweep(stores: Stores, now_us: Microseconds) -> None:
    """Forget tables that were staged long ago and never made."""
    for page in stores.kv.scan_pages(stores.records, *keys_below(PREFIX)):
        held = zip(page.keys, page.values, strict=True)
        old = [key for key, raw in held if now_us - decode(StagedTable, raw, "a staged table").at_us > KEPT_US]
        stores.kv.delete_many(stores.records, old)
