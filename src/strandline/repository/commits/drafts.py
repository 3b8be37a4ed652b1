"""What a user says about a commit, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from strandline.branch.at import BranchAt
from strandline.branch.commit import commit
from strandline.branch.commits import MESSAGE_MAX_CHARS, Draft
from strandline.clock import to_us
from strandline.core.repository_core import RepositoryCore
from strandline.core.texts import check_metadata
from strandline.errors import NothingToCommit, UsageError
from strandline.ids import check_committer


def make_draft(
    core: RepositoryCore,
    message: str,
    metadata: Mapping[str, str] | None = None,
    committer: str | None = None,
    date: datetime | None = None,
    *,
    allow_empty: bool = False,
    allow_empty_message: bool = False,
) -> Draft:
    """A draft of now, by the lake's committer, if nothing else is said.

    Raises:
        UsageError: the message is empty or too long, or the metadata is not a small map of strings.
    """
    is_missing = not isinstance(message, str) or not (message.strip() or allow_empty_message)
    if is_missing or len(message) > MESSAGE_MAX_CHARS:
        raise UsageError(
            f"A commit needs a message of 1 to {MESSAGE_MAX_CHARS:,} characters.",
            next="Say what the commit changes and why.",
        )
    check_metadata(metadata)
    stores = core.stores
    moment = stores.clock.now_us() if date is None else to_us(date)
    by = check_committer(committer) if committer else stores.committer
    return Draft(message, by, dict(metadata or {}), moment, allow_empty)


def commit_everything(core: RepositoryCore, at: BranchAt, message: str) -> None:
    """Commit what is staged; nothing is fine as well."""
    with suppress(NothingToCommit):
        commit(at, make_draft(core, message))
        core.committed()
