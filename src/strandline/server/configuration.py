"""How a server is configured: flags over the environment over a TOML file over defaults."""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from strandline.errors import InvalidName, InvalidSettings
from strandline.iam.policy import Network
from strandline.ids import check_ref_name
from strandline.redaction import Secret
from strandline.settings import SETTING_KINDS, Settings, find_settings

PREFIX = "STRANDLINE_SERVE_"
SECRETS = {"secret_key": "STRANDLINE_SECRET_KEY"}
"""These come from the environment only: a file or a command line would show them."""
DEFAULT_FOLDER = "strandline-lake"
"""The lake of a server that is told of none: a folder where it is started."""
CACHE_MIB = 96
"""Of a worker: of all repositories together."""
LAKE_KEYS = ("kv", "blob", "tenant", "synced", "committer", "compaction", "max_format", "cache_mib")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that a server is told.

    Attributes:
        port: 0 for a free one.
        workers: processes that serve; one for a lake in a file.
        public_url: under which clients reach it, if a proxy is in front.
        s3_domain: hosts below it are buckets.
        s3_flat: each bucket is a repository, and keys lie on this branch; "" for keys as ref/path.
        trusted_proxies: addresses, or networks, whose X-Forwarded-For counts.
        access_log: write a line for each request; for those that meet a fault of the server there is one in any case.
        http: "own" for the server's protocol, "plain" for uvicorn's.
        cors: origins whose pages may read answers; never with cookies.
        connections: that a worker holds at most.
        idle_s, head_s: seconds for a connection without a request, and for the head of one.
        object_max_bytes: of an object, or a part, in one request.
        iceberg_credentials: how clients of Iceberg's catalog reach the files of tables on stores like S3: "none", with
            credentials of their own; "signed", the server signs each request; "vended", it lends some of an STS.
        iceberg_role: that the STS lends, narrowed to a table each time.
        iceberg_sts: the endpoint of the STS; "" for Amazon's.
        iceberg_credentials_s: for how long they are lent.
        origins: of each value, where it came from.
    """

    lake: Settings
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    public_url: str = ""
    s3_domain: str = ""
    s3_region: str = "us-east-1"
    s3_flat: str = ""
    cert: str = ""
    key: str = ""
    behind_proxy: bool = False
    trusted_proxies: tuple[str, ...] = ()
    http: str = "own"
    access_log: bool = False
    cors: tuple[str, ...] = ()
    connections: int = 10_000
    idle_s: int = 75
    head_s: int = 10
    object_max_bytes: int = 5 << 30
    iceberg_credentials: str = "none"
    iceberg_role: str = ""
    iceberg_sts: str = ""
    iceberg_credentials_s: int = 3_600
    secret_key: Secret = field(default=Secret(""))
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The proxies that are trusted."""
        return tuple(ipaddress.ip_network(text, strict=False) for text in self.trusted_proxies)


_KINDS: dict[str, type] = {
    "port": int,
    "workers": int,
    "behind_proxy": bool,
    "access_log": bool,
    "trusted_proxies": tuple,
    "cors": tuple,
    "connections": int,
    "idle_s": int,
    "head_s": int,
    "object_max_bytes": int,
    "iceberg_credentials_s": int,
}
_BOUNDS: dict[str, tuple[int, int]] = {
    "port": (0, 65_535),
    "workers": (1, 64),
    "connections": (1, 100_000),
    "idle_s": (1, 86_400),
    "head_s": (1, 3_600),
    "object_max_bytes": (5 << 20, 5 << 30),
    "iceberg_credentials_s": (900, 43_200),
}
_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*", re.ASCII | re.IGNORECASE)


def configure(
    location: str | os.PathLike[str] | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    **flags: Any,
) -> Configuration:
    """Put a configuration together.

    Args:
        location: of the lake: a folder, a TOML file of the lake, or `memory://name`.
        file: a TOML file of the server, with a table `lake` for the settings of the lake.
        flags: what the command line says; None means that it says nothing.

    Raises:
        InvalidSettings: a value is unknown or cannot be.
    """
    env = os.environ if environment is None else environment
    told = _read(Path(file)) if file is not None else {}
    lake_told = told.pop("lake", {})
    if not isinstance(lake_told, dict):
        raise InvalidSettings(f"lake in {str(file)!r} is {lake_told!r}.", next="It is a table, [lake].")
    names = [one.name for one in fields(Configuration) if one.name not in ("lake", "origins", *SECRETS)]
    _refuse_unknown(told, names, str(file))
    _refuse_unknown(lake_told, [*LAKE_KEYS, "folder"], str(file))
    for name, value in lake_told.items():
        if type(value) is not SETTING_KINDS.get(name, str):
            raise InvalidSettings(f"{name} of [lake] in {str(file)!r} is {value!r}.", next="Look at its type.")
    variables = [PREFIX + name.upper() for name in names]
    _refuse_unknown({name: "" for name in env if name.startswith(PREFIX)}, variables, "the environment")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in names:
        for value, origin in (
            (flags.get(name), f"--{name.replace('_', '-')}"),
            (env.get(PREFIX + name.upper()), PREFIX + name.upper()),
            (told.get(name), str(file)),
        ):
            if value is not None:
                values[name], origins[name] = _value(name, value, origin), origin
                break
    if "public_url" in values:
        values["public_url"] = values["public_url"].rstrip("/")
    for name, variable in SECRETS.items():
        values[name] = Secret(env.get(variable, ""))
        if env.get(variable):
            origins[name] = variable
    for name in LAKE_KEYS:
        if flags.get(name) is not None:
            origins[name] = f"--{name}"
        elif lake_told.get(name) is not None:
            origins[name] = str(file)
    lake_flags = {name: flags.get(name) if flags.get(name) is not None else lake_told.get(name) for name in LAKE_KEYS}
    if lake_flags["cache_mib"] is None:
        lake_flags["cache_mib"] = CACHE_MIB
    place = location or lake_told.get("folder")
    is_named = place or lake_flags["kv"] or env.get("STRANDLINE_LAKE") or env.get("STRANDLINE_KV")
    lake = find_settings(place if is_named else DEFAULT_FOLDER, environment=env, **lake_flags)
    origins["lake"] = "FOLDER" if location else str(file) if place else "the environment" if is_named else "the default"
    made = Configuration(lake=lake, **values, origins=origins)
    _check(made)
    return made


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidSettings(f"{str(path)!r} cannot be read: {error.strerror}.", next="Check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{str(path)!r} is not TOML: {error}.", next="Mend the file.") from error


def _refuse_unknown(told: Mapping[str, Any], known: list[str], where: str) -> None:
    unknown = sorted(set(told) - set(known))
    if unknown:
        raise InvalidSettings(
            f"{where!r} has a setting that is not known: {unknown[0]}.", next=f"Known are {', '.join(known)}."
        )


def _value(name: str, value: Any, origin: str) -> Any:
    kind = _KINDS.get(name, str)
    try:
        if kind is bool and isinstance(value, str):
            return {"1": True, "true": True, "0": False, "false": False}[value.lower()]
        if kind is tuple:
            parts = value.split(",") if isinstance(value, str) else value
            if not isinstance(parts, list):
                raise ValueError
            return tuple(str(part).strip() for part in parts if str(part).strip())
        if kind is int and isinstance(value, str):
            return int(value)
    except (KeyError, ValueError):
        pass
    else:
        if type(value) is kind:
            return value
    raise InvalidSettings(f"{origin} is {value!r}.", next=f"{name} is a {kind.__name__}.")


def _check(made: Configuration) -> None:
    wrong = next(
        (
            f"{name} is {getattr(made, name)}: it is {low} to {high}."
            for name, (low, high) in _BOUNDS.items()
            if not low <= getattr(made, name) <= high
        ),
        "",
    )
    if wrong:
        pass
    elif made.http not in ("own", "plain"):
        wrong = f"http is {made.http!r}: it is own or plain."
    elif bool(made.cert) != bool(made.key):
        wrong = "cert and key belong together."
    elif made.public_url and not _is_site(made.public_url):
        wrong = f"public_url is {made.public_url!r}: it is http://HOST or https://HOST, with a port if need be."
    elif made.s3_domain and not _DOMAIN.fullmatch(made.s3_domain):
        wrong = f"s3_domain is {made.s3_domain!r}: it is a name such as lake.example."
    elif made.iceberg_credentials not in ("none", "signed", "vended"):
        wrong = f"iceberg_credentials is {made.iceberg_credentials!r}: expected 'none', 'signed' or 'vended'."
    elif made.iceberg_credentials == "vended" and not made.iceberg_role:
        wrong = "iceberg_credentials is vended, which needs iceberg_role: the role whose rights are lent."
    elif made.iceberg_role and made.iceberg_credentials != "vended":
        wrong = "iceberg_role is given, which is used only if iceberg_credentials is vended."
    elif made.iceberg_sts and not _is_site(made.iceberg_sts):
        wrong = f"iceberg_sts is {made.iceberg_sts!r}: it is http://HOST or https://HOST, with a port if need be."
    elif made.s3_flat and not is_ref_name(made.s3_flat):
        wrong = f"s3_flat is {made.s3_flat!r}: it is the name of a branch."
    elif unfit := [one for one in made.trusted_proxies if not _is_network(one)]:
        wrong = f"trusted_proxies has {unfit[0]!r}: it is an address, or a network such as 10.0.0.0/8."
    elif unfit := [one for one in made.cors if not _is_site(one)]:
        wrong = f"cors has {unfit[0]!r}: an origin is http://HOST or https://HOST, without a slash at its end."
    if wrong:
        raise InvalidSettings(
            f"The configuration cannot be served: {wrong}",
            next="`strandline serve --check` shows where each value comes from.",
        )


def _is_site(text: str) -> bool:
    """Whether a text is the scheme, the host and perhaps the port of a site, and nothing else."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not (parts.path or parts.query or parts.fragment or parts.username)
            and (parts.port or 1) > 0
        )
    except ValueError:
        return False


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def is_ref_name(text: str) -> bool:
    """Whether a branch can have a name."""
    try:
        check_ref_name(text)
    except InvalidName:
        return False
    return True
