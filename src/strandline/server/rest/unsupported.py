"""Operations of lakeFS that are not here: a client that asks for one reads why, and what to do instead."""

from __future__ import annotations

from strandline.server.messages import Response
from strandline.server.operation import (
    Call,
    Need,
    Needs,
    Operation,
    everything,
    object_need,
    repository_need,
)
from strandline.server.refusals import NotSupported

_HOOKS = "Hooks are not run here."
_PULLS = "There are no pull requests here: merge the branch."
_DUMP = "Dumps of refs are not made here: `strandline backup` saves them, with or without the objects."
_PARTS = "Parts are uploaded by S3's multipart upload, on every store."
_GC = "Garbage is collected by strandline itself: `strandline gc run`."
_METADATA = "Ranges and metaranges are Parquet files here, which lakeFS's clients cannot read."
_PRINCIPALS = "Users of other services are not supported: use access keys."
_ACLS = "There are no ACLs here: groups have policies."
_OLD = "This is an older address of something that has another one."
_REPOSITORY = "/repositories/{repository}"
_BRANCH = _REPOSITORY + "/branches/{branch}"
_RUNS = _REPOSITORY + "/actions/runs"
_PMPU = _BRANCH + "/staging/pmpu"
_EXTERNAL = "/auth/users/{user}/external/principals"
_ADMIN = everything("auth:ReadUser")
_READ_ACTIONS = repository_need("ci:ReadAction")
_WRITE = object_need("fs:WriteObject", "*")
_PULL, _WRITE_PULL = repository_need("pr:ReadPullRequest"), repository_need("pr:WritePullRequest")
_UPDATE, _READ = repository_need("fs:UpdateRepository"), repository_need("fs:ReadRepository")
_PREPARE = repository_need("retention:PrepareGarbageCollectionCommits")
_RULES = repository_need("branches:SetBranchProtectionRules")
_RETENTION = repository_need("retention:SetGarbageCollectionRules")

_ROWS: tuple[tuple[str, str, str, Need, str], ...] = (
    ("listRepositoryRuns", "GET", _RUNS, _READ_ACTIONS, _HOOKS),
    ("getRun", "GET", _RUNS + "/{run}", _READ_ACTIONS, _HOOKS),
    ("listRunHooks", "GET", _RUNS + "/{run}/hooks", _READ_ACTIONS, _HOOKS),
    ("getRunHookOutput", "GET", _RUNS + "/{run}/hooks/{hook_run}/output", _READ_ACTIONS, _HOOKS),
    ("createUserExternalPrincipal", "POST", _EXTERNAL, _ADMIN, _PRINCIPALS),
    ("deleteUserExternalPrincipal", "DELETE", _EXTERNAL, _ADMIN, _PRINCIPALS),
    ("listUserExternalPrincipals", "GET", _EXTERNAL + "/ls", _ADMIN, _PRINCIPALS),
    ("getExternalPrincipal", "GET", "/auth/external/principals", _ADMIN, _PRINCIPALS),
    ("externalPrincipalLogin", "POST", "/auth/external/principal/login", _ADMIN, _PRINCIPALS),
    ("oauthCallback", "GET", "/oidc/callback", _ADMIN, _PRINCIPALS),
    ("stsLogin", "POST", "/sts/login", _ADMIN, _PRINCIPALS),
    ("getGroupACL", "GET", "/auth/groups/{group}/acl", _ADMIN, _ACLS),
    ("setGroupACL", "POST", "/auth/groups/{group}/acl", _ADMIN, _ACLS),
    ("createPresignMultipartUpload", "POST", _PMPU, _WRITE, _PARTS),
    ("completePresignMultipartUpload", "PUT", _PMPU + "/{upload}", _WRITE, _PARTS),
    ("abortPresignMultipartUpload", "DELETE", _PMPU + "/{upload}", _WRITE, _PARTS),
    ("uploadPart", "PUT", _PMPU + "/{upload}/parts/{part}", _WRITE, _PARTS),
    ("uploadPartCopy", "PUT", _PMPU + "/{upload}/parts/{part}/copy", _WRITE, _PARTS),
    ("listPullRequests", "GET", _REPOSITORY + "/pulls", _PULL, _PULLS),
    ("createPullRequest", "POST", _REPOSITORY + "/pulls", _WRITE_PULL, _PULLS),
    ("getPullRequest", "GET", _REPOSITORY + "/pulls/{pull}", _PULL, _PULLS),
    ("updatePullRequest", "PATCH", _REPOSITORY + "/pulls/{pull}", _WRITE_PULL, _PULLS),
    ("mergePullRequest", "PUT", _REPOSITORY + "/pulls/{pull}/merge", _WRITE_PULL, _PULLS),
    (
        "updateObjectUserMetadata",
        "PUT",
        _BRANCH + "/objects/stat/user_metadata",
        _WRITE,
        "Metadata change with their object: copy it onto itself by S3, with new metadata.",
    ),
    ("createCommitRecord", "POST", _REPOSITORY + "/commits", _UPDATE, _DUMP),
    ("createSymlinkFile", "POST", _REPOSITORY + "/refs/{branch}/symlink", _READ, _METADATA),
    ("setRepositoryMetadata", "POST", _REPOSITORY + "/metadata", _UPDATE, "Repositories have no metadata here."),
    ("deleteRepositoryMetadata", "DELETE", _REPOSITORY + "/metadata", _UPDATE, "Repositories have no metadata here."),
    ("dumpRefs", "PUT", _REPOSITORY + "/refs/dump", _UPDATE, _DUMP),
    ("restoreRefs", "PUT", _REPOSITORY + "/refs/restore", _UPDATE, _DUMP),
    ("dumpSubmit", "POST", _REPOSITORY + "/dump", _UPDATE, _DUMP),
    ("dumpStatus", "GET", _REPOSITORY + "/dump", _UPDATE, _DUMP),
    ("restoreSubmit", "POST", _REPOSITORY + "/restore", _UPDATE, _DUMP),
    ("restoreStatus", "GET", _REPOSITORY + "/restore", _UPDATE, _DUMP),
    ("getGarbageCollectionConfig", "GET", "/config/garbage-collection", everything("fs:ReadConfig"), _GC),
    ("prepareGarbageCollectionCommits", "POST", _REPOSITORY + "/gc/prepare_commits", _PREPARE, _GC),
    ("prepareGarbageCollectionCommitsAsync", "POST", _REPOSITORY + "/gc/prepare_commits/async", _PREPARE, _GC),
    ("prepareGarbageCollectionCommitsStatus", "GET", _REPOSITORY + "/gc/prepare_commits/status", _PREPARE, _GC),
    ("prepareGarbageCollectionUncommitted", "POST", _REPOSITORY + "/gc/prepare_uncommited", _PREPARE, _GC),
    ("getMetadataObject", "GET", _REPOSITORY + "/metadata/object/{type}/{object}", _READ, _METADATA),
    ("getMetaRange", "GET", _REPOSITORY + "/metadata/meta_range/{meta_range}", _READ, _METADATA),
    ("getRange", "GET", _REPOSITORY + "/metadata/range/{range}", _READ, _METADATA),
    ("internalGetBranchProtectionRules", "GET", _REPOSITORY + "/branch_protection", _RULES, _OLD),
    ("internalCreateBranchProtectionRule", "POST", _REPOSITORY + "/branch_protection", _RULES, _OLD),
    ("internalDeleteBranchProtectionRule", "DELETE", _REPOSITORY + "/branch_protection", _RULES, _OLD),
    ("internalGetGarbageCollectionRules", "GET", _REPOSITORY + "/gc/rules", _RETENTION, _OLD),
    ("internalSetGarbageCollectionRules", "POST", _REPOSITORY + "/gc/rules", _RETENTION, _OLD),
    ("internalDeleteGarbageCollectionRules", "DELETE", _REPOSITORY + "/gc/rules", _RETENTION, _OLD),
    ("setupCommPrefs", "POST", "/setup_comm_prefs", everything("fs:ReadConfig"), "There is no telemetry here."),
    (
        "getUsageReportSummary",
        "GET",
        "/usage-report/summary",
        everything("fs:ReadConfig"),
        "Usage is not counted here.",
    ),
)


def _refused(_: Call) -> Response:
    raise NotSupported("This operation is not here.")  # the face has refused it before, in its own words


def _row(id: str, method: str, path: str, needs: Needs, why: str) -> Operation:
    return Operation(id, method, path, needs, _refused, "Not here", {}, "unsupported", unsupported=why)


OPERATIONS = tuple(_row(*one) for one in _ROWS)
