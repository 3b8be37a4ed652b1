"""Ref expressions: how people name a commit, a branch as it stands, or what is staged on it.

main            the branch, with what is staged on it
main@           its newest commit
main$           only what is staged on it
v1.2            a tag
3f2a…           a commit id, or a unique beginning of one (4 or more digits)
main~2          two first parents back
main^2          the second parent
main@{1 day ago}, main@{2026-11-01T00:00Z}   the newest commit on first parents that is not younger
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from strandline.branch.commits import Commit, CommitLog
from strandline.branch.rules.record import BranchRecord, Deleted, RefRecord, TagRecord
from strandline.branch.stores import Stores
from strandline.clock import Microseconds, to_us
from strandline.envelope import decode
from strandline.errors import InvalidRef, RefNotFound
from strandline.ids import BranchId, CommitId

PREFIX_MIN_DIGITS = 4
MAX_STEPS = 1_000_000
_EXPRESSION = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)((?:~\d*|\^\d*|@\{[^{}]*\})*)([@$]?)", re.ASCII)
_STEP = re.compile(r"~\d*|\^\d*|@\{[^{}]*\}")
_AGO = re.compile(r"(\d+) (second|minute|hour|day|week)s? ago")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_FULL_ID = re.compile(r"[0-9a-f]{40}", re.ASCII)
"""What no branch and no tag is called: it is looked for among the commits first."""
_HEX = re.compile(rf"[0-9a-f]{{{PREFIX_MIN_DIGITS},40}}")


NO_BRANCH = BranchId("")


@dataclass(frozen=True, slots=True)
class Target:
    """What an expression means now.

    Attributes:
        kind: a commit; a branch with what is staged on it; or only what is staged.
        commit: the commit, or the head of the branch when it was resolved.
        name: of the branch, if the kind is not "commit".
        branch_id: of the branch, if the kind is not "commit".
    """

    kind: Literal["commit", "branch", "staged"]
    commit: CommitId
    name: str = ""
    branch_id: BranchId = NO_BRANCH


def read_ref(stores: Stores, name: str) -> tuple[bytes | None, RefRecord | None]:
    """The record of a name, and its bytes."""
    raw = stores.kv.get(stores.refs, name.encode())
    return raw, None if raw is None else decode(RefRecord, raw, f"ref {name!r}")


def resolve(stores: Stores, commits: CommitLog, expression: str) -> Target:
    """Find out what an expression means.

    Raises:
        InvalidRef: it cannot be parsed, or the beginning of an id is ambiguous.
        RefNotFound: nothing has this name, or there are fewer ancestors.
    """
    match = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        raise InvalidRef(
            f"{expression!r} is not a ref expression.",
            next="Use a branch, a tag or a commit id, perhaps followed by ~n, ^n, @{time}, @ or $; for example main~1.",
        )
    base, steps, ending = match.groups()
    target = _resolve_base(stores, commits, base, expression)
    if not steps and not ending:
        return target
    if ending == "$":
        if steps or target.kind != "branch":
            raise InvalidRef(f"{expression!r}: only a branch has a staged part.", next="Write it as main$.")
        return Target("staged", target.commit, target.name, target.branch_id)
    record = commits.get(target.commit)
    for step in _STEP.findall(steps):
        record = _step(stores, commits, record, step, expression)
    return Target("commit", record.id)


def _resolve_base(stores: Stores, commits: CommitLog, base: str, expression: str) -> Target:
    if _FULL_ID.fullmatch(base) and commits.has(CommitId(base)):
        return Target("commit", CommitId(base))
    _, record = read_ref(stores, base)
    if isinstance(record, BranchRecord):
        return Target("branch", record.head, base, record.branch_id)
    if isinstance(record, TagRecord):
        return Target("commit", record.commit)
    if _HEX.fullmatch(base):
        found = commits.ids_with_prefix(base, 2)
        if len(found) == 1:
            return Target("commit", found[0])
        if found:
            raise InvalidRef(f"{base!r} is the beginning of more than one commit id.", next="Give more digits.")
    if isinstance(record, Deleted):
        raise RefNotFound(
            f"The {record.was} {base!r} was deleted.", next="`strandline branch list REPOSITORY` shows what is left."
        )
    of = "" if base == expression else f" (in {expression!r})"
    raise RefNotFound(
        f"There is no branch, tag or commit {base!r}{of}.",
        next="`strandline branch list REPOSITORY` and `strandline tag list REPOSITORY` show what there is.",
    )


def _step(stores: Stores, commits: CommitLog, record: Commit, step: str, expression: str) -> Commit:
    if step.startswith("@{"):
        return _at_time(commits, record, parse_time(step[2:-1], stores.clock.now_us()), expression)
    number = int(step[1:] or 1)
    if step[0] == "^":
        if number == 0:
            return record
        if number > len(record.parents):
            raise _too_far(expression, f"commit {record.id[:12]} has {len(record.parents)} parents")
        return commits.get(record.parents[number - 1])
    for _ in range(number):
        if not record.parents:
            raise _too_far(expression, f"commit {record.id[:12]} is the first one")
        record = commits.get(record.parents[0])
    return record


def _at_time(commits: CommitLog, record: Commit, moment: Microseconds, expression: str) -> Commit:
    for _ in range(MAX_STEPS):
        if record.date_us <= moment:
            return record
        if not record.parents:
            break
        record = commits.get(record.parents[0])
    raise _too_far(expression, "every commit is younger than that")


def _too_far(expression: str, why: str) -> RefNotFound:
    return RefNotFound(
        f"{expression!r} does not exist: {why}.", next="`strandline log REPOSITORY/BRANCH` shows the history."
    )


def parse_time(text: str, now: Microseconds) -> Microseconds:
    """`3 days ago`, or an ISO date and time; without an offset it is UTC.

    Raises:
        InvalidRef: it is neither.
    """
    if ago := _AGO.fullmatch(text.strip()):
        return now - int(ago[1]) * _SECONDS[ago[2]] * 1_000_000
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRef(f"{text!r} is not a time.", next="Write 1 day ago, 2026-11-01 or 2026-11-01T12:00Z.") from None
    return to_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
