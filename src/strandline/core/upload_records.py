"""Records of uploads in parts, whose bytes nothing refers to yet: a server writes them, and a collection reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from strandline.branch.stores import Stores
from strandline.clock import Microseconds
from strandline.envelope import decode
from strandline.ids import keys_below

UPLOADS = b"uploads"
"""The partition of uploads, by repository and id."""
PARTS = b"upload-parts"
"""Of their parts, and of the slots that are taken."""
LASTS_US = 7 * 86_400 * 1_000_000
KEPT_US = 8 * 86_400 * 1_000_000
"""The bytes of an older upload are garbage, even if no server is there to sweep its record."""

State = Literal["open", "completing", "staging", "done", "aborted"]
"""completing: its parts are being joined. staging: the object of `object_place` may be on the branch."""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that is under way, or was completed lately.

    Attributes:
        place: the physical key of the file with the grid.
        grid: how long a part of the grid is; 0 as long as no part has come.
        user: that began it.
        etag: of the object, from the state "staging" on.
        object_place: the physical key of the object, from then on.
        is_uncertain: an attempt to stage the object ended without an answer: its bytes may be referred to, and it is
            never open again.
        moved_at: when somebody last worked on its completion: one that died is taken over after a while.
        completed_at: when it was done.
    """

    id: str
    branch: str
    branch_id: str
    path: str
    place: str
    user: str
    begun_at: Microseconds
    content_type: str | None = None
    user_metadata: str | None = None
    grid: int = 0
    state: State = "open"
    etag: str = ""
    object_place: str = ""
    is_uncertain: bool = False
    moved_at: Microseconds = 0
    completed_at: Microseconds = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part whose bytes are there.

    Attributes:
        place: the physical key of a file of its own, or "" in the grid.
    """

    number: int
    size: int
    md5: str
    written_at: Microseconds
    place: str = ""


def upload_places(stores: Stores) -> Iterator[str]:
    """The physical keys that uploads of a repository need."""
    oldest_us = stores.clock.now_us() - KEPT_US
    start, end = keys_below(stores.repository_id.encode() + b"/")
    for _, raw in stores.kv.scan(UPLOADS, start, end):
        upload: Upload = decode(Upload, raw, "an upload")
        if upload.begun_at > oldest_us:
            yield from filter(None, (upload.place, upload.object_place))
    for key, raw in stores.kv.scan(PARTS, start, end):
        if b"/part/" in key:
            part: Part = decode(Part, raw, "a part of an upload")
            if part.place and part.written_at > oldest_us:
                yield part.place
