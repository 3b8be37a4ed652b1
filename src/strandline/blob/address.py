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
from strandline.redaction import looks_like_url, redacted


def is_absolute(address: str) -> bool:
    """Whether an address is a URL; others are keys in the namespace of the repository."""
    return "://" in address


def open_store(url: str, *, synced: bool = True) -> BlobStore:
    """Open a blob store by URL, or by the path of a folder.

    Raises:
        InvalidSettings: nobody knows the scheme, the URL holds credentials, or the provider refuses the settings.
    """
    if "\0" in url:
        raise InvalidSettings(
            f"{url!r} holds a NUL character, which no place can have.", next="Give a folder, or the URL of a prefix."
        )
    refuse_credentials(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidSettings(f"{url!r} names another machine.", next="Write file:///absolute/path.")
        return LocalBlobStore(unquote(parts.path), synced=synced)
    if "://" not in url:
        return LocalBlobStore(Path(url), synced=synced)
    from strandline.blob.remote import open_remote  # noqa: PLC0415 - a driver

    return open_remote(url)


def refuse_credentials(url: str) -> None:
    """Raise if the URL of an object store holds a user, a password or a key: it would be written into metadata."""
    if looks_like_url(url) and not url.startswith("file:") and redacted(url) != url:
        raise InvalidSettings(
            f"The address of an object store holds credentials: {redacted(url)!r}.",
            next="Take them out of the address, and give them in the environment, as the provider's own tools read "
            "them (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3).",
        )
    try:
        is_valid = not is_absolute(url) or urlsplit(url).port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidSettings(
            f"{url!r} is not the URL of an object store.", next="Write a folder, or scheme://bucket/prefix."
        )


def join_url(base: str, name: str) -> str:
    """The URL of a folder below another one; the query, which holds options, stays at the end."""
    parts = urlsplit(base)
    made = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))
    # of a scheme that it does not know it leaves out an empty name, and what is left would be a folder's
    return made if "://" in made or not parts.scheme else made.replace(":/", ":///", 1)


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
