"""What policies allow: lakeFS's rules, case by case, and as a whole against a slow and simple judge."""

from __future__ import annotations

import fnmatch
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import UsageError
from strandline.iam.fixed import GROUPS, POLICIES
from strandline.iam.policy import Both, Caller, Either, Need, Rules, Verdict, check_statements
from strandline.iam.records import Statement

ARN = "arn:lakefs:fs:::repository/"
ME = Caller("me", "10.1.2.3")


def allow(action: str, resource: str, **condition: dict[str, tuple[str, ...]]) -> Statement:
    return Statement("allow", (action,), resource, condition)


def deny(action: str, resource: str, **condition: dict[str, tuple[str, ...]]) -> Statement:
    return Statement("deny", (action,), resource, condition)


@pytest.mark.parametrize(
    ("statements", "action", "resource", "expected"),
    [
        ([], "fs:ReadObject", ARN + "a", Verdict.NEUTRAL),
        ([allow("*", "*")], "auth:DeleteUser", "arn:lakefs:auth:::user/a", Verdict.ALLOWED),
        ([allow("fs:Read*", "*")], "fs:WriteObject", ARN + "a", Verdict.NEUTRAL),
        ([allow("fs:Read*", "*")], "fs:ReadObject", ARN + "a", Verdict.ALLOWED),
        ([allow("fs:*", ARN + "nyc/*")], "fs:ReadObject", ARN + "nyc/object/a", Verdict.ALLOWED),
        ([allow("fs:*", ARN + "nyc/*")], "fs:ReadObject", ARN + "nyc2/object/a", Verdict.NEUTRAL),
        ([allow("fs:*", ARN + "nyc")], "fs:ReadRepository", ARN + "nyc/object/a", Verdict.NEUTRAL),
        ([allow("*", "*"), deny("fs:Delete*", "*")], "fs:DeleteObject", ARN + "a", Verdict.DENIED),
        ([deny("fs:Delete*", "*"), allow("*", "*")], "fs:DeleteObject", ARN + "a", Verdict.DENIED),
        ([allow("*", "*"), deny("*", ARN + "b/*")], "fs:ReadObject", ARN + "a/x", Verdict.ALLOWED),
        (
            [allow("auth:*", "arn:lakefs:auth:::user/${user}")],
            "auth:ReadUser",
            "arn:lakefs:auth:::user/me",
            Verdict.ALLOWED,
        ),
        (
            [allow("auth:*", "arn:lakefs:auth:::user/${user}")],
            "auth:ReadUser",
            "arn:lakefs:auth:::user/you",
            Verdict.NEUTRAL,
        ),
        ([allow("fs:*", '["' + ARN + 'a/*","' + ARN + 'b/*"]')], "fs:ReadObject", ARN + "b/x", Verdict.ALLOWED),
        ([allow("fs:*", "arn:*:fs:::repository/a")], "fs:ReadObject", ARN + "a", Verdict.NEUTRAL),
        ([allow("fs:*", ARN + "a/object/x:y*")], "fs:ReadObject", ARN + "a/object/x:y:z", Verdict.ALLOWED),
        ([allow("fs:ReadObjec?", ARN + "a?")], "fs:ReadObject", ARN + "ab", Verdict.ALLOWED),
        ([allow("*", "*", IpAddress={"SourceIp": ("10.0.0.0/8",)})], "fs:ReadObject", ARN, Verdict.ALLOWED),
        ([allow("*", "*", IpAddress={"SourceIp": ("11.0.0.0/8",)})], "fs:ReadObject", ARN, Verdict.NEUTRAL),
        ([allow("*", "*"), deny("*", "*", NotIpAddress={"SourceIp": ("11.0.0.0/8",)})], "fs:A", ARN, Verdict.DENIED),
        ([allow("*", "*"), deny("*", "*", IpAddress={"SourceIp": ("x",)})], "fs:A", ARN, Verdict.DENIED),
        ([allow("*", "*", IpAddress={"SourceIp": ("x",)})], "fs:A", ARN, Verdict.NEUTRAL),
        ([allow("*", "*", StringLike={"SourceIp": ("10.1.*",)})], "fs:A", ARN, Verdict.ALLOWED),
        ([allow("*", "*", Unknown={"SourceIp": ("10.1.*",)})], "fs:A", ARN, Verdict.NEUTRAL),
    ],
)
def test_one_need(statements: list[Statement], action: str, resource: str, expected: Verdict) -> None:
    rules = Rules("me", statements)
    assert rules.judge(Need(action, resource), ME) is expected
    everywhere = rules.everywhere(action)
    assert everywhere in (None, expected) or everywhere is Verdict.NEUTRAL


def test_needs_together() -> None:
    rules = Rules("me", [allow("fs:A", "*"), allow("fs:B", "*"), deny("fs:D", "*")])
    a, b, c, d = (Need(f"fs:{letter}", "*") for letter in "ABCD")
    assert rules.judge(Both((a, b)), ME) is Verdict.ALLOWED
    assert rules.judge(Both((a, c)), ME) is Verdict.NEUTRAL
    assert rules.judge(Both((a, d)), ME) is Verdict.DENIED
    assert rules.judge(Either((a, c)), ME) is Verdict.ALLOWED
    assert rules.judge(Either((c, c)), ME) is Verdict.NEUTRAL
    assert rules.judge(Either((a, d)), ME) is Verdict.DENIED


NAMES = st.sampled_from(["a", "b", "ab", "a/b", "*", "a*", "?b", "a.b", "[a]"])


@given(st.lists(st.tuples(st.booleans(), NAMES, NAMES), max_size=6), NAMES, NAMES)
def test_against_a_simple_judge(rows: list[tuple[bool, str, str]], action: str, resource: str) -> None:
    statements = [
        Statement("allow" if allows else "deny", (f"fs:{wanted}",), ARN + place) for allows, wanted, place in rows
    ]
    plain = lambda text: text.replace("[", "[[]")  # noqa: E731 - fnmatch knows sets, policies do not
    found = {
        one.effect
        for one in statements
        if fnmatch.fnmatchcase(f"fs:{action}", plain(one.action[0]))
        and fnmatch.fnmatchcase(ARN + resource, plain(one.resource))
    }
    expected = Verdict.DENIED if "deny" in found else Verdict.ALLOWED if found else Verdict.NEUTRAL
    rules = Rules("me", statements)
    assert rules.judge(Need(f"fs:{action}", ARN + resource), ME) is expected


@given(st.lists(st.tuples(st.booleans(), NAMES, st.sampled_from(["*", ARN + "a"])), max_size=5), NAMES)
def test_what_holds_everywhere_holds_somewhere(rows: list[tuple[bool, str, str]], action: str) -> None:
    statements = [Statement("allow" if ok else "deny", (f"fs:{wanted}",), place) for ok, wanted, place in rows]
    rules = Rules("me", statements)
    everywhere = rules.everywhere(f"fs:{action}")
    if everywhere is not None:
        for place in ("*", ARN + "a", ARN + "b"):
            assert rules.judge(Need(f"fs:{action}", place), ME) is everywhere


@pytest.mark.parametrize(
    "statement",
    [
        Statement("allow", (), "*"),
        Statement("allow", ("ReadObject",), "*"),
        Statement("allow", ("fs:Read Object",), "*"),
        Statement("allow", ("s3:GetObject",), "*"),
        Statement("allow", ("fs:*",), "repository/a"),
        Statement("allow", ("fs:*",), "arn:lakefs"),
        Statement("allow", ("fs:*",), "["),
        Statement("allow", ("fs:*",), "[1]"),
        Statement("allow", ("fs:*",), ARN + "a" * 3000),
        Statement("allow", ("fs:*",), "*", {"IpAddress": {"SourceIp": ("300.0.0.0/8",)}}),
        Statement("allow", ("fs:*",), "*", {"IpAddress": {"Time": ("10.0.0.0/8",)}}),
        Statement("allow", ("fs:*",), "*", {"Before": {"SourceIp": ("10.0.0.0/8",)}}),
    ],
)
def test_statements_that_are_refused(statement: Statement) -> None:
    with pytest.raises(UsageError):
        check_statements([statement])


def test_a_policy_has_statements_and_not_too_many() -> None:
    for count in (0, 101):
        with pytest.raises(UsageError):
            check_statements([allow("fs:*", "*")] * count)


def test_the_fixed_groups() -> None:
    for statements in POLICIES.values():
        check_statements(statements)
    rules = {
        group: Rules("me", [one for policy in policies for one in POLICIES[policy]])
        for group, policies in GROUPS.items()
    }

    def may(group: str, action: str, resource: str = ARN + "a") -> bool:
        return rules[group].judge(Need(action, resource), ME) is Verdict.ALLOWED

    assert all(may("Admins", action) for action in ("fs:DeleteRepository", "auth:DeleteUser", "branches:SetX"))
    assert may("SuperUsers", "fs:DeleteRepository")
    assert not may("SuperUsers", "auth:DeleteUser")
    assert may("Developers", "fs:CreateCommit")
    assert not may("Developers", "fs:CreateRepository")
    assert may("Viewers", "fs:ReadObject")
    assert not may("Viewers", "fs:WriteObject")
    assert may("Viewers", "auth:CreateCredentials", "arn:lakefs:auth:::user/me")
    assert not may("Viewers", "auth:CreateCredentials", "arn:lakefs:auth:::user/you")


@pytest.mark.timeout(30)
def test_many_stars_take_no_longer_than_few() -> None:
    """A pattern that could be tried at many places keeps nobody waiting: this one took a minute."""
    rules = Rules("ann", [Statement("allow", ("fs:ReadObject",), f"arn:lakefs:fs:::{'*a' * 40}*b")])
    for last, expected in (("", Verdict.NEUTRAL), ("b", Verdict.ALLOWED)):
        need = Need("fs:ReadObject", "arn:lakefs:fs:::" + "a" * 1_000 + last)
        assert rules.judge(need, Caller("ann")) is expected


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_patterns_match_as_those_of_a_shell(pattern: str, text: str) -> None:
    rules = Rules("ann", [Statement("allow", ("fs:ReadObject",), f"arn:lakefs:fs:::x{pattern}")])
    found = rules.judge(Need("fs:ReadObject", f"arn:lakefs:fs:::x{text}"), Caller("ann"))
    assert (found is Verdict.ALLOWED) == fnmatch.fnmatchcase(text, pattern)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_an_address_is_the_same_on_a_socket_of_both_kinds(address: str) -> None:
    statements = [allow("fs:*", "*"), deny("fs:*", "*", IpAddress={"SourceIp": ("10.0.0.0/8",)})]
    assert Rules("ann", statements).judge(Need("fs:ReadObject", "x"), Caller("ann", address)) is Verdict.DENIED


def test_a_condition_may_be_on_a_branch() -> None:
    on = Statement("deny", ("fs:WriteObject",), "*", {"StringLike": {"fs:branch": ("main", "release-*")}})
    rules = Rules("ann", [Statement("allow", ("fs:*",), "*"), on])

    def judge(branch: str) -> Verdict:
        return rules.judge(Need("fs:WriteObject", "arn:lakefs:fs:::repository/r/object/x"), Caller("ann", "", branch))

    assert [judge(branch) for branch in ("main", "release-1", "work", "")] == [
        Verdict.DENIED,
        Verdict.DENIED,
        Verdict.ALLOWED,
        Verdict.ALLOWED,
    ]
    only = Statement("allow", ("fs:WriteObject",), "*", {"StringLike": {"fs:branch": ("work",)}})
    assert Rules("ann", [only]).judge(Need("fs:WriteObject", "x"), Caller("ann", "", "work")) is Verdict.ALLOWED
    assert Rules("ann", [only]).judge(Need("fs:WriteObject", "x"), Caller("ann", "", "main")) is Verdict.NEUTRAL
    with pytest.raises(UsageError):
        check_statements([Statement("allow", ("fs:*",), "*", {"IpAddress": {"fs:branch": ("main",)}})])


SHORT = st.text("ab", max_size=3)


@given(st.lists(st.tuples(st.booleans(), st.text("ab*?", max_size=4)), max_size=4), SHORT)
def test_a_prefix_is_allowed_only_if_all_below_it_is(rows: list[tuple[bool, str]], prefix: str) -> None:
    """Against every text of up to four more characters: longer ones meet nothing else in so short patterns."""
    rules = Rules("me", [(allow if allows else deny)("fs:A", ARN + pattern) for allows, pattern in rows])
    whole = rules.judge(Need("fs:A", ARN + prefix, is_prefix=True), ME)
    texts = [prefix + "".join(more) for size in range(5) for more in itertools.product("ab", repeat=size)]
    each = [rules.judge(Need("fs:A", ARN + text), ME) for text in texts]
    if whole is Verdict.ALLOWED:
        assert set(each) == {Verdict.ALLOWED}
    assert (whole is Verdict.DENIED) == (Verdict.DENIED in each)


@pytest.mark.parametrize(
    ("statements", "prefix", "expected"),
    [
        ([allow("*", "*")], "nyc/object/in/", Verdict.ALLOWED),
        ([allow("*", ARN + "nyc/object/in/*")], "nyc/object/in/", Verdict.ALLOWED),
        ([allow("*", ARN + "nyc/object/in/*")], "nyc/object/", Verdict.NEUTRAL),
        ([allow("*", ARN + "nyc/object/in/?")], "nyc/object/in/", Verdict.NEUTRAL),
        ([allow("*", ARN + "nyc/object/${user}/*")], "nyc/object/me/", Verdict.ALLOWED),
        ([allow("*", "*"), deny("*", ARN + "nyc/object/in/keep/*")], "nyc/object/in/", Verdict.DENIED),
        ([allow("*", "*"), deny("*", ARN + "nyc/object/in/keep/x")], "nyc/object/", Verdict.DENIED),
        ([allow("*", "*"), deny("*", ARN + "*/secret")], "nyc/object/in/", Verdict.DENIED),
        ([allow("*", "*"), deny("*", ARN + "nyc/object/inner")], "nyc/object/in/", Verdict.ALLOWED),
        ([allow("*", "*"), deny("*", ARN + "nyc/object/${user}/x")], "nyc/object/me/", Verdict.DENIED),
        ([allow("*", "*"), deny("*", "*")], "nyc/object/", Verdict.DENIED),
    ],
)
def test_what_is_on_everything_below(statements: list[Statement], prefix: str, expected: Verdict) -> None:
    assert Rules("me", statements).judge(Need("fs:WriteObject", ARN + prefix, is_prefix=True), ME) is expected
