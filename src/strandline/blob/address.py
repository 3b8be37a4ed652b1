"""Where bytes are: from a physical address in the metadata to a store and a key in it.

A relative address is a key in the storage namespace of the repository, so that a lake can be moved as a folder. An
absolute one, a URL, is an object that was imported by reference.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from strandline import forks
from strandline.blob.local import LocalBlobStore
from strandline.blob.store import BlobStore
from strandline.errors import InvalidSettings


def is_absolute(address: str) -> bool:
    """Whether an address is a URL; others are keys in the namespace of the repository."""
    return "://" in address


def open_store(url: str, *, synced: bool = True) -> BlobStore:
    """Open a blob store by URL, or by the path of a folder.

    Raises:
        InvalidSettings: nobody knows the scheme, or the provider refuses the settings.
    """
    if "\0" in url:
        raise InvalidSettings(
            f"{url!r} holds a NUL character, which no place can have.", next="Give a folder, or the URL of a prefix."
        )
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidSettings(f"{url!r} names another machine.", next="Write file:///absolute/path.")
        return LocalBlobStore(unquote(parts.path), synced=synced)
    if "://" not in url:
        return LocalBlobStore(Path(url), synced=synced)
    from strandline.blob.remote import open_remote  # noqa: PLC0415 - a driver

    return open_remote(url)


def join_url(base: str, name: str) -> str:
    """The URL of a folder below another one; the query, which holds options, stays at the end."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


class Resolver:
    """Finds the store and the key of an address, and keeps the stores of imported objects open.

    Args:
        namespace: the store that relative addresses belong to.
    """

    def __init__(self, namespace: BlobStore) -> None:
        self.namespace = namespace
        self._foreign: dict[str, BlobStore] = {}
        self._lock = forks.lock()

    def resolve(self, address: str) -> tuple[BlobStore, str]:
        """The store that an address lies in, and its key there."""
        if not is_absolute(address):
            return self.namespace, address
        parts = urlsplit(address)
        root = urlunsplit(parts._replace(path="/"))
        with self._lock:
            if root not in self._foreign:
                self._foreign[root] = open_store(root)
            return self._foreign[root], unquote(parts.path).lstrip("/")
