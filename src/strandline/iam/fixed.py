"""The groups and policies that every server begins with, under the names that lakeFS gives them."""

from __future__ import annotations

from strandline.iam.records import Statement

_OWN = "arn:lakefs:auth:::user/${user}"


def _allow(*action: str, resource: str = "*") -> Statement:
    return Statement("allow", action, resource)


POLICIES: dict[str, tuple[Statement, ...]] = {
    "FSFullAccess": (_allow("fs:*"),),
    "FSReadAll": (_allow("fs:List*", "fs:Read*"),),
    "FSReadWriteAll": (
        _allow(
            "fs:List*",
            "fs:Read*",
            "fs:WriteObject",
            "fs:DeleteObject",
            "fs:RevertBranch",
            "fs:CreateBranch",
            "fs:CreateTag",
            "fs:DeleteBranch",
            "fs:DeleteTag",
            "fs:CreateCommit",
            "fs:CreateMetaRange",
            "strandline:Read*",
            "strandline:AppendToShard",
        ),
    ),
    "AuthFullAccess": (_allow("auth:*"),),
    "AuthManageOwnCredentials": (
        _allow(
            "auth:CreateCredentials",
            "auth:DeleteCredentials",
            "auth:ListCredentials",
            "auth:ReadCredentials",
            "auth:ReadUser",
            resource=_OWN,
        ),
    ),
    "RepoManagementFullAccess": (_allow("ci:*", "retention:*", "branches:*", "pr:*", "strandline:*", "fs:ReadConfig"),),
    "RepoManagementReadAll": (
        _allow(
            "ci:Read*", "retention:Get*", "branches:Get*", "pr:Read*", "pr:List*", "strandline:Read*", "fs:ReadConfig"
        ),
    ),
}

ADMINS = "Admins"
GROUPS: dict[str, tuple[str, ...]] = {
    ADMINS: ("FSFullAccess", "AuthFullAccess", "RepoManagementFullAccess"),
    "SuperUsers": ("FSFullAccess", "AuthManageOwnCredentials", "RepoManagementReadAll"),
    "Developers": ("FSReadWriteAll", "AuthManageOwnCredentials", "RepoManagementReadAll"),
    "Viewers": ("FSReadAll", "AuthManageOwnCredentials", "RepoManagementReadAll"),
}
