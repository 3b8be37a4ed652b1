"""What clients ask first: configuration, health, setup, and what the server can do."""

from __future__ import annotations

from strandline import __version__
from strandline.redaction import Secret
from strandline.server.messages import Response
from strandline.server.namespaces import blockstore_type, example
from strandline.server.operation import KNOWN, Call, Operation, everything
from strandline.server.rest import shapes
from strandline.server.rest.replies import json, nothing, secret_json

SPOKEN = "1.84.0"
"""The version of lakeFS whose interface this is; its clients read it as numbers with dots."""
_ANY = ".*"


def get_config(call: Call) -> Response:
    # any user may ask what this is; without the right to read it, nothing of the store is said
    storage = storage_config(call) if call.may("fs:ReadConfig", "*") else shapes.StorageConfig()
    version = shapes.VersionConfig(SPOKEN, f"strandline {__version__}")
    return json(200, shapes.Config(version, storage))


def storage_config(call: Call) -> shapes.StorageConfig:
    """What clients ask about the object store."""
    lake = call.services.lake
    kind = blockstore_type(lake)
    return shapes.StorageConfig(
        blockstore_type=kind,
        blockstore_namespace_example=example(lake),
        blockstore_namespace_ValidityRegex=f"^{kind}://",
        # where the server would have to take the bytes itself, a link makes three requests of one
        pre_sign_support=kind not in ("local", "mem"),
        pre_sign_support_ui=False,
        import_support=True,
        import_validity_regex=_ANY,
    )


def get_storage_config(call: Call) -> Response:
    return json(200, storage_config(call))


def get_version(_: Call) -> Response:
    return json(200, shapes.VersionConfig(SPOKEN, f"strandline {__version__}"))


def get_health(_: Call) -> Response:
    return nothing()


def get_setup_state(call: Call) -> Response:
    state = "initialized" if call.services.directory.admin() is not None else "not_initialized"
    login = shapes.LoginConfig("internal", "/auth/login", "/logout", ["internal_auth_session"])
    return json(200, shapes.SetupState(state, login))  # type: ignore[arg-type]


def set_up(call: Call) -> Response:
    given = call.body.key
    key = None if given is None else (given.access_key_id, Secret(given.secret_access_key))
    credential, secret = call.services.directory.set_up(call.body.username, key)
    created_s = credential.created_at // 1_000_000
    return secret_json(200, shapes.CredentialsWithSecret(credential.id, secret.reveal(), created_s))


def get_auth_capabilities(_: Call) -> Response:
    return json(200, shapes.AuthCapabilities())


def drop_statistics(_: Call) -> Response:
    return nothing()


OPERATIONS = (
    Operation(
        "healthCheck",
        "GET",
        "/healthcheck",
        None,
        get_health,
        "Whether the server runs",
        {204: None},
        "health",
        cost="quick",
    ),
    Operation(
        "getConfig",
        "GET",
        "/config",
        KNOWN,
        get_config,
        "The server's configuration",
        {200: shapes.Config},
        "config",
        cost="quick",
    ),
    Operation(
        "getStorageConfig",
        "GET",
        "/config/storage",
        everything("fs:ReadConfig"),
        get_storage_config,
        "The object store",
        {200: shapes.StorageConfig},
        "config",
        cost="quick",
    ),
    Operation(
        "getLakeFSVersion",
        "GET",
        "/config/version",
        everything("fs:ReadConfig"),
        get_version,
        "The version",
        {200: shapes.VersionConfig},
        "config",
        cost="quick",
    ),
    Operation(
        "getSetupState",
        "GET",
        "/setup_lakefs",
        None,
        get_setup_state,
        "Whether the server has an admin",
        {200: shapes.SetupState},
        "config",
    ),
    Operation(
        "setup",
        "POST",
        "/setup_lakefs",
        None,
        set_up,
        "Make the first admin",
        {200: shapes.CredentialsWithSecret},
        "config",
        body=shapes.Setup,
        body_max=4 << 10,
    ),
    Operation(
        "getAuthCapabilities",
        "GET",
        "/auth/capabilities",
        None,
        get_auth_capabilities,
        "What the server can do with users",
        {200: shapes.AuthCapabilities},
        "auth",
        cost="quick",
    ),
    Operation(
        "postStatsEvents",
        "POST",
        "/statistics",
        KNOWN,
        drop_statistics,
        "Statistics of clients, which are dropped",
        {204: None},
        "config",
        body=dict,
        cost="quick",
    ),
)
