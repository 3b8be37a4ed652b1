"""One change of a ref's tables and namespaces: decided on what is there, stored, and landed if that is there still."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from blake3 import blake3

from strandline.blob import BlobStore
from strandline.core.repository_core import RepositoryCore
from strandline.errors import StrandlineError, UsageError
from strandline.iceberg.landing import Landing, Once, Plan, landing_of
from strandline.iceberg.metadata_cache import MetadataCache
from strandline.iceberg.refusals import Stale
from strandline.repository.commits.drafts import make_draft
from strandline.repository.objects.writable import Writable
from strandline.repository.refs.ref import Ref
from strandline.tree.rows import Entry, user_metadata_json

ATTEMPTS = 20
"""How often a change is decided anew when others publish at the same time."""
JSON = "application/json"


class OnRef:
    """What is read at a ref, and landed there if it is a branch or an open transaction.

    Args:
        ref: a branch, a transaction, or any other ref, to read.
        committer: of the commits; by default the lake's.
        writer: the name by which a protection of the branch may allow changes.
        stages: changes of a branch are staged, not committed.
        once: what a repetition of the one change that is asked for is recognised by.
        cache: of metadata that was read, shared with others.
    """

    def __init__(
        self,
        ref: Ref,
        *,
        committer: str | None = None,
        writer: str = "iceberg",
        stages: bool = False,
        once: Once | None = None,
        cache: MetadataCache | None = None,
    ) -> None:
        self._ref = ref
        self._core = ref._core
        self._committer = committer
        self._cache = MetadataCache() if cache is None else cache
        self._landing: Landing = landing_of(ref, writer, once, stages=stages)
        folder = self._core.resolver.namespace.local_path("x") or ""
        if set(folder) & set("#?"):
            raise UsageError(
                f"Iceberg's clients cannot read below the folder {folder[:-2]!r}: they cut addresses at '#' and '?'.",
                next="Move the lake to a folder without them.",
            )

    @property
    def files_part(self) -> str:
        """What this ref's files lie below, of each table; "" if nothing is written here."""
        return self._landing.part

    def _head(self, folder: str = "") -> Ref:
        """What is there as of now.

        Args:
            folder: that a reader looks into: on a branch it must not be quarantined.
        """
        return self._landing.shown(folder)

    def _publish(self, decide: Callable[[Ref], Plan], again: Callable[[Ref], Any] = lambda _: None) -> Any:
        """Land what is decided on what is there, whatever that is by then.

        Invariant: a plan lands only if each path that it was decided on holds what it held when it was read
        (`one_shot.publish`, and what other landings demand). What was stored for a plan that surely did not land is
        deleted again. A repetition is looked for in the very state that is decided on, so that no state in which the
        change is there already can refuse it.

        Args:
            again: the result of a change that was made before, from the state that it made.
        """
        landing = self._landing
        for _ in range(ATTEMPTS):
            with landing.turn():
                there = landing.now()
                if there.made is not None:
                    return again(there.made)
                plan = decide(there.ref)
                if not plan.changes:
                    return plan.result
                landed = self._land(plan)
                if landed == "done":
                    return plan.result
                if isinstance(landed, Ref):
                    return again(landed)
        raise Stale(
            f"Others kept publishing to branch {self._ref.place!r}, {ATTEMPTS} times in a row.", next="Repeat the call."
        )

    def _land(self, plan: Plan) -> Any:
        """Store what a plan needs, and land it; see `Landing.land`."""
        draft = make_draft(self._core, plan.message, plan.metadata, self._committer)
        try:
            for key, data in plan.files.items():
                self._core.resolver.namespace.put(key, data, "fresh")
            landed = self._landing.land(plan, draft)
        except StrandlineError as error:
            if getattr(error, "happened", "no") == "no":  # else the branch may name the files
                self._forget(plan)
            raise
        if landed != "done":
            self._forget(plan)
        return landed

    def _forget(self, plan: Plan) -> None:
        with suppress(StrandlineError):  # what stays is garbage
            self._core.resolver.namespace.delete_many(sorted(plan.files))

    def _stored(self, plan: Plan, key: str, data: bytes, metadata: dict[str, str] | None) -> Entry:
        """The entry of what is stored when the plan is published."""
        plan.files[key] = data
        now_us = self._core.stores.clock.now_us()
        checksum = f"blake3:{blake3(data).hexdigest()}"
        return Entry(key, len(data), checksum, now_us, JSON, user_metadata_json(metadata))

    def _new_key(self, path: str) -> str:
        """A fresh physical key for a small object of a branch or a transaction."""
        assert isinstance(self._ref, Writable)
        return self._ref._new_key(path)

    def _url(self, key: str) -> str:
        """Where clients find a file: of a folder its plain path, which they do not decode."""
        return url_of(self._core.resolver.namespace, key)

    def url_of(self, key: str) -> str:
        """Where clients find a file of the storage namespace."""
        return self._url(key)

    @property
    def namespace_url(self) -> str:
        """Of the storage namespace, without what is secret."""
        return self._core.resolver.namespace.url

    @property
    def blobs(self) -> BlobStore:
        """The storage namespace."""
        return self._core.resolver.namespace

    @property
    def now_ms(self) -> int:
        """The time by the lake's clock, in milliseconds since 1970 UTC."""
        return self._now_ms()

    def _now_ms(self) -> int:
        return self._now_us() // 1_000

    def _now_us(self) -> int:
        return self._core.stores.clock.now_us()


def store_properties(core: RepositoryCore) -> dict[str, str]:
    """How clients reach the object store, in the names that Iceberg's FileIO has for that; without credentials."""
    parts = urlsplit(core.resolver.namespace.url)
    if parts.scheme not in ("s3", "s3a"):
        return {}
    given = dict(parse_qsl(parts.query))
    found = {"s3.endpoint": given["endpoint"], "s3.path-style-access": "true"} if "endpoint" in given else {}
    return found | ({"s3.region": given["region"], "client.region": given["region"]} if "region" in given else {})


def url_of(blobs: BlobStore, key: str) -> str:
    """Where clients find a file: of a folder its plain path, which they do not decode."""
    if blobs.local_path("x") is not None:
        return blobs.spark_url(key)
    return f"{blobs.url.partition('?')[0].rstrip('/')}/{key}"  # the query says how this process reaches the store
