"""Whether executors write where the driver looks: under one path each machine may have a disk of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from strandline.blob import BlobStore
from strandline.errors import StorageError, StoreUnavailable
from strandline.ids import new_id


@contextmanager
def marked(target: BlobStore) -> Iterator[str]:
    """A mark in a store, for as long as tasks write there; they look for it first."""
    mark = f".strandline-seen-{new_id()}"
    target.put(mark, b"")
    try:
        yield mark
    finally:
        with suppress(StoreUnavailable):
            target.delete_many([mark])


class Elsewhere(StorageError):
    """A machine has another place where the driver has the target of a copy."""


def is_elsewhere(target: BlobStore, mark: str) -> Elsewhere | None:
    """What a task says instead of writing to what is another place than the driver's."""
    if target.exists(mark):
        return None
    return Elsewhere(
        f"The executor on {socket.gethostname()} does not see what the driver has put at {target.url}.",
        safe="What was written there is not complete, and nothing names it.",
        next="Take an object store, or a folder that is mounted on all executors.",
    )
