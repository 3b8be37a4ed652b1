"""Whether policies allow an action: a pure function of statements, action, resource and caller.

The rules are those of lakeFS's policies: nothing is allowed unless a statement allows it, and a statement that denies
wins over all that allow.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import msgspec

from strandline.errors import UsageError
from strandline.iam.records import Condition, Statement

ALL_RESOURCES = "*"
STATEMENTS_MAX = 100
PATTERN_MAX_CHARS = 2_048
ARN_PARTS = 6
RESOURCES_MAX = 100
SOURCE_IP, BRANCH = "SourceIp", "fs:branch"
_FIELDS = (SOURCE_IP, BRANCH)
"""What conditions may be on: lakeFS's address of the caller, and a branch, which is ours."""
_ACTION = re.compile(r"\*|(?:fs|auth|ci|branches|retention|pr|catalog|strandline):[A-Za-z*?]+")
_ACTIONS_OF_SERVICE = re.compile(r"[a-z]+:\*")


class Verdict(Enum):
    """What policies say of an action. Neutral is a refusal as well, which another statement could overrule."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Need:
    """An action on a resource that a call has to be allowed.

    Attributes:
        resource: an ARN; in an operation's row with fields in braces, which its arguments fill.
        is_prefix: the action is on everything whose ARN begins with the resource, all of it.
    """

    action: str
    resource: str
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Both:
    """All of these needs."""

    needs: tuple[Needs, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """At least one of these needs, and none that is denied."""

    needs: tuple[Needs, ...]


Needs = Need | Both | Either


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        user: its name.
        source_ip: the address that the request came from, or "".
        branch: the branch, or the ref as the request names it, that the request is about; "" if it is about none.
    """

    user: str
    source_ip: str = ""
    branch: str = ""


@dataclass(frozen=True, slots=True)
class _Resource:
    """A pattern of a resource.

    Attributes:
        fixed: its characters before the first star; None is a question mark.
    """

    pattern: re.Pattern[str]
    fixed: tuple[str | None, ...]
    has_star: bool
    ends_with_star: bool

    def covers(self, prefix: str) -> bool:
        """Whether all texts that begin with a prefix surely match: what its last star took can be any longer."""
        return self.ends_with_star and self.pattern.fullmatch(prefix) is not None

    def touches(self, prefix: str) -> bool:
        """Whether some text that begins with a prefix matches: the first star takes what is left of the prefix."""
        is_alike = all(mine in (None, char) for mine, char in zip(self.fixed, prefix, strict=False))
        return is_alike and (self.has_star or len(self.fixed) >= len(prefix))


@dataclass(frozen=True, slots=True)
class _Compiled:
    allows: bool
    actions: re.Pattern[str]
    resources: re.Pattern[str]
    each: tuple[_Resource, ...]
    condition: Condition
    is_everywhere: bool

    def is_on(self, need: Need) -> bool:
        """Whether the statement is on a resource. On a prefix a denial is if any of it is, an allowance if all is."""
        if not need.is_prefix:
            return self.resources.fullmatch(need.resource) is not None
        if self.allows:
            return any(one.covers(need.resource) for one in self.each)
        return any(one.touches(need.resource) for one in self.each)


class Rules:
    """The statements that hold for one user, ready to be asked.

    Args:
        statements: of all policies that the user has, by itself and through its groups.
    """

    __slots__ = ("_compiled", "user")

    def __init__(self, user: str, statements: Sequence[Statement]) -> None:
        self.user = user
        self._compiled = [_compile(one, user) for one in statements]

    def judge(self, needs: Needs, caller: Caller) -> Verdict:
        """What the statements say of needs whose resources have no fields left."""
        if isinstance(needs, Need):
            return self._one(needs, caller)
        found = [self.judge(need, caller) for need in needs.needs]
        if Verdict.DENIED in found:
            return Verdict.DENIED
        is_enough = all if isinstance(needs, Both) else any
        return Verdict.ALLOWED if is_enough(one is Verdict.ALLOWED for one in found) else Verdict.NEUTRAL

    def everywhere(self, action: str) -> Verdict | None:
        """What the statements say of an action on any resource and from any address; None if that depends."""
        verdict = Verdict.NEUTRAL
        for one in self._compiled:
            if not one.actions.fullmatch(action):
                continue
            if not one.is_everywhere:
                return None
            if not one.allows:
                return Verdict.DENIED
            verdict = Verdict.ALLOWED
        return verdict

    def _one(self, need: Need, caller: Caller) -> Verdict:
        verdict = Verdict.NEUTRAL
        for one in self._compiled:
            if not one.actions.fullmatch(need.action) or not one.is_on(need):
                continue
            if one.condition and not _holds(one.condition, caller, unsure=not one.allows):
                continue
            if not one.allows:
                return Verdict.DENIED
            verdict = Verdict.ALLOWED
        return verdict


def _compile(statement: Statement, user: str) -> _Compiled:
    given = resources_of(statement.resource)
    resources = [_resource_regex(text, user) for text in given]
    return _Compiled(
        statement.effect == "allow",
        re.compile("|".join(map(_glob, statement.action)), re.DOTALL),
        re.compile("|".join(resources), re.DOTALL),
        tuple(_resource(text, user) for text in given),
        statement.condition,
        ".*" in resources and not statement.condition,
    )


def resources_of(text: str) -> list[str]:
    """The patterns of a statement's resource: one, or those of a JSON array."""
    if not text.startswith("["):
        return [text]
    try:
        return msgspec.json.decode(text.encode(), type=list[str])
    except msgspec.MsgspecError:
        raise UsageError(
            f"{text[:80]!r} is not a JSON array of resources.", next="Write one pattern, or mend it."
        ) from None


def _glob(pattern: str, user: str = "") -> str:
    """A regular expression for a pattern with `*`, `?` and `${user}`; the name of a user is a text, whatever it holds.

    What lies between two stars may match at its first place at once, and is never tried at another one: else a pattern
    of a few stars would keep the event loop for minutes.
    """
    fixed = [""]
    for number, part in enumerate(pattern.split("${user}")):
        if number:
            fixed[-1] += re.escape(user)
        for char in part:
            if char == "*":
                fixed.append("")
            else:
                fixed[-1] += "." if char == "?" else re.escape(char)
    first, *rest = fixed
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{one})" for one in middle if one) + ".*" + last


def _resource_regex(pattern: str, user: str) -> str:
    if pattern == ALL_RESOURCES:
        return ".*"
    head, last = _parts_of(pattern)
    return re.escape(head) + _glob(last, user)


def _parts_of(pattern: str) -> tuple[str, str]:
    """An ARN up to its last colon, and its last part: only that has wildcards."""
    parts = pattern.split(":")
    return ":".join(parts[: ARN_PARTS - 1]) + ":", ":".join(parts[ARN_PARTS - 1 :])


def _resource(pattern: str, user: str) -> _Resource:
    head, last = ("", pattern) if pattern == ALL_RESOURCES else _parts_of(pattern)
    before, star, _ = last.partition("*")
    fixed: list[str | None] = list(head)
    for number, part in enumerate(before.split("${user}")):
        fixed += [*(user if number else ""), *(None if char == "?" else char for char in part)]
    whole = re.compile(_resource_regex(pattern, user), re.DOTALL)
    return _Resource(whole, tuple(fixed), bool(star), last.endswith("*"))


def _holds(condition: Condition, caller: Caller, *, unsure: bool) -> bool:
    """Whether all of a condition holds.

    Args:
        unsure: what it counts as if it cannot be judged: a statement that denies then denies.
    """
    for operator, fields in condition.items():
        test = _TESTS.get(operator)
        for field, wanted in fields.items():
            if test is None or field not in _FIELDS:
                return unsure
            try:
                found = test(caller.source_ip if field == SOURCE_IP else caller.branch, wanted)
            except ValueError:
                return unsure
            if not found:
                return False
    return True


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; one of IPv4 as it is, though a socket of both kinds shows it as one of IPv6.

    Raises:
        ValueError: it is none.
    """
    found = ipaddress.ip_address(text)
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


@lru_cache(256)
def _networks(wanted: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in wanted)


def _in_networks(address: str, wanted: tuple[str, ...]) -> bool:
    found = plain_address(address)
    return any(found.version == network.version and found in network for network in _networks(wanted))


def _is_like(text: str, wanted: tuple[str, ...]) -> bool:
    return any(re.fullmatch(_glob(pattern), text, re.DOTALL) for pattern in wanted)


_TESTS: dict[str, Callable[[str, tuple[str, ...]], bool]] = {
    "IpAddress": _in_networks,
    "NotIpAddress": lambda address, wanted: not _in_networks(address, wanted),
    "StringLike": _is_like,
    "StringNotLike": lambda text, wanted: not _is_like(text, wanted),
}


def check_statements(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Refuse statements that could never match what they were written for.

    Raises:
        UsageError: an action, a resource or a condition that the evaluation does not know.
    """
    if not 1 <= len(statements) <= STATEMENTS_MAX:
        raise UsageError(f"A policy has 1 to {STATEMENTS_MAX} statements.", next="Add one, or make several policies.")
    for one in statements:
        if not one.action:
            raise UsageError("A statement names no action.", next="Name one, such as fs:ReadObject.")
        if len(one.action) > RESOURCES_MAX or len(resources_of(one.resource)) > RESOURCES_MAX:
            raise UsageError(
                f"A statement has at most {RESOURCES_MAX} actions and {RESOURCES_MAX} resources.",
                next="Use wildcards, or several statements.",
            )
        for action in one.action:
            if len(action) > PATTERN_MAX_CHARS or not _ACTION.fullmatch(action):
                raise UsageError(
                    f"{action[:80]!r} is not an action.", next="Write one as fs:ReadObject, fs:Read* or *."
                )
        for resource in resources_of(one.resource):
            is_arn = resource.startswith("arn:") and resource.count(":") >= ARN_PARTS - 1
            if resource != ALL_RESOURCES and not (is_arn and len(resource) <= PATTERN_MAX_CHARS):
                raise UsageError(
                    f"{resource[:80]!r} is not a resource.",
                    next="Write * or an ARN such as arn:lakefs:fs:::repository/NAME/object/PREFIX*.",
                )
        _check_condition(one.condition)
    return tuple(statements)


def _check_condition(condition: Condition) -> None:
    for operator, fields in condition.items():
        known = {SOURCE_IP} if "Ip" in operator else set(_FIELDS)
        if operator not in _TESTS or not fields or not set(fields) <= known:
            raise UsageError(
                f"The condition {operator} on {', '.join(fields) or 'nothing'} is not known.",
                next=f"Use {', '.join(_TESTS)} on {SOURCE_IP}, or StringLike and StringNotLike on {BRANCH}.",
            )
        if any(len(text) > PATTERN_MAX_CHARS for wanted in fields.values() for text in wanted):
            raise UsageError("A condition has a pattern that is too long.", next="Write a shorter one.")
        if "Ip" in operator:
            try:
                _networks(tuple(fields[SOURCE_IP]))
            except ValueError as error:
                raise UsageError(f"A condition holds no network: {error}.", next="Write 10.0.0.0/8.") from None
