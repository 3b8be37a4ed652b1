"""Key-value stores: one narrow interface, one short file a backend."""

from __future__ import annotations

from importlib import import_module

from strandline.errors import InvalidSettings
from strandline.kv.store import ABSENT, Page, Predicate, PredicateFailed, Store

__all__ = ["ABSENT", "ENTRY_POINT_GROUP", "Page", "Predicate", "PredicateFailed", "Store", "open_store"]

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


def open_store(url: str) -> Store:
    """Open the store that a URL names.

    Raises:
        InvalidSettings: nobody knows the scheme, the driver is not installed, or the store refuses its settings.
        StoreUnavailable: it does not answer.
    """
    scheme = url.partition(":")[0].lower()
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
    raise InvalidSettings(
        f"No key-value store is known for {scheme!r}.",
        next=f"Use one of {', '.join(sorted(_OURS))}, or install a package with an entry point in 'strandline.kv'.",
    )
