"""Key-value stores: one narrow interface, one short file a backend."""

from __future__ import annotations

import re
from importlib import import_module

from strandline.errors import InvalidSettings
from strandline.kv.store import ABSENT, Guard, Guarded, Page, Predicate, PredicateFailed, Store

__all__ = [
    "ABSENT",
    "ENTRY_POINT_GROUP",
    "Guard",
    "Guarded",
    "Page",
    "Predicate",
    "PredicateFailed",
    "Store",
    "open_store",
]

ENTRY_POINT_GROUP = "strandline.kv"
"""Entry points of this group map a URL scheme to a callable that takes the URL and returns a `Store`."""

_OURS = {
    "memory": ("strandline.kv.memory", None),
    "sqlite": ("strandline.kv.sqlite", None),
    "postgres": ("strandline.kv.postgres", "postgres"),
    "postgresql": ("strandline.kv.postgres", "postgres"),
    "redis": ("strandline.kv.redis", "redis"),
    "rediss": ("strandline.kv.redis", "redis"),
}


_SERVERS = tuple(scheme for scheme, (_, extra) in _OURS.items() if extra)


def open_store(url: str) -> Store:
    """Open the store that a URL names.

    Raises:
        InvalidSettings: nobody knows the scheme, the driver is not installed, or the store refuses its settings.
        StoreUnavailable: it does not answer.
    """
    scheme = url.partition(":")[0].lower()
    if scheme in _SERVERS:
        _refuse_malformed(url)
    if scheme == "memory":
        from strandline.kv.memory import MemoryStore  # noqa: PLC0415 - one store of several

        return MemoryStore()
    if scheme in _OURS:
        module, extra = _OURS[scheme]
        try:
            backend = import_module(module)
        except ModuleNotFoundError as error:
            raise InvalidSettings(
                f"{scheme}:// needs the Python package {error.name!r}, which is not installed.",
                next=f"Run: pip install 'strandline[{extra}]'",
            ) from error
        store: Store = backend.open_url(url)
        return store
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load, and only plug-ins need it

    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        if plugin.name == scheme:
            opened: Store = plugin.load()(url)
            return opened
    if "://" not in url:
        raise InvalidSettings(
            f"{url!r} is not the URL of a key-value store.",
            next="Write sqlite:///absolute/path.db, postgresql://user@host/database or redis://host:port/number.",
        )
    raise InvalidSettings(
        f"No key-value store is known for {scheme!r}.",
        next=f"Use one of {', '.join(sorted(_OURS))}, or install a package with an entry point in 'strandline.kv'.",
    )


def _refuse_malformed(url: str) -> None:
    """Raise if a driver would take a part of a password for something else, and show it in its errors."""
    rest = url.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    hosts = authority.rpartition("@")[2]
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if ":" in host.rpartition("]")[2]]
    if rest and authority.count("@") <= 1 and all(not port or port.isdigit() for port in ports):
        return
    raise InvalidSettings(
        f"The URL {url!r} cannot be taken apart.",
        next="Write scheme://user:password@host:port/name; in user and password, write @ as %40, : as %3A, / as %2F, "
        "? as %3F and # as %23.",
    )
