"""Users, groups, policies, access keys, logging in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from strandline.errors import NotFound
from strandline.iam.directory import Directory
from strandline.iam.records import Credential, Group, Policy, Statement, User
from strandline.server.auth.verifier import COOKIE
from strandline.server.messages import Response
from strandline.server.operation import KNOWN, Call, Need, Operation, everything
from strandline.server.rest import shapes
from strandline.server.rest.replies import amount_of, json, nothing, page, secret_json


class Effective(msgspec.Struct, frozen=True):
    """The parameters of a list of a user's policies."""

    prefix: str = ""
    after: str = ""
    amount: shapes.Amount = shapes.PAGE_DEFAULT
    effective: bool = False


def user_shape(user: User) -> shapes.User:
    """A user in the shape of the interface."""
    return shapes.User(user.name, user.created_at // 1_000_000, user.friendly_name, user.email)


def group_shape(group: Group) -> shapes.Group:
    """A group in the shape of the interface."""
    return shapes.Group(group.name, group.created_at // 1_000_000, group.name, group.description)


def policy_shape(policy: Policy) -> shapes.Policy:
    """A policy in the shape of the interface."""
    statements = [
        shapes.Statement(one.effect, one.resource, list(one.action), one.condition) for one in policy.statements
    ]
    return shapes.Policy(id=policy.name, creation_date=policy.created_at // 1_000_000, statement=statements)


def _statements(given: shapes.Policy) -> tuple[Statement, ...]:
    return tuple(Statement(one.effect, tuple(one.action), one.resource, one.condition) for one in given.statement)


def key_shape(credential: Credential) -> shapes.Credentials:
    """An access key in the shape of the interface."""
    return shapes.Credentials(credential.id, credential.created_at // 1_000_000)


def _directory(call: Call) -> Directory:
    return call.services.directory


def _listed(call: Call, rows: Any, kind: Any, shape: Any, name: str = "name") -> Response:
    kept, pagination = page(rows, amount_of(call.query.amount), lambda row: str(getattr(row, name)))
    return json(200, kind(pagination, [shape(row) for row in kept]))


def _span(call: Call) -> tuple[str, str, int]:
    return call.query.prefix, call.query.after, amount_of(call.query.amount) + 1


# --- logging in -----------------------------------------------------------------------------------------------------


def get_current_user(call: Call) -> Response:
    user = _directory(call).get(User, call.principal.user)
    return json(200, shapes.CurrentUser(user_shape(user)))


def log_in(call: Call) -> Response:
    given: shapes.LoginInformation = call.body
    token, expires_s = call.services.verifier.log_in(given.access_key_id, given.secret_access_key, call.request.peer)
    answer = secret_json(200, shapes.AuthenticationToken(token, expires_s))
    # Lax: a page of another site cannot make a browser send it with a request that changes something
    secure = "; Secure" if call.request.is_secure else ""
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"
    answer.headers = (*answer.headers, (b"Set-Cookie", cookie.encode()))
    return answer


def log_out_everywhere(call: Call) -> Response:
    _directory(call).end_sessions(call.path["user"])
    return nothing()


# --- users ----------------------------------------------------------------------------------------------------------


def list_users(call: Call) -> Response:
    return _listed(call, _directory(call).every(User, *_span(call)), shapes.UserList, user_shape)


def create_user(call: Call) -> Response:
    given: shapes.UserCreation = call.body
    made = _directory(call).create_user(given.id, given.friendlyName, given.email)
    return json(201, user_shape(made))


def get_user(call: Call) -> Response:
    return json(200, user_shape(_directory(call).get(User, call.path["user"])))


def delete_user(call: Call) -> Response:
    _directory(call).delete_user(call.path["user"])
    return nothing()


def list_user_groups(call: Call) -> Response:
    _directory(call).get(User, call.path["user"])
    rows = _directory(call).groups_of(call.path["user"], *_span(call))
    return _listed(call, rows, shapes.GroupList, group_shape)


def list_user_policies(call: Call) -> Response:
    user = _directory(call).get(User, call.path["user"]).name
    rows: Iterable[Policy]
    if call.query.effective:
        rows = _directory(call).effective_policies(user, *_span(call))
    else:
        rows = _directory(call).policies_of("user", user, *_span(call))
    return _listed(call, rows, shapes.PolicyList, policy_shape)


def attach_to_user(call: Call) -> Response:
    _directory(call).attach(call.path["policy"], "user", call.path["user"])
    return nothing(201)


def detach_from_user(call: Call) -> Response:
    _directory(call).detach(call.path["policy"], "user", call.path["user"])
    return nothing()


# --- access keys ----------------------------------------------------------------------------------------------------


def list_credentials(call: Call) -> Response:
    rows = _directory(call).credentials(call.path["user"], call.query.after, amount_of(call.query.amount) + 1)
    return _listed(call, rows, shapes.CredentialsList, key_shape, "id")


def create_credentials(call: Call) -> Response:
    made, secret = _directory(call).create_credential(call.path["user"])
    return secret_json(201, shapes.CredentialsWithSecret(made.id, secret.reveal(), made.created_at // 1_000_000))


def get_credentials(call: Call) -> Response:
    rows = _directory(call).credentials(call.path["user"])
    found = next((one for one in rows if one.id == call.path["credential"]), None)
    if found is None:
        raise NotFound(f"The user has no access key {call.path['credential'][:80]!r}.", next="List its keys.")
    return json(200, key_shape(found))


def delete_credentials(call: Call) -> Response:
    _directory(call).delete_credential(call.path["user"], call.path["credential"])
    return nothing()


# --- groups ---------------------------------------------------------------------------------------------------------


def list_groups(call: Call) -> Response:
    return _listed(call, _directory(call).every(Group, *_span(call)), shapes.GroupList, group_shape)


def create_group(call: Call) -> Response:
    return json(201, group_shape(_directory(call).create_group(call.body.id, call.body.description)))


def get_group(call: Call) -> Response:
    return json(200, group_shape(_directory(call).get(Group, call.path["group"])))


def delete_group(call: Call) -> Response:
    _directory(call).delete_group(call.path["group"])
    return nothing()


def list_members(call: Call) -> Response:
    return _listed(call, _directory(call).members(call.path["group"], *_span(call)), shapes.UserList, user_shape)


def add_member(call: Call) -> Response:
    _directory(call).add_member(call.path["group"], call.path["user"])
    return nothing(201)


def remove_member(call: Call) -> Response:
    _directory(call).remove_member(call.path["group"], call.path["user"])
    return nothing()


def list_group_policies(call: Call) -> Response:
    group = _directory(call).get(Group, call.path["group"]).name
    return _listed(call, _directory(call).policies_of("group", group, *_span(call)), shapes.PolicyList, policy_shape)


def attach_to_group(call: Call) -> Response:
    _directory(call).attach(call.path["policy"], "group", call.path["group"])
    return nothing(201)


def detach_from_group(call: Call) -> Response:
    _directory(call).detach(call.path["policy"], "group", call.path["group"])
    return nothing()


# --- policies -------------------------------------------------------------------------------------------------------


def list_policies(call: Call) -> Response:
    return _listed(call, _directory(call).every(Policy, *_span(call)), shapes.PolicyList, policy_shape)


def create_policy(call: Call) -> Response:
    return json(201, policy_shape(_directory(call).create_policy(call.body.id, _statements(call.body))))


def get_policy(call: Call) -> Response:
    return json(200, policy_shape(_directory(call).get(Policy, call.path["policy"])))


def update_policy(call: Call) -> Response:
    return json(200, policy_shape(_directory(call).change_policy(call.path["policy"], _statements(call.body))))


def delete_policy(call: Call) -> Response:
    _directory(call).delete_policy(call.path["policy"])
    return nothing()


def _on(action: str, kind: str) -> Need:
    return Need(f"auth:{action}", f"arn:lakefs:auth:::{kind}/{{{kind}}}")


_USERS, _GROUPS, _POLICIES = "/auth/users", "/auth/groups", "/auth/policies"
_USER, _GROUP, _POLICY = _USERS + "/{user}", _GROUPS + "/{group}", _POLICIES + "/{policy}"
_KEYS = _USER + "/credentials"

OPERATIONS = (
    Operation(
        "getCurrentUser",
        "GET",
        "/user",
        KNOWN,
        get_current_user,
        "The user that asks",
        {200: shapes.CurrentUser},
        "auth",
    ),
    Operation(
        "login",
        "POST",
        "/auth/login",
        None,
        log_in,
        "Get a token for an access key",
        {200: shapes.AuthenticationToken},
        "auth",
        body=shapes.LoginInformation,
        body_max=4 << 10,
    ),
    Operation(
        "endSessions",
        "DELETE",
        _USER + "/sessions",
        _on("DeleteUser", "user"),
        log_out_everywhere,
        "Make all tokens of a user void",
        {204: None},
        "auth",
        is_ours=True,
        revokes=True,
    ),
    Operation(
        "listUsers",
        "GET",
        _USERS,
        everything("auth:ListUsers"),
        list_users,
        "Users by name",
        {200: shapes.UserList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "createUser",
        "POST",
        _USERS,
        Need("auth:CreateUser", "arn:lakefs:auth:::user/{id}"),
        create_user,
        "Make a user",
        {201: shapes.User},
        "auth",
        body=shapes.UserCreation,
        needs_body=True,
    ),
    Operation("getUser", "GET", _USER, _on("ReadUser", "user"), get_user, "A user", {200: shapes.User}, "auth"),
    Operation(
        "deleteUser",
        "DELETE",
        _USER,
        _on("DeleteUser", "user"),
        delete_user,
        "Delete a user with its keys",
        {204: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "listUserGroups",
        "GET",
        _USER + "/groups",
        _on("ReadUser", "user"),
        list_user_groups,
        "The groups of a user",
        {200: shapes.GroupList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "listUserPolicies",
        "GET",
        _USER + "/policies",
        _on("ReadUser", "user"),
        list_user_policies,
        "The policies of a user",
        {200: shapes.PolicyList},
        "auth",
        query=Effective,
    ),
    Operation(
        "attachPolicyToUser",
        "PUT",
        _USER + "/policies/{policy}",
        _on("AttachPolicy", "user"),
        attach_to_user,
        "Give a user a policy",
        {201: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "detachPolicyFromUser",
        "DELETE",
        _USER + "/policies/{policy}",
        _on("DetachPolicy", "user"),
        detach_from_user,
        "Take a policy from a user",
        {204: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "listUserCredentials",
        "GET",
        _KEYS,
        _on("ListCredentials", "user"),
        list_credentials,
        "The access keys of a user",
        {200: shapes.CredentialsList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "createCredentials",
        "POST",
        _KEYS,
        _on("CreateCredentials", "user"),
        create_credentials,
        "Make an access key",
        {201: shapes.CredentialsWithSecret},
        "auth",
    ),
    Operation(
        "getCredentials",
        "GET",
        _KEYS + "/{credential}",
        _on("ReadCredentials", "user"),
        get_credentials,
        "An access key without its secret",
        {200: shapes.Credentials},
        "auth",
    ),
    Operation(
        "deleteCredentials",
        "DELETE",
        _KEYS + "/{credential}",
        _on("DeleteCredentials", "user"),
        delete_credentials,
        "Make an access key void",
        {204: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "listGroups",
        "GET",
        _GROUPS,
        everything("auth:ListGroups"),
        list_groups,
        "Groups by name",
        {200: shapes.GroupList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "createGroup",
        "POST",
        _GROUPS,
        Need("auth:CreateGroup", "arn:lakefs:auth:::group/{id}"),
        create_group,
        "Make a group",
        {201: shapes.Group},
        "auth",
        body=shapes.GroupCreation,
        needs_body=True,
    ),
    Operation("getGroup", "GET", _GROUP, _on("ReadGroup", "group"), get_group, "A group", {200: shapes.Group}, "auth"),
    Operation(
        "deleteGroup",
        "DELETE",
        _GROUP,
        _on("DeleteGroup", "group"),
        delete_group,
        "Delete a group",
        {204: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "listGroupMembers",
        "GET",
        _GROUP + "/members",
        _on("ReadGroup", "group"),
        list_members,
        "The users of a group",
        {200: shapes.UserList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "addGroupMembership",
        "PUT",
        _GROUP + "/members/{user}",
        _on("AddGroupMember", "group"),
        add_member,
        "Put a user into a group",
        {201: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "deleteGroupMembership",
        "DELETE",
        _GROUP + "/members/{user}",
        _on("RemoveGroupMember", "group"),
        remove_member,
        "Take a user out of a group",
        {204: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "listGroupPolicies",
        "GET",
        _GROUP + "/policies",
        _on("ReadGroup", "group"),
        list_group_policies,
        "The policies of a group",
        {200: shapes.PolicyList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "attachPolicyToGroup",
        "PUT",
        _GROUP + "/policies/{policy}",
        _on("AttachPolicy", "group"),
        attach_to_group,
        "Give a group a policy",
        {201: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "detachPolicyFromGroup",
        "DELETE",
        _GROUP + "/policies/{policy}",
        _on("DetachPolicy", "group"),
        detach_from_group,
        "Take a policy from a group",
        {204: None},
        "auth",
        revokes=True,
    ),
    Operation(
        "listPolicies",
        "GET",
        _POLICIES,
        everything("auth:ListPolicies"),
        list_policies,
        "Policies by name",
        {200: shapes.PolicyList},
        "auth",
        query=shapes.Page,
    ),
    Operation(
        "createPolicy",
        "POST",
        _POLICIES,
        Need("auth:CreatePolicy", "arn:lakefs:auth:::policy/{id}"),
        create_policy,
        "Make a policy",
        {201: shapes.Policy},
        "auth",
        body=shapes.Policy,
        needs_body=True,
    ),
    Operation(
        "getPolicy", "GET", _POLICY, _on("ReadPolicy", "policy"), get_policy, "A policy", {200: shapes.Policy}, "auth"
    ),
    Operation(
        "updatePolicy",
        "PUT",
        _POLICY,
        _on("UpdatePolicy", "policy"),
        update_policy,
        "Replace the statements of a policy",
        {200: shapes.Policy},
        "auth",
        body=shapes.Policy,
        revokes=True,
    ),
    Operation(
        "deletePolicy",
        "DELETE",
        _POLICY,
        _on("DeletePolicy", "policy"),
        delete_policy,
        "Delete a policy",
        {204: None},
        "auth",
        revokes=True,
    ),
)
