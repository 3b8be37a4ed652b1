"""`strandline serve`: workers, signals, the first start."""

from __future__ import annotations

import functools
import gc
import ipaddress
import resource
import secrets
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from strandline.core.promises import SERVED
from strandline.errors import InvalidSettings, LakeNotFound, StoreUnavailable
from strandline.iam.directory import Directory, first_admin
from strandline.iam.sealing import Sealer, secret_file
from strandline.lake import Lake, open_lake
from strandline.operations import warning
from strandline.redaction import Secret
from strandline.server.app import App
from strandline.server.asgi import AsgiApp
from strandline.server.auth.tokens import Tokens
from strandline.server.auth.verifier import Verifier
from strandline.server.configuration import Configuration
from strandline.server.http1 import Http1
from strandline.server.lending.lender import Lender
from strandline.server.links import Links
from strandline.server.services import Options, Services
from strandline.server.supervisor import Supervisor, elsewhere

BACKLOG = 2_048
STOP_WITHIN_S = 10
SECRET_FILE = "server.key"
ADMIN = "admin"
OPEN_FILES = 16_384
OTHER_FILES = 512
"""What a worker opens besides connections: files of objects, of SQLite, of libraries."""


@dataclass(frozen=True, slots=True)
class FirstKeys:
    """The keys of the first admin, which are shown once."""

    access_key_id: str
    secret: Secret


def sealer_of(lake: Lake, configuration: Configuration, *, makes: bool = False) -> Sealer:
    """What encrypts the keys of users: by a secret of the environment, or one beside an embedded lake.

    Args:
        makes: make the file beside an embedded lake, if it is not there.

    Raises:
        InvalidSettings: there is none.
    """
    given = [Secret(text) for text in configuration.secret_key.reveal().split(",") if text]
    if given:
        return Sealer(given)
    folder = lake._settings.folder
    if folder is not None and lake.is_embedded:
        file = Path(folder) / SECRET_FILE
        if not makes and not file.exists():
            raise InvalidSettings(
                f"The file of the secret key, {file}, is gone: without it all access keys are lost.",
                next="Restore it from a copy. To begin with new keys, `strandline serve --new-admin-key` makes one.",
            )
        return Sealer([secret_file(file)])
    if lake._settings.kv.reveal().startswith("memory:"):
        return Sealer([Secret(secrets.token_urlsafe(32))])
    raise InvalidSettings(
        "There is no secret key to encrypt the access keys of users with.",
        next="Set STRANDLINE_SECRET_KEY to a long random text, the same for all servers of the lake, and keep a copy: "
        "without it all access keys are lost.",
    )


def make_services(lake: Lake, configuration: Configuration, address: str) -> Services:
    """What the operations of a worker share."""
    sealer = sealer_of(lake, configuration)
    directory = Directory(lake._kv, lake._clock, sealer)
    tokens = Tokens(*sealer.derive_all("tokens"))
    options = Options(
        address=address,
        s3_domain=configuration.s3_domain,
        s3_region=configuration.s3_region,
        s3_flat=configuration.s3_flat,
        hosts=hosts_of(configuration, address),
        object_max_bytes=configuration.object_max_bytes,
        is_multi=configuration.workers > 1,
        iceberg_credentials=configuration.iceberg_credentials,
    )
    lender = lender_of(configuration)
    verifier = Verifier(directory, tokens, lake._clock)
    links = Links(*sealer.derive_all("links"))
    return Services(lake, directory, verifier, tokens, links, options, lender=lender)


def lender_of(configuration: Configuration) -> Lender:
    """What lends the server's own rights in the object store."""
    return Lender(configuration.iceberg_role, configuration.iceberg_sts, configuration.iceberg_credentials_s)


def set_up(lake: Lake, configuration: Configuration, *, new_key: bool = False) -> FirstKeys | None:
    """Make the first admin if there is none; its keys, or None if it was there.

    Args:
        new_key: make another key of an admin that was there, and give it all rights again.

    Raises:
        InvalidSettings: the server lacks the secret key that the access keys were made with.
    """
    admin = first_admin(lake._kv)
    directory = Directory(lake._kv, lake._clock, sealer_of(lake, configuration, makes=new_key or admin is None))
    if admin is None:
        credential, secret = directory.set_up(ADMIN)
        return FirstKeys(credential.id, secret)
    if new_key:
        credential, secret = directory.bring_back_admin()
        return FirstKeys(credential.id, secret)
    directory.check_secrets()
    directory.reseal()
    return None


def hosts_of(configuration: Configuration, address: str) -> frozenset[str]:
    """By which names clients reach the server, without ports; empty if any will do.

    A page of another site can make a browser ask a server on this machine under a name of its own; such a request has
    that name in its Host header.
    """
    if not is_loopback(configuration.host) or configuration.behind_proxy:
        return frozenset()
    named = urlsplit(address).hostname or ""
    return frozenset({"localhost", "127.0.0.1", "::1", named, configuration.host.lower()})


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        StoreUnavailable: nobody can listen there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        raise StoreUnavailable(
            f"Nobody can listen on {host}:{port}: {error}.", happened="no", next="Choose another --port."
        ) from error
    listening.set_inheritable(True)
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]).is_loopback
    except (OSError, ValueError):
        return False


def refuse_open(configuration: Configuration) -> None:
    """Raise if others could reach the server and read what passes."""
    if is_loopback(configuration.host) or configuration.cert or configuration.behind_proxy:
        return
    raise InvalidSettings(
        f"{configuration.host} can be reached from other machines, and without TLS anybody between could read keys.",
        next="Give --cert and --key, or --behind-proxy if a proxy ends TLS, or serve on 127.0.0.1.",
    )


def serve(
    configuration: Configuration,
    ready: Callable[[str], None],
    made: Callable[[FirstKeys], None],
    *,
    new_admin_key: bool = False,
) -> None:
    """Serve until the process is told to stop; what is under way is ended first.

    Args:
        ready: gets the address when requests are taken.
        made: gets the keys of an admin right after they were made, whatever becomes of the server.
        new_admin_key: make another key of the first admin, and give it all rights again.

    Raises:
        InvalidSettings: the configuration cannot be served.
        StoreUnavailable: the address is taken, or a store cannot be reached.
    """
    refuse_unservable(configuration)
    with bound(configuration.host, configuration.port) as listening:
        port = listening.getsockname()[1]
        address = configuration.public_url or _address(configuration, port)
        if configuration.workers == 1:
            first = prepare(configuration, new_key=new_admin_key)
            if first is not None:
                made(first)
            _run(configuration, address, listening, functools.partial(ready, address))
            return
        told = elsewhere(lambda: _revealed(prepare(configuration, new_key=new_admin_key)))
        if told is not None:
            made(FirstKeys(told[0], Secret(told[1])))
        with tempfile.TemporaryDirectory(prefix="strandline-metrics-") as shared:
            workers = Supervisor(
                configuration.workers,
                lambda announce: _run(configuration, address, listening, announce, Path(shared)),
            )
            workers.run(functools.partial(ready, address))


def refuse_unservable(configuration: Configuration) -> None:
    """Raise `InvalidSettings` if a configuration cannot be served, whatever the stores say."""
    if sys.platform == "win32":
        raise InvalidSettings("The server does not run on Windows.", next="Use Linux, macOS or WSL.")
    refuse_open(configuration)
    if configuration.workers > 1 and configuration.lake.kv.reveal().startswith(("sqlite:", "memory:")):
        raise InvalidSettings(
            "A lake in a SQLite file, or in memory, has one worker.",
            next="Leave --workers out, or keep the metadata in PostgreSQL or Redis.",
        )
    if configuration.iceberg_credentials != "none":
        refuse_unlendable(configuration)
    if configuration.cert:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), configuration)


def refuse_unlendable(configuration: Configuration) -> None:
    """Raise `InvalidSettings` unless the lake is in a store like S3, for which this server has credentials."""
    if urlsplit(configuration.lake.blob).scheme not in ("s3", "s3a"):
        raise InvalidSettings(
            f"iceberg_credentials is {configuration.iceberg_credentials}, and the lake's objects are not in S3.",
            next="Leave --iceberg-credentials out: clients of this lake reach its files with rights of their own.",
        )
    lender_of(configuration).check()


def load_certificate(context: ssl.SSLContext, configuration: Configuration) -> None:
    """Read the certificate and its key; raises `InvalidSettings` if they cannot be used."""
    try:
        context.load_cert_chain(configuration.cert, configuration.key)
    except OSError as error:
        raise InvalidSettings(
            f"The certificate {configuration.cert!r} or its key {configuration.key!r} cannot be used: {error}.",
            next="Check both files.",
        ) from error


def check(configuration: Configuration) -> list[tuple[str, object, str]]:
    """What a server would be started with: each value and where it comes from.

    Raises:
        InvalidSettings, StoreUnavailable: what is wrong. Nothing is made.
    """
    refuse_unservable(configuration)
    origins = configuration.origins
    settings, where = configuration.lake, origins.get("lake", "the default")
    rows: list[tuple[str, object, str]] = [
        ("lake", settings.folder or settings.kv, origins.get("kv", where)),
        ("objects", settings.blob, origins.get("blob", where)),
    ]
    more = ("tenant", "synced", "committer", "compaction", "max_format", "cache_mib")
    rows += [(name, getattr(settings, name), origins.get(name, where)) for name in more]
    kept = ("lake", "origins", "secret_key")
    names = [one.name for one in fields(configuration) if one.name not in kept]
    rows += [(name, getattr(configuration, name), origins.get(name, "the default")) for name in names]
    try:
        with open_lake(configuration.lake) as lake:
            admin = first_admin(lake._kv)
            rows.append(("admin", admin or "none yet: the first start makes one", "the lake"))
            if admin is not None:
                Directory(lake._kv, lake._clock, sealer_of(lake, configuration)).check_secrets()
    except LakeNotFound:
        if configuration.lake.folder is None:
            raise
        rows.append(("admin", "none yet: the first start makes the lake and one", "the lake"))
    with bound(configuration.host, configuration.port):
        pass
    if configuration.behind_proxy and not configuration.trusted_proxies:
        told = "trusted_proxies is empty: all callers have the proxy's address, for policies and for the login limit"
        rows.append(("warning", told, "--behind-proxy"))
    return rows


def prepare(configuration: Configuration, *, new_key: bool = False) -> FirstKeys | None:
    """Make the lake, if it is a folder that is not there, and the first admin; returns the keys of a new one."""
    lake = open_lake(configuration.lake, create=configuration.lake.folder is not None)
    with lake:
        lake._kv.set(*SERVED, b"1")
        return set_up(lake, configuration, new_key=new_key)


def _revealed(first: FirstKeys | None) -> tuple[str, str] | None:
    return None if first is None else (first.access_key_id, first.secret.reveal())


def _address(configuration: Configuration, port: int) -> str:
    host = configuration.host if configuration.host not in ("0.0.0.0", "::") else socket.gethostname()
    return f"{'https' if configuration.cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _run(
    configuration: Configuration,
    address: str,
    listening: socket.socket,
    announce: Callable[[], None],
    shared: Path | None = None,
) -> None:
    make = functools.partial(make_app, configuration, address, shared, raise_open_files())
    application = AsgiApp(make)
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http=functools.partial(_protocol, application) if configuration.http == "own" else "httptools",  # type: ignore[arg-type]
        interface="asgi3",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=STOP_WITHIN_S,
        ssl_certfile=configuration.cert or None,
        ssl_keyfile=configuration.key or None,
        backlog=BACKLOG,
    )
    config.load()

    def reload() -> None:
        if config.ssl is not None:
            try:
                load_certificate(config.ssl, configuration)
            except InvalidSettings as error:
                warning("the certificate was not read anew: %s", error)

    # the server raises the signal that ended it once more: by then it shall not end the process, which cleans up
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: reload())
    try:
        _Server(config, announce).run(sockets=[listening])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


def raise_open_files() -> int:
    """Let the process have as many open files as it may; returns how many connections that leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(64, soft - OTHER_FILES) if soft != resource.RLIM_INFINITY else OPEN_FILES


def make_app(configuration: Configuration, address: str, shared: Path | None = None, connections: int = 0) -> App:
    """The application of a worker, with a lake of its own.

    Args:
        shared: a folder in which workers leave their metrics for each other; None for one worker.
        connections: how many there is room for; 0 for no other limit than the configuration's.
    """
    lake = open_lake(configuration.lake)
    app = App(make_services(lake, configuration, address), shared)
    app.connections.trusted_proxies = configuration.networks
    app.connections.most = min(configuration.connections, connections or configuration.connections)
    app.connections.origins = frozenset(one.encode() for one in configuration.cors)
    app.connections.idle_s, app.connections.head_s = float(configuration.idle_s), float(configuration.head_s)
    app.access_log = configuration.access_log
    app.services.verifier.look()
    # what is here stays: a collection of garbage that walks over it again and again is felt by every request
    gc.collect()
    gc.freeze()
    return app


def _protocol(application: AsgiApp, *, server_state: Any, **_: Any) -> Http1:
    assert application.app is not None
    return Http1(application.app.connections, server_state)
