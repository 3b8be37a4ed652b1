"""A few objects in a commit of their own: what a caller read is compared and replaced, without a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from blake3 import blake3

from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit, Draft
from strandline.branch.one_shot import OneShot, Unchanged, publish
from strandline.branch.rules.record import ONE_SHOT_FORMAT
from strandline.branch.rules.writers import UNNAMED, check_writer_name
from strandline.core.repository_core import RepositoryCore
from strandline.core.texts import check_text
from strandline.errors import UsageError
from strandline.ids import check_path
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry

NOBODY = f"{UNNAMED}in one shot"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a publication is known by.

    Attributes:
        writer: the name of the publisher.
        token: by which a repetition is recognised.
        digest: of what is asked for under the token; "" for that of the changes.
    """

    writer: str | None = None
    token: str = ""
    digest: str = ""


def publish_entries(
    core: RepositoryCore,
    at: BranchAt,
    changes: Mapping[str, Entry | None],
    expected: Mapping[str, ObjectInfo | None],
    draft: Draft,
    asked: Asked,
    unchanged: Unchanged | None = None,
) -> Commit:
    """Publish entries whose bytes the caller has just written; see `Branch.publish`.

    Args:
        unchanged: folders in which nothing may have changed since a commit.
    """
    check_asked(core, changes, expected, asked)
    writer, token = NOBODY if asked.writer is None else asked.writer, asked.token
    wanted = {path: None if info is None else entry_of(info) for path, info in expected.items()}
    digest = asked.digest or (digest_of(changes) if token else "")
    what = OneShot(writer, changes, wanted, draft, token, digest, unchanged)
    made = publish(at, what)
    core.committed()
    return made


def check_asked(
    core: RepositoryCore, changes: Mapping[str, object], expected: Mapping[str, object], asked: Asked
) -> None:
    """Raise `UsageError` unless there is a change, each one's path says what it replaces, and the names are good."""
    if asked.writer is not None:
        check_writer_name(asked.writer)
    _check_token(core, asked.token)
    for path in (*changes, *expected):
        check_path(path)
    if not changes:
        raise UsageError("There is nothing to publish.", next="Give a path and what it is to hold.")
    if unsaid := sorted(set(changes) - set(expected)):
        raise UsageError(
            f"It is not said what {unsaid[0]!r} holds now.",
            next="Name each path that changes in expected, with what it held, or None for nothing.",
        )


def _check_token(core: RepositoryCore, token: str) -> None:
    check_text(token, "A token")
    if token and core.max_format < ONE_SHOT_FORMAT:
        raise UsageError(
            f"A token needs format {ONE_SHOT_FORMAT} of records, and this lake's settings allow up to "
            f"{core.max_format}.",
            next="Raise max_format, which older versions of strandline do not read, or leave the token out.",
        )


def entry_of(info: ObjectInfo) -> Entry:
    """The entry that a description of an object was made from."""
    text = info.user_metadata
    return Entry(
        info.physical_address, info.size, info.checksum, info.modified_at_us, info.content_type, text, info.etag
    )


def digest_of(changes: Mapping[str, Entry | None]) -> str:
    """A hash of what is asked for. Bytes that were stored again for a repetition are the same, and a job that died
    after it published reads its own output when it runs again: so neither addresses nor what was expected count.
    """
    asked = sorted((path, None if entry is None else entry.identity) for path, entry in changes.items())
    return blake3(msgspec.msgpack.encode(asked)).hexdigest(length=16)
