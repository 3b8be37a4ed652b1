"""Where a lake is and how it is opened: arguments, a TOML file, the environment."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from strandline.blob.address import refuse_credentials
from strandline.envelope import FORMAT_VERSION, NEWEST_FORMAT
from strandline.errors import Advice, InvalidSettings, LakeNotFound
from strandline.ids import check_committer, new_id
from strandline.redaction import SecretUrl, looks_like_url

METADATA_FILE = "metadata.db"
DATA_FOLDER = "data"
SETTINGS_FILE = "strandline.toml"
DEFAULT_TENANT = "default"
CACHE_MIB = 256
SETTING_KINDS: dict[str, type] = {"synced": bool, "compaction": bool, "max_format": int, "cache_mib": int}
"""Of the settings in a file; the others are texts."""
FROM_ENVIRONMENT = ("tenant", "committer", "shard_service", "shard_upkeep")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a lake is and how it is opened.

    Attributes:
        kv: URL of the key-value store, perhaps with a user and a password.
        blob: URL of the object store's root, below which repositories get their namespaces.
        synced: whether local files and SQLite wait for the disk; without, a power loss may lose acknowledged writes,
            a killed process does not.
        committer: recorded when a commit does not name one.
        compaction: whether this process compacts branches and shards in the background when it sees the need.
        max_format: the newest format of records that may be written, for lakes that older versions have to read.
        cache_mib: what this process keeps in memory of the metadata of all repositories together.
        shard_service: addresses of services that decide the changes of shards, with commas between; "" to decide here.
        shard_upkeep: and of those that compact them; "" for `shard_service`.
    """

    kv: SecretUrl
    blob: str
    tenant: str = DEFAULT_TENANT
    synced: bool = True
    committer: str = ""
    compaction: bool = True
    max_format: int = NEWEST_FORMAT
    cache_mib: int = CACHE_MIB
    shard_service: str = ""
    shard_upkeep: str = ""
    folder: Path | None = None


class SettingsInput(TypedDict, total=False):
    """The settings as a caller gives them; None means that one is not given."""

    kv: str | None
    blob: str | None
    tenant: str | None
    synced: bool | None
    committer: str | None
    compaction: bool | None
    max_format: int | None
    cache_mib: int | None
    shard_service: str | None
    shard_upkeep: str | None


def find_settings(
    location: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    **arguments: Unpack[SettingsInput],
) -> Settings:
    """Put the settings together: arguments first, then a TOML file, then the environment.

    Args:
        location: a folder, a TOML file, or `memory://name`. Without it and without `kv` the environment's
            STRANDLINE_LAKE, STRANDLINE_KV, STRANDLINE_BLOB and STRANDLINE_TENANT say where the lake is.
        arguments: settings that come before those of the file and of the environment; None means: not given.

    Raises:
        InvalidSettings: the settings do not name a lake.
    """
    env = os.environ if environment is None else environment
    given: dict[str, Any] = {field.name: None for field in fields(Settings) if field.name != "folder"} | arguments
    if location is None and given["kv"] is None:
        location = env.get("STRANDLINE_LAKE")
        given["kv"] = env.get("STRANDLINE_KV")
        given["blob"] = given["blob"] or env.get("STRANDLINE_BLOB")
    folder: Path | None = None
    if location is not None:
        text = os.fspath(location)
        if text.startswith("memory://"):
            name = text.removeprefix("memory://") or new_id()
            _fill(given, {"kv": f"memory://{name}", "blob": f"memory://{name}"})
        elif looks_like_url(text):
            raise InvalidSettings(
                f"{text!r} is one URL, and a lake has two stores.",
                next=Advice(
                    "Pass kv=… and blob=…, or the path of a folder.",
                    command="Set STRANDLINE_KV and STRANDLINE_BLOB, write both into a TOML file, or name a folder.",
                ),
            )
        else:
            path = Path(text).expanduser().absolute()
            if path.suffix == ".toml" or os.path.isfile(path):
                _fill(given, _read_toml(path))
            else:
                if os.path.isfile(path / SETTINGS_FILE):
                    _fill(given, _read_toml(path / SETTINGS_FILE))
                folder = path
                _fill(
                    given,
                    {
                        "kv": f"sqlite://{quote(str(path / METADATA_FILE))}",
                        "blob": f"file://{quote(str(path / DATA_FOLDER))}",
                    },
                )
    _fill(given, {name: env.get(f"STRANDLINE_{name.upper()}") for name in FROM_ENVIRONMENT})
    if not given["kv"] or not given["blob"]:
        missing = "which key-value store (kv)" if given["blob"] else "which object store (blob)"
        raise InvalidSettings(
            f"It is not said {missing if given['kv'] or given['blob'] else 'where the lake is'}.",
            next=Advice(
                "Pass a folder, or kv=… and blob=…, or set STRANDLINE_LAKE; `strandline init FOLDER` makes a lake.",
                command="Give --lake, or set STRANDLINE_LAKE, or STRANDLINE_KV and STRANDLINE_BLOB; "
                "`strandline init FOLDER` makes a lake.",
            ),
        )
    chosen = {key: value for key, value in given.items() if value is not None}
    if chosen.get("synced") is False and chosen["kv"].startswith("sqlite:") and "sync=" not in chosen["kv"]:
        chosen["kv"] += ("&" if "?" in chosen["kv"] else "?") + "sync=normal"
    if not FORMAT_VERSION <= chosen.get("max_format", NEWEST_FORMAT) <= NEWEST_FORMAT:
        raise InvalidSettings(
            f"max_format is {chosen['max_format']}.", next=f"Give {FORMAT_VERSION} to {NEWEST_FORMAT}, or leave it out."
        )
    if not 1 <= chosen.get("cache_mib", CACHE_MIB) <= 1 << 20:
        raise InvalidSettings(f"cache_mib is {chosen['cache_mib']}.", next="Give a number of MiB, 256 for example.")
    if chosen.get("committer"):
        check_committer(chosen["committer"])
    refuse_credentials(chosen["blob"])
    return Settings(**{**chosen, "kv": SecretUrl(chosen["kv"])}, folder=folder)


def _fill(given: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if given.get(key) is None:
            given[key] = value


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most lakes have no such file

    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise LakeNotFound(f"{str(path)!r} cannot be read: {error.strerror}.", next="Check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{str(path)!r} is not TOML: {error}.", next="Mend the file.") from error
    known = {field.name for field in fields(Settings)} - {"folder"}
    unknown = sorted(set(found) - known)
    wrong = [key for key, value in found.items() if type(value) is not SETTING_KINDS.get(key, str)]
    if wrong and not [key for key in wrong if key in unknown]:
        raise InvalidSettings(
            f"{str(path)!r} gives {wrong[0]} as {found[wrong[0]]!r}.",
            next="synced and compaction are true or false, max_format and cache_mib are numbers; the others are texts.",
        )
    if unknown or wrong:
        raise InvalidSettings(
            f"{str(path)!r} has settings that strandline does not know: {', '.join(unknown or wrong)}.",
            next=f"The settings are {', '.join(sorted(known))}.",
        )
    # paths without a scheme are relative to the file that names them
    if "kv" in found and "://" not in found["kv"]:
        found["kv"] = f"sqlite://{quote(str(path.parent / found['kv']))}"
    if "blob" in found and "://" not in found["blob"]:
        found["blob"] = str(path.parent / found["blob"])
    return found


def portable(settings: Settings) -> Settings:
    """What may travel to another process: the user's name and password stay behind.

    The other process takes them from its own environment (PGUSER, PGPASSWORD, …), or has no access to the metadata.
    """
    return replace(settings, kv=SecretUrl(str(settings.kv)))


def current_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
