"""A view of a store in which every partition belongs to one tenant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from strandline.errors import InvalidName
from strandline.kv.store import PAGE_KEYS, Guard, Guarded, Page, Predicate, Store

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


class TenantStore(Store):
    """The tenant's name and a slash begin every partition; closing it closes the store beneath."""

    def __init__(self, store: Store, tenant: str) -> None:
        if not _TENANT.fullmatch(tenant):
            raise InvalidName(
                f"{tenant!r} is not a tenant name.",
                next="Use 1 to 63 lower-case letters, digits, '-' and '_', starting with a letter or a digit.",
            )
        self._store = store
        self.shared = store
        """What all tenants share."""
        self._prefix = tenant.encode() + b"/"
        self.guarded_max_pairs = store.guarded_max_pairs

    @property
    def writes_at_once(self) -> bool:
        return self._store.writes_at_once

    def at_once(self) -> AbstractContextManager[None]:
        return self._store.at_once()

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        return self._store.get(self._prefix + partition, key)

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._store.set(self._prefix + partition, key, value)

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        self._store.set_if(self._prefix + partition, key, value, predicate)

    def delete(self, partition: bytes, key: bytes) -> None:
        self._store.delete(self._prefix + partition, key)

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        return self._store.scan_page(self._prefix + partition, start, end, limit)

    def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.get_many(self._prefix + partition, keys)

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self._store.set_many(self._prefix + partition, pairs)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        theirs = guard._replace(partition=self._prefix + guard.partition)
        return self._store.set_many_while(self._prefix + partition, pairs, theirs)

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        self._store.delete_many(self._prefix + partition, keys)

    def close(self) -> None:
        self._store.close()
