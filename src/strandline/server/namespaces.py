"""Storage namespaces as clients of lakeFS write them, and as the lake knows them.

A client never names a folder of the server: `local://name` is one below the lake's own object store.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

from strandline.blob import is_absolute, join_url
from strandline.core.record import RepositoryRecord
from strandline.lake import Lake
from strandline.server.refusals import BadRequest

LOCAL_SCHEMES = {"file": "local", "memory": "mem"}
_PLACE = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)
_REMOTE = ("s3", "gs", "az", "abfs", "abfss", "https")


def blockstore_type(lake: Lake) -> str:
    """What lakeFS's clients call the kind of the object store."""
    scheme = urlsplit(root_url(lake)).scheme
    return LOCAL_SCHEMES.get(scheme, {"az": "azure", "abfs": "azure", "abfss": "azure"}.get(scheme, scheme))


def root_url(lake: Lake) -> str:
    """The URL of the folder that the lake's own namespaces lie in, without a slash at its end."""
    root = lake._settings.blob
    return root.rstrip("/") if "://" in root else f"file://{quote(root.rstrip('/'))}"


def namespace_of(lake: Lake, given: str) -> str | None:
    """The namespace of a new repository, from what a client wrote; None for one of the lake's choice.

    Raises:
        BadRequest: it is not one that this server makes.
    """
    if not given:
        return None
    scheme, separator, place = given.partition("://")
    place = place.rstrip("/")
    kind = blockstore_type(lake)
    if not separator or not place:
        raise BadRequest(f"{given[:80]!r} is not a storage namespace.", next=f"Write {example(lake)}.")
    if scheme in ("local", "mem"):
        is_fine = _PLACE.fullmatch(place) and not place.startswith("_") and not {".", ".."} & set(place.split("/"))
        if kind != scheme or not is_fine:
            raise BadRequest(
                f"{given[:80]!r} is not a storage namespace of this server.",
                next=f"Write {example(lake)}: letters, digits, '.', '_', '-' and '/', below the server's own folder.",
            )
        return join_url(root_url(lake), place)
    if scheme not in _REMOTE or kind in ("local", "mem") or set(place) & set("?#@"):
        raise BadRequest(f"This server keeps no bytes at {scheme}:// addresses.", next=f"Write {example(lake)}.")
    return in_reach(lake, given.rstrip("/"))


def example(lake: Lake) -> str:
    """A storage namespace that a client could give."""
    kind = blockstore_type(lake)
    return f"{kind}://name" if kind in ("local", "mem") else f"{root_url(lake).partition('?')[0]}/name"


def shown_namespace(lake: Lake, record: RepositoryRecord) -> str:
    """The namespace of a repository as clients know it."""
    return _shown(lake, lake._namespace_url(record).partition("?")[0])


def _shown(lake: Lake, url: str) -> str:
    kind, root = blockstore_type(lake), root_url(lake).partition("?")[0]
    if kind in ("local", "mem"):
        below = url.removeprefix(root + "/") if url.startswith(root + "/") else url.partition("://")[2].lstrip("/")
        return f"{kind}://{unquote(below)}"
    return url


def in_reach(lake: Lake, url: str) -> str:
    """A URL in an object store, with the endpoint and the region of the lake's own store if it is of the same kind."""
    own = urlsplit(root_url(lake))
    return f"{url}?{own.query}" if own.query and own.scheme == urlsplit(url).scheme else url


def shown_address(namespace: str, address: str) -> str:
    """A physical address as clients know it, a whole URL, from a shown namespace."""
    return address if is_absolute(address) else f"{namespace}/{address}"


def address_below(shown: str, namespace: str) -> str | None:
    """The key of a shown address in a shown namespace; None if it lies elsewhere."""
    if not shown.startswith(namespace + "/"):
        return None
    key = shown[len(namespace) + 1 :]
    return key if key and not {"", ".", ".."} & set(key.split("/")) else None
