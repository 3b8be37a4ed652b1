"""Every operation of the table by lakeFS's own package, unpatched: what it returns, and which status each error has."""

from __future__ import annotations

import datetime
import importlib
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from strandline.lake import Lake
from strandline.server.rest.table import OPERATIONS
from strandline.server.routing import Router
from tests.harness.serving import Served

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]
NEEDS_NO_CLIENT = {"getAuthCapabilities", "setup", "stageObjects"}
"""The client has no call for the first, and the server was set up when it started."""
called: set[str] = set()


class Sdk:
    """The client, and what it was answered.

    Attributes:
        repository: the name of a repository of its own.
    """

    def __init__(self, served: Served, repository: str) -> None:
        self.models: Any = importlib.import_module("lakefs_sdk")
        made = self.models.Configuration(host=served.address, username=served.key, password=served.secret)
        self.client: Any = importlib.import_module("lakefs_sdk.client").LakeFSClient(made)
        self.served = served
        self.repository = repository
        self.objects, self.branches, self.refs = self.client.objects_api, self.client.branches_api, self.client.refs_api
        self.commits, self.tags, self.auth = self.client.commits_api, self.client.tags_api, self.client.auth_api
        self.repositories, self.staging = self.client.repositories_api, self.client.staging_api

    def status(self, call: Any, *arguments: Any, **more: Any) -> int:
        """The status of a call: 200 if it went well."""
        try:
            call(*arguments, **more)
        except self.models.exceptions.ApiException as error:
            return int(error.status)
        return 200

    def make(self, name: str) -> Any:
        """A model of the client by its name."""
        return getattr(self.models, name)

    def upload(self, path: str, data: bytes = b"x", branch: str = "main") -> Any:
        return self.objects.upload_object(self.repository, branch, path, content=data)

    def commit(self, message: str, branch: str = "main", **more: Any) -> Any:
        return self.commits.commit(self.repository, branch, self.make("CommitCreation")(message=message, **more))


@pytest.fixture(scope="module")
def recorded() -> Iterator[None]:
    """Notes which rows of the table the client's requests meet."""
    api: Any = importlib.import_module("lakefs_sdk.api_client").ApiClient
    router = Router(OPERATIONS)
    request = api.request

    def noted(self: Any, method: str, url: str, *arguments: Any, **more: Any) -> Any:
        operation, _, _ = router.find(method, urlsplit(url).path.removeprefix("/api/v1/"))
        if operation is not None:
            called.add(operation.id)
        return request(self, method, url, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "request", noted)
        yield


@pytest.fixture
def sdk(served: Served, lake: Lake, recorded: None, request: pytest.FixtureRequest) -> Sdk:
    name = request.node.name.replace("_", "-").removeprefix("test-")[:40].rstrip("-")
    made = Sdk(served, name)
    creation = made.make("RepositoryCreation")(name=name, storage_namespace=f"local://{name}")
    made.repositories.create_repository(creation)
    return made


def test_repositories_and_their_rules(sdk: Sdk) -> None:
    name, api, make = sdk.repository, sdk.repositories, sdk.make
    creation = make("RepositoryCreation")
    assert sdk.status(api.create_repository, creation(name=name, storage_namespace="local://another")) == 409
    assert sdk.status(api.create_repository, creation(name="other-1", storage_namespace=f"local://{name}")) == 400
    assert sdk.status(api.create_repository, creation(name="bare-1", storage_namespace="local://b"), bare=True) == 501
    assert api.get_repository(name).storage_namespace == f"local://{name}"
    assert sdk.status(api.get_repository, "nothing-here") == 404
    assert name in [one.id for one in api.list_repositories(prefix=name).results]
    assert api.get_repository_metadata(name) == {}
    assert sdk.status(api.get_gc_rules, name) == 404
    rule = make("GarbageCollectionRule")(branch_id="main", retention_days=3)
    api.set_gc_rules(name, make("GarbageCollectionRules")(default_retention_days=7, branches=[rule]))
    assert api.get_gc_rules(name).branches[0].retention_days == 3
    api.delete_gc_rules(name)
    internal = sdk.client.internal_api
    internal.create_branch_protection_rule_preflight(name)
    internal.set_garbage_collection_rules_preflight(name)
    patterns = [make("BranchProtectionRule")(pattern=one) for one in ("pro*", "{a,b}-x")]
    api.set_branch_protection_rules(name, patterns)
    etag = api.get_branch_protection_rules_with_http_info(name).headers["ETag"]
    assert sdk.status(api.set_branch_protection_rules, name, [], if_match='"x"') == 412
    assert sorted(one.pattern for one in api.get_branch_protection_rules(name)) == ["a-x", "b-x", "pro*"]
    sdk.branches.create_branch(name, make("BranchCreation")(name="prod", source="main"))
    assert sdk.status(sdk.upload, "a", branch="prod") == 403
    assert sdk.status(sdk.commit, "x", "prod", allow_empty=True) == 403
    deleted = sdk.objects.delete_objects(name, "prod", make("PathList")(paths=["a"]))
    assert [one.status_code for one in deleted.errors] == [403]
    api.set_branch_protection_rules(name, [], if_match=etag)
    sdk.upload("a", branch="prod")
    # read-only, and force
    read_only = creation(name=f"{name[:30]}-ro", storage_namespace="local://ro-1", read_only=True, sample_data=True)
    other = api.create_repository(read_only).id
    objects = sdk.objects
    assert sdk.status(objects.upload_object, other, "main", "a", content=b"x") == 403
    objects.upload_object(other, "main", "a", content=b"x", force=True)
    assert sdk.status(sdk.commits.commit, other, "main", make("CommitCreation")(message="x")) == 403
    sdk.commits.commit(other, "main", make("CommitCreation")(message="x", force=True))
    for force, expected in ((False, 403), (True, 200)):
        branch = make("BranchCreation")(name="dev", source="main", force=force)
        assert sdk.status(sdk.branches.create_branch, other, branch) == expected
        tag = make("TagCreation")(id="v1", ref="main", force=force)
        assert sdk.status(sdk.tags.create_tag, other, tag) == expected
        assert sdk.status(objects.delete_object, other, "main", "a", force=force) == expected
    for force, expected in ((False, 403), (True, 200)):
        revert = make("RevertCreation")(ref="main", parent_number=0, force=force)
        assert sdk.status(sdk.branches.revert_branch, other, "dev", revert) == expected
        merge = make("Merge")(force=force, allow_empty=True)
        assert sdk.status(sdk.refs.merge_into_branch, other, "main", "dev", merge=merge) == expected
        assert sdk.status(sdk.tags.delete_tag, other, "v1", force=force) == expected
        assert sdk.status(sdk.branches.delete_branch, other, "dev", force=force) == expected
        assert sdk.status(api.delete_repository, other, force=force) == expected


def test_objects(sdk: Sdk) -> None:
    name, api, make = sdk.repository, sdk.objects, sdk.make
    made = sdk.upload("a/b.txt", b"hello")
    assert (made.path, made.size_bytes, made.checksum) == ("a/b.txt", 5, "5d41402abc4b2a76b9719d911017c592")
    assert sdk.status(api.upload_object, name, "main", "a/b.txt", content=b"x", if_none_match="*") == 412
    assert sdk.status(sdk.upload, "a", branch="none") == 404
    assert bytes(api.get_object(name, "main", "a/b.txt")) == b"hello"
    assert bytes(api.get_object(name, "main", "a/b.txt", range="bytes=1-2")) == b"el"
    assert bytes(api.get_object(name, "main", "a/b.txt", range="bytes=-2")) == b"lo"
    for behind in ("bytes=5-", "bytes=9-", "bytes=10-20", "bytes=-0"):
        with pytest.raises(sdk.models.exceptions.ApiException) as caught:
            api.get_object(name, "main", "a/b.txt", range=behind)
        assert (caught.value.status, caught.value.headers["Content-Range"]) == (416, "bytes */5")
    sdk.upload("empty", b"")
    assert sdk.status(api.get_object, name, "main", "empty", range="bytes=0-") == 416
    assert api.head_object_with_http_info(name, "main", "a/b.txt").headers["Content-Length"] == "5"
    assert sdk.status(api.head_object, name, "main", "none") == 404
    stat = api.stat_object(name, "main", "a/b.txt", presign=True)
    with urllib.request.urlopen(stat.physical_address) as response:
        assert response.read() == b"hello"
    listed = api.list_objects(name, "main", delimiter="/")
    assert [(one.path, one.path_type) for one in listed.results] == [("a/", "common_prefix"), ("empty", "object")]
    assert api.list_objects(name, "main", amount=1).pagination.next_offset == "a/b.txt"
    assert [one.path for one in api.list_objects(name, "main", after="a/", delimiter="/").results] == ["empty"]
    for amount in (-1, 0, 1000):
        assert sdk.status(api.list_objects, name, "main", amount=amount) == 200
    assert sdk.status(api.list_objects, name, "none") == 404
    api.get_underlying_properties(name, "main", "a/b.txt")
    copied = api.copy_object(name, "main", "a/c.txt", make("ObjectCopyCreation")(src_path="a/b.txt"))
    assert copied.checksum == made.checksum
    missing = make("ObjectCopyCreation")(src_path="none")
    assert sdk.status(api.copy_object, name, "main", "d", missing) == 404
    shallow = make("ObjectCopyCreation")(src_path="a/b.txt", shallow=True)
    assert sdk.status(api.copy_object, name, "main", "d", shallow) == 501
    sdk.client.internal_api.upload_object_preflight(name, "main", "x")
    api.delete_object(name, "main", "a/c.txt")
    api.delete_object(name, "main", "a/c.txt", no_tombstone=True)
    assert not api.delete_objects(name, "main", make("PathList")(paths=["a/b.txt", "none"])).errors
    many = make("PathList")(paths=[str(number) for number in range(1001)])
    assert sdk.status(api.delete_objects, name, "main", many) == 400


def test_addresses_that_a_client_writes_to_itself(sdk: Sdk) -> None:
    name, api, make = sdk.repository, sdk.staging, sdk.make
    place = api.get_physical_address(name, "main", "x")
    given = make("StagingMetadata")(staging=place, checksum="x", size_bytes=5)
    assert sdk.status(api.link_physical_address, name, "main", "x", given) == 400  # nothing was written there
    place = api.get_physical_address(name, "main", "x", presign=True)
    with urllib.request.urlopen(urllib.request.Request(place.presigned_url, b"12345", method="PUT")) as response:
        etag = response.headers["ETag"].strip('"')
    given = make("StagingMetadata")(
        staging=place, checksum=etag, size_bytes=5, mtime=12345, user_metadata={"a": "b"}, content_type="text/x"
    )
    assert sdk.status(api.link_physical_address, name, "main", "y", given) == 400
    made = api.link_physical_address(name, "main", "x", given)
    shown = sdk.objects.stat_object(name, "main", "x")
    assert (made.mtime, shown.mtime, shown.checksum, shown.metadata) == (12345, 12345, etag, {"a": "b"})
    foreign = make("ObjectStageCreation")(physical_address="file:///etc/passwd", checksum="x", size_bytes=5)
    assert sdk.status(sdk.client.internal_api.stage_object, name, "main", "x", foreign) == 400


def test_imports_that_are_none(sdk: Sdk) -> None:
    """Those that are some need a bucket: tests/server/test_imports.py."""
    name, api, make = sdk.repository, sdk.client.import_api, sdk.make
    place = make("ImportLocation")(type="common_prefix", path="file:///etc/", destination="x/")
    creation = make("ImportCreation")(paths=[place], commit=make("CommitCreation")(message=""))
    assert sdk.status(api.import_start, name, "main", creation) == 400
    assert sdk.status(api.import_status, name, "main", "x") == 404
    assert sdk.status(api.import_cancel, name, "main", "x") == 404


def test_branches_commits_tags_and_history(sdk: Sdk) -> None:
    name, make = sdk.repository, sdk.make
    branches, tags, refs, commits = sdk.branches, sdk.tags, sdk.refs, sdk.commits
    sdk.upload("x")
    assert [one.path for one in branches.diff_branch(name, "main").results] == ["x"]
    first = sdk.commit("one", metadata={"k": "v"})
    assert sdk.status(sdk.commit, "nothing") == 400
    assert sdk.commit("", allow_empty=True, var_date=1000).creation_date == 1000
    assert commits.get_commit(name, first.id[:6]).metadata == {"k": "v"}
    for expression, expected in (("main", 200), ("main~1", 200), ("main$", 400), ("abcdefabcdef", 404)):
        assert sdk.status(commits.get_commit, name, expression) == expected, expression
    branch = make("BranchCreation")
    assert branches.create_branch(name, branch(name="dev", source="main")) == commits.get_commit(name, "main").id
    for wrong, expected in (("dev", 409), ("d/ev", 400)):
        assert sdk.status(branches.create_branch, name, branch(name=wrong, source="main")) == expected
    for source, expected in (("none", 404), ("main$", 400)):
        assert sdk.status(branches.create_branch, name, branch(name="new", source=source)) == expected
    branches.create_branch(name, branch(name="unseen", source="main", hidden=True))
    assert [one.id for one in branches.list_branches(name).results] == ["dev", "main"]
    assert len(branches.list_branches(name, show_hidden=True).results) == 3
    assert branches.get_branch(name, "unseen").commit_id
    assert sdk.status(branches.get_branch, name, "none") == 404
    assert sdk.status(branches.delete_branch, name, "main") == 403
    branches.delete_branch(name, "unseen")
    tag = make("TagCreation")
    tags.create_tag(name, tag(id="v1", ref="main"))
    for wrong, source, expected in (
        ("v1", "main", 409),
        ("dev", "main", 409),
        ("v2", "none", 404),
        ("v2", "main$", 400),
    ):
        assert sdk.status(tags.create_tag, name, tag(id=wrong, ref=source)) == expected
    assert sdk.status(branches.create_branch, name, branch(name="v1", source="main")) == 409
    assert tags.get_tag(name, "v1").id == "v1"
    assert [one.id for one in tags.list_tags(name).results] == ["v1"]
    tags.delete_tag(name, "v1")
    assert sdk.status(tags.get_tag, name, "v1") == 404
    for number in range(3):
        sdk.upload(f"dev/{number}", branch="dev")
        sdk.commit(f"dev {number}", "dev")
    assert refs.find_merge_base(name, "dev", "main").base_commit_id == commits.get_commit(name, "main").id
    log = refs.log_commits(name, "dev", objects=["dev/0", "dev/2", "x"])
    assert [one.message for one in log.results] == ["dev 2", "dev 0", "one"]
    stop = commits.get_commit(name, "dev~1").id  # itself not one of those that are shown
    stopped = refs.log_commits(name, "dev", objects=["dev/0", "dev/2", "x"], stop_at=stop)
    assert [one.message for one in stopped.results] == ["dev 2"]
    page = refs.log_commits(name, "dev", amount=2)
    assert page.pagination.has_more
    rest = refs.log_commits(name, "dev", after=page.pagination.next_offset)
    assert [one.message for one in page.results + rest.results][:5] == ["dev 2", "dev 1", "dev 0", "", "one"]
    assert not refs.log_commits(name, "dev", amount=2, limit=True).pagination.has_more
    since = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    assert refs.log_commits(name, "dev", since=since).results == []
    sdk.upload("x", b"on main")
    sdk.commit("on main")
    sdk.upload("x", b"on dev", "dev")
    sdk.commit("on dev", "dev")
    for left in ("main", commits.get_commit(name, "main").id):
        shown = refs.diff_refs(name, left, "dev", include_right_stats=True)
        assert [(one.type, one.path) for one in shown.results if one.path == "x"] == [("conflict", "x")]
    folders = refs.diff_refs(name, "main", "dev", type="two_dot", delimiter="/").results
    assert ("prefix_changed", "dev/") in [(one.type, one.path) for one in folders]
    assert sdk.status(refs.diff_refs, name, "main", "none") == 404
    assert sdk.status(refs.diff_refs, name, "main", "dev", type="x") == 400
    merge = make("Merge")
    assert sdk.status(refs.merge_into_branch, name, "dev", "main") == 409
    assert sdk.status(refs.merge_into_branch, name, "main", "main", merge=merge(allow_empty=True)) == 400
    assert sdk.status(refs.merge_into_branch, name, "dev", "main", merge=merge(strategy="x")) == 400
    sdk.upload("staged")
    assert sdk.status(refs.merge_into_branch, name, "dev", "main", merge=merge(strategy="source-wins")) == 400
    branches.reset_branch(name, "main", make("ResetCreation")(type="object", path="staged"))
    branches.reset_branch(name, "main", make("ResetCreation")(type="common_prefix", path="st"))
    branches.reset_branch(name, "main", make("ResetCreation")(type="reset"))
    merged = refs.merge_into_branch(name, "dev", "main", merge=merge(strategy="source-wins", metadata={"a": "b"}))
    found = commits.get_commit(name, merged.reference)
    assert len(found.parents) == 2
    assert found.metadata == {"a": "b", ".lakefs.merge.strategy": "source-wins"}
    assert sdk.status(refs.merge_into_branch, name, "dev", "main") == 400
    assert sdk.status(refs.merge_into_branch, name, "dev", "main", merge=merge(force=True)) == 200
    revert = make("RevertCreation")
    assert sdk.status(branches.revert_branch, name, "main", revert(ref=merged.reference, parent_number=0)) == 409
    assert sdk.status(branches.revert_branch, name, "main", revert(ref=merged.reference, parent_number=7)) == 400
    overrides = make("CommitOverrides")(message="undone", metadata={"q": "w"})
    branches.revert_branch(name, "main", revert(ref=merged.reference, parent_number=1, commit_overrides=overrides))
    assert commits.get_commit(name, "main").message == "undone"
    picked = branches.cherry_pick(name, "main", make("CherryPickCreation")(ref="dev~1"))
    assert picked.metadata["cherry-pick-origin"] == commits.get_commit(name, "dev~1").id
    assert sdk.status(branches.cherry_pick, name, "main", make("CherryPickCreation")(ref="none")) == 404
    sdk.client.experimental_api.hard_reset_branch(name, "dev", first.id)
    assert branches.get_branch(name, "dev").commit_id == first.id


def test_users_groups_and_policies(sdk: Sdk) -> None:
    api, make, name = sdk.auth, sdk.make, sdk.repository
    assert api.get_current_user().user.id == "admin"
    api.create_user(make("UserCreation")(id=name))
    assert sdk.status(api.create_user, make("UserCreation")(id=name)) == 409
    assert sdk.status(api.get_user, "nobody") == 404
    assert api.get_user(name).id == name
    assert name in [one.id for one in api.list_users(prefix=name).results]
    key = api.create_credentials(name)
    assert api.get_credentials(name, key.access_key_id).access_key_id == key.access_key_id
    assert [one.access_key_id for one in api.list_user_credentials(name).results] == [key.access_key_id]
    api.create_group(make("GroupCreation")(id=name))
    assert api.get_group(name).id == name
    assert name in [one.id for one in api.list_groups(prefix=name).results]
    api.add_group_membership(name, name)
    assert [one.id for one in api.list_group_members(name).results] == [name]
    assert [one.id for one in api.list_user_groups(name).results] == [name]
    statement = make("Statement")(effect="allow", action=["fs:*"], resource="*")
    api.create_policy(make("Policy")(id=name, statement=[statement]))
    assert api.get_policy(name).statement == [statement]
    assert name in [one.id for one in api.list_policies(prefix=name).results]
    fewer = make("Statement")(effect="allow", action=["fs:Read*"], resource="*")
    api.update_policy(name, make("Policy")(id=name, statement=[fewer]))
    api.attach_policy_to_user(name, name)
    assert [one.id for one in api.list_user_policies(name).results] == [name]
    api.attach_policy_to_group(name, name)
    assert [one.id for one in api.list_group_policies(name).results] == [name]
    assert [one.id for one in api.list_user_policies(name, effective=True).results] == [name]
    given = make("LoginInformation")(access_key_id=key.access_key_id, secret_access_key=key.secret_access_key)
    assert api.login(login_information=given).token
    wrong = make("LoginInformation")(access_key_id=key.access_key_id, secret_access_key="wrong" * 8)
    assert sdk.status(api.login, login_information=wrong) == 401
    api.detach_policy_from_user(name, name)
    api.detach_policy_from_group(name, name)
    api.delete_group_membership(name, name)
    api.delete_group(name)
    api.delete_policy(name)
    api.delete_credentials(name, key.access_key_id)
    api.delete_user(name)
    assert sdk.status(api.get_group_acl, "Admins") == 501


def test_what_clients_ask_first(sdk: Sdk) -> None:
    config = sdk.client.config_api.get_config()
    assert config.storage_config.blockstore_type == "local"
    assert config.version_config.version.replace(".", "").isdigit()
    sdk.client.health_check_api.health_check()
    internal = sdk.client.internal_api
    assert internal.get_setup_state().state == "initialized"
    internal.get_storage_config()
    internal.get_lake_fs_version()
    internal.post_stats_events(sdk.make("StatsEventsList")(events=[]))
    assert sdk.status(internal.setup, sdk.make("Setup")(username="second")) == 409


def test_every_operation_was_called() -> None:
    supported = {one.id for one in OPERATIONS if not one.is_ours and not one.unsupported}
    if len(called) > 1:  # not if this test is asked for alone
        assert supported - called - NEEDS_NO_CLIENT == set()
