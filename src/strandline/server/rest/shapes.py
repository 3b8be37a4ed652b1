"""What requests and replies look like in JSON: names and types of lakeFS's interface, fields of ours at the end."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from strandline.iam.records import Condition, Effect

PAGE_MAX = 1_000
PAGE_DEFAULT = 100


Amount = Annotated[int, Meta(ge=-1, le=PAGE_MAX)]
"""How many rows a page has; 0 and -1 for the default."""


Moment = Annotated[int, Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970 UTC, up to the end of the year 9999."""
Checksum = Annotated[str, Meta(pattern=r'^"?[!#-~]{1,200}"?$')]
"""What stands in a header, and so holds nothing that ends one."""


class Error(msgspec.Struct):
    """Every error: a sentence for people, and for programs a word that stays the same."""

    message: str
    kind: str = ""
    request_id: str = ""


class Pagination(msgspec.Struct):
    """Where a page stands in a list.

    Attributes:
        next_offset: give it as `after` to get the next page; "" on the last one.
    """

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int = PAGE_MAX


class Page(msgspec.Struct, frozen=True):
    """The parameters of a list."""

    prefix: str = ""
    after: str = ""
    amount: Amount = PAGE_DEFAULT


# --- the server -----------------------------------------------------------------------------------------------------


class StorageConfig(msgspec.Struct):
    """What clients ask about the object store; nothing of it to those who may not read it."""

    blockstore_type: str = ""
    blockstore_namespace_example: str = ""
    blockstore_namespace_ValidityRegex: str = ""  # noqa: N815 - lakeFS's spelling
    pre_sign_support: bool = False
    pre_sign_support_ui: bool = False
    import_support: bool = False
    import_validity_regex: str = ""
    default_namespace_prefix: str = ""
    pre_sign_multipart_upload: bool = False


class VersionConfig(msgspec.Struct):
    """The versions of this server: of the interface that it speaks, and its own in the context."""

    version: str
    version_context: str
    upgrade_recommended: bool = False


class Config(msgspec.Struct):
    """What clients ask for first."""

    version_config: VersionConfig
    storage_config: StorageConfig
    storage_config_list: list[StorageConfig] = []
    capabilities_config: dict[str, Any] = {}


class LoginConfig(msgspec.Struct):
    """How people log in."""

    RBAC: str
    login_url: str
    logout_url: str
    login_cookie_names: list[str]


class SetupState(msgspec.Struct):
    """Whether the first admin was made."""

    state: Literal["initialized", "not_initialized"]
    login_config: LoginConfig


class AccessKey(msgspec.Struct):
    """An access key that the caller chose."""

    access_key_id: str
    secret_access_key: str


class Setup(msgspec.Struct):
    """Who the first admin is."""

    username: str
    key: AccessKey | None = None


class AuthCapabilities(msgspec.Struct):
    """What else the server can do with users."""

    invite_user: bool = False
    forgot_password: bool = False


# --- users ----------------------------------------------------------------------------------------------------------


class User(msgspec.Struct):
    """A user."""

    id: str
    creation_date: int
    friendly_name: str = ""
    email: str = ""


class CurrentUser(msgspec.Struct):
    """The user that asked."""

    user: User


class UserCreation(msgspec.Struct):
    """A user to be made."""

    id: str
    friendlyName: str = ""  # noqa: N815 - lakeFS's spelling
    email: str = ""


class UserList(msgspec.Struct):
    """A page of users."""

    pagination: Pagination
    results: list[User]


class Group(msgspec.Struct):
    """A group of users."""

    id: str
    creation_date: int
    name: str = ""
    description: str = ""


class GroupCreation(msgspec.Struct):
    """A group to be made."""

    id: str
    description: str = ""


class GroupList(msgspec.Struct):
    """A page of groups."""

    pagination: Pagination
    results: list[Group]


class Statement(msgspec.Struct, omit_defaults=True):
    """A part of a policy."""

    effect: Effect
    resource: str
    action: list[str]
    condition: Condition = {}


class Policy(msgspec.Struct, kw_only=True):
    """A policy."""

    id: str
    creation_date: int = 0
    statement: list[Statement]


class PolicyList(msgspec.Struct):
    """A page of policies."""

    pagination: Pagination
    results: list[Policy]


class Credentials(msgspec.Struct):
    """An access key without its secret."""

    access_key_id: str
    creation_date: int


class CredentialsWithSecret(msgspec.Struct):
    """A new access key; its secret is not shown again."""

    access_key_id: str
    secret_access_key: str
    creation_date: int


class CredentialsList(msgspec.Struct):
    """A page of access keys."""

    pagination: Pagination
    results: list[Credentials]


class LoginInformation(msgspec.Struct):
    """An access key to log in with."""

    access_key_id: str
    secret_access_key: str


class AuthenticationToken(msgspec.Struct):
    """A token for the Authorization header, as `Bearer …`."""

    token: str
    token_expiration: int


# --- repositories, branches, tags, commits --------------------------------------------------------------------------


class Repository(msgspec.Struct):
    """A repository."""

    id: str
    creation_date: int
    default_branch: str
    storage_namespace: str
    read_only: bool = False
    storage_id: str = ""


class RepositoryCreation(msgspec.Struct):
    """A repository to be made."""

    name: str
    storage_namespace: str = ""
    default_branch: str = "main"
    sample_data: bool = False
    read_only: bool = False
    storage_id: str = ""


class RepositoryList(msgspec.Struct):
    """A page of repositories."""

    pagination: Pagination
    results: list[Repository]


class Ref(msgspec.Struct):
    """A branch or a tag, and its commit."""

    id: str
    commit_id: str


class RefList(msgspec.Struct):
    """A page of branches or tags."""

    pagination: Pagination
    results: list[Ref]


class BranchCreation(msgspec.Struct):
    """A branch to be made."""

    name: str
    source: str
    force: bool = False
    hidden: bool = False


class TagCreation(msgspec.Struct):
    """A tag to be made."""

    id: str
    ref: str
    force: bool = False


class Commit(msgspec.Struct):
    """A commit."""

    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: dict[str, str]
    generation: int
    version: int = 1


class CommitList(msgspec.Struct):
    """A page of commits."""

    pagination: Pagination
    results: list[Commit]


class CommitCreation(msgspec.Struct):
    """A commit to be made of what is staged."""

    message: str = ""
    metadata: dict[str, str] = {}
    date: int | None = None
    allow_empty: bool = False
    force: bool = False


class CommitOverrides(msgspec.Struct):
    """What a commit says instead of what it would say."""

    message: str = ""
    metadata: dict[str, str] = {}


class ResetCreation(msgspec.Struct):
    """What of a branch's staged changes goes."""

    type: Literal["object", "common_prefix", "reset", "prepared_commit"]
    path: str = ""
    force: bool = False


class RevertCreation(msgspec.Struct):
    """A commit to be undone."""

    ref: str
    parent_number: int = 0
    commit_overrides: CommitOverrides | None = None
    force: bool = False
    allow_empty: bool = False


class CherryPickCreation(msgspec.Struct):
    """A commit to be done again."""

    ref: str
    parent_number: int = 0
    commit_overrides: CommitOverrides | None = None
    force: bool = False


class Merge(msgspec.Struct):
    """How to merge."""

    message: str = ""
    metadata: dict[str, str] = {}
    strategy: str = ""
    force: bool = False
    allow_empty: bool = False
    squash_merge: bool = False


class Conflict(msgspec.Struct):
    """What both sides of a merge changed; ours."""

    path: str
    reason: str


class MergeResult(msgspec.Struct):
    """The commit of a merge, or the conflicts in its way."""

    reference: str = ""
    message: str | UnsetType = UNSET
    conflicts: list[Conflict] | UnsetType = UNSET


class MergedCommit(msgspec.Struct):
    """The commit of a merge."""

    reference: str


class FindMergeBaseResult(msgspec.Struct):
    """The commits of two refs, and the best that both descend from."""

    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str


class Diff(msgspec.Struct, omit_defaults=True):
    """A difference."""

    type: Literal["added", "removed", "changed", "conflict", "prefix_changed"]
    path: str
    path_type: Literal["object", "common_prefix"]
    size_bytes: int | UnsetType = UNSET
    right: DiffObjectStat | UnsetType = UNSET


class DiffObjectStat(msgspec.Struct):
    """An object on the right side of a difference."""

    checksum: str
    mtime: int
    content_type: str = ""
    metadata: dict[str, str] = {}


class DiffList(msgspec.Struct):
    """A page of differences."""

    pagination: Pagination
    results: list[Diff]


class BranchProtectionRule(msgspec.Struct):
    """Branches that are only changed by merges."""

    pattern: Annotated[str, Meta(min_length=1, max_length=256)]


class RetentionOfBranch(msgspec.Struct):
    """For how many days a branch's commits are kept."""

    branch_id: str
    retention_days: int


class GarbageCollectionRules(msgspec.Struct):
    """For how many days commits are kept that are no head."""

    default_retention_days: int
    branches: list[RetentionOfBranch]


# --- objects --------------------------------------------------------------------------------------------------------


class ObjectStats(msgspec.Struct, omit_defaults=True):
    """An object, or in a listing with a delimiter the common beginning of several paths."""

    path: str
    path_type: Literal["object", "common_prefix"]
    physical_address: str
    checksum: str
    mtime: int
    size_bytes: int | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    physical_address_expiry: int | UnsetType = UNSET


class ObjectStatsList(msgspec.Struct):
    """A page of objects."""

    pagination: Pagination
    results: list[ObjectStats]


class PathList(msgspec.Struct):
    """Paths of objects."""

    paths: list[str]


class ObjectError(msgspec.Struct):
    """What was wrong with one path of several."""

    status_code: int
    message: str
    path: str = ""


class ObjectErrorList(msgspec.Struct):
    """What was wrong with some of the paths; nothing if all went well."""

    errors: list[ObjectError]


class ObjectCopyCreation(msgspec.Struct):
    """An object to be copied."""

    src_path: str
    src_ref: str = ""
    force: bool = False
    shallow: bool = False


class StagingLocation(msgspec.Struct, omit_defaults=True):
    """Where a client may write the bytes of an object itself."""

    physical_address: str = ""
    presigned_url: str | UnsetType | None = UNSET
    presigned_url_expiry: int | UnsetType | None = UNSET


class StagingMetadata(msgspec.Struct):
    """What a client wrote there."""

    staging: StagingLocation
    checksum: Checksum
    size_bytes: Annotated[int, Meta(ge=0)]
    user_metadata: dict[str, str] = {}
    content_type: str = ""
    mtime: Moment | None = None
    force: bool = False


class ObjectStageCreation(msgspec.Struct):
    """An object whose bytes are somewhere already."""

    physical_address: str
    checksum: Checksum
    size_bytes: Annotated[int, Meta(ge=0)]
    mtime: Moment | None = None
    metadata: dict[str, str] = {}
    content_type: str = ""
    force: bool = False


class StagedObject(msgspec.Struct):
    """One of many objects whose bytes are somewhere already; ours."""

    path: str
    physical_address: str
    checksum: Checksum
    size_bytes: Annotated[int, Meta(ge=0)]
    mtime: Moment | None = None
    metadata: dict[str, str] = {}
    content_type: str = ""


class BulkStage(msgspec.Struct):
    """Many objects to be staged with one check of the branch; ours."""

    objects: list[StagedObject]
    atomic: bool = False


class StagedCount(msgspec.Struct):
    """How many objects were staged."""

    staged: int


class UnderlyingObjectProperties(msgspec.Struct):
    """What the object store says of an object."""

    storage_class: str = ""
