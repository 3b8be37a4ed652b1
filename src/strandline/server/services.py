"""What the operations of a worker share: the lake, who is who, threads, lanes, and handles that were opened lately."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from strandline.clock import Clock
from strandline.errors import Fenced, RefNotFound
from strandline.iam.directory import Directory
from strandline.iceberg.metadata_cache import MetadataCache
from strandline.ids import check_repository_name
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.repository.repository import Repository
from strandline.repository.transactions.joined import JoinedTransaction, newest_id
from strandline.results.rows import ObjectInfo
from strandline.server.auth.tokens import Tokens
from strandline.server.auth.verifier import Principal, Verifier
from strandline.server.imports import Imports
from strandline.server.lanes import Lanes
from strandline.server.lending.lender import Lender
from strandline.server.links import PRESIGNED_S, LinkClaims, Links
from strandline.server.namespaces import shown_namespace
from strandline.server.pool import Pool
from strandline.tree.cache import ByteBoundedCache

REPOSITORY_KEPT_S = 1.0
HANDLES_MAX = 4_096
WORK_THREADS = 16
WORK_WAITING_MAX = 256
BODY_THREADS = 64
BODY_WAITING_MAX = 64
BODIES_OF_ONE_MAX = 48
"""Large bodies of one user at a time: more would leave no thread for others."""
KNOWING_THREADS = 4
KNOWING_WAITING_MAX = 512
TABLES_MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """What the operations know of the server's configuration.

    Attributes:
        address: under which clients reach it.
        s3_domain: hosts below it are buckets; "" for none.
        s3_region: what GetBucketLocation says.
        hosts: by which clients reach it; others are refused. Empty if any will do.
        object_max_bytes: of an object, or a part, in one request.
        is_multi: several workers serve the lake.
        iceberg_credentials: how clients of Iceberg's catalog reach files: "none", "signed" or "vended".
    """

    address: str = "http://127.0.0.1:8000"
    s3_domain: str = ""
    s3_region: str = "us-east-1"
    s3_flat: str = ""
    hosts: frozenset[str] = frozenset()
    object_max_bytes: int = 5 << 30
    is_multi: bool = False
    iceberg_credentials: str = "none"


@dataclass
class Services:
    """Belongs to one worker. Its handles are looked up by the event loop and by threads."""

    lake: Lake
    directory: Directory
    verifier: Verifier
    tokens: Tokens
    links: Links
    options: Options
    work: Pool = field(default_factory=lambda: Pool("work", WORK_THREADS, WORK_WAITING_MAX))
    bodies: Pool = field(default_factory=lambda: Pool("bodies", BODY_THREADS, BODY_WAITING_MAX, BODIES_OF_ONE_MAX))
    knowing: Pool = field(default_factory=lambda: Pool("knowing", KNOWING_THREADS, KNOWING_WAITING_MAX))
    """For who is who: long calls must not keep the server from knowing what still holds."""
    looking: Pool = field(default_factory=lambda: Pool("looking", 1, 4))
    """For the epoch alone: many unknown callers must not keep it waiting."""
    readers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8, "strandline-readers"))
    metadata: MetadataCache = field(default_factory=MetadataCache)
    """Of tables, as it was read."""
    tables: ByteBoundedCache[bytes] = field(default_factory=lambda: ByteBoundedCache(TABLES_MAX_BYTES))
    """Tables as they are answered."""
    lender: Lender = field(default_factory=Lender)
    foreign: ByteBoundedCache[frozenset[str]] = field(default_factory=lambda: ByteBoundedCache(TABLES_MAX_BYTES))
    """The files of native tables that Iceberg's tables were made of, by metadata."""
    folders: set[str] = field(default_factory=set)
    """Of Iceberg's tables, that were made for clients that make none."""
    _repositories: dict[str, tuple[Repository, float]] = field(default_factory=dict)
    _refs: dict[tuple[str, str], Ref] = field(default_factory=dict)
    _namespaces: dict[str, str] = field(default_factory=dict)
    _joined: dict[tuple[str, str, int], JoinedTransaction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kv = self.lake._kv
        is_alone = not self.options.is_multi
        self.lanes = Lanes(self.work, kv.at_once if kv.writes_at_once and is_alone else None)
        self.imports = Imports(kv)
        self._kv_is_here = self.lake.is_embedded

    @property
    def clock(self) -> Clock:
        return self.lake._clock

    def repository(self, name: str) -> Repository:
        """A repository, as it was a second ago at most; raises `RepositoryNotFound`."""
        found = self._repositories.get(name)
        now = time.monotonic()
        if found is not None and now - found[1] < REPOSITORY_KEPT_S:
            return found[0]
        repository = self.lake.repository(check_repository_name(name))
        if len(self._repositories) > HANDLES_MAX:
            self._repositories.clear()
        self._repositories[name] = repository, now
        return repository

    def ref(self, repository: str, expression: str) -> Ref:
        """What a ref expression means. The handle of a branch is kept: each of its calls looks whether it is current.

        Raises:
            RefNotFound, InvalidRef, RepositoryNotFound.
        """
        opened = self.repository(repository)
        key = (opened._core.stores.repository_id, expression)
        held = self._refs.get(key)
        if held is not None:
            return held
        ref = opened.ref(expression)
        if isinstance(ref, Branch) or expression == ref.commit_id:  # the id of a commit means it for ever
            if len(self._refs) > HANDLES_MAX:
                self._refs.clear()
            self._refs[key] = ref
        return ref

    def branch(self, repository: str, name: str) -> Branch:
        """A branch; raises `RefNotFound`."""
        found = self.ref(repository, name)
        if not isinstance(found, Branch):
            raise RefNotFound(f"There is no branch {name!r}.", next="Only branches can be written.")
        return found

    def joined(self, branch: Branch, writer: str, id: int | None) -> JoinedTransaction:
        """A shared transaction of another process. Its handle is kept, since it has followed what is in it.

        Raises:
            RefNotFound: there is none.
            Fenced: it was replaced or aborted.
        """
        key = (branch.branch_id, writer, newest_id(branch._at, writer) if id is None else id)
        held = self._joined.get(key)
        if held is None:
            if len(self._joined) > HANDLES_MAX:
                self._joined.clear()
            held = self._joined[key] = branch.join(writer, id=key[2])
        try:
            held.look()
        except Fenced:
            self._joined.pop(key, None)  # with all that it has followed
            raise
        return held

    def forget(self, repository: str = "") -> None:
        """Look handles up anew: a branch or a repository went, and another one may have its name."""
        self._refs.clear()
        if repository:
            self._repositories.pop(repository, None)

    def reads_at_once(self, repository: str) -> bool:
        """Whether reading from a repository waits for no network."""
        if not self._kv_is_here:
            return False
        found = self._repositories.get(repository)
        if not repository:
            return True
        return found is not None and found[0]._core.resolver.namespace.local_path("x") is not None

    def puts_at_once(self, repository: str) -> bool:
        """Whether storing a small object waits for nothing but the processor."""
        found = self._repositories.get(repository)
        if not self._kv_is_here or found is None:
            return False
        blobs: Any = found[0]._core.resolver.namespace
        return blobs.local_path("x") is not None and not getattr(blobs, "synced", True)

    def namespace_shown(self, repository: str) -> str:
        """The storage namespace of a repository as clients know it."""
        id = self.repository(repository)._core.stores.repository_id
        found = self._namespaces.get(id)
        if found is None:
            # never changes while the repository is there
            found = self._namespaces[id] = shown_namespace(self.lake, self.repository(repository).settings)
        return found

    def link_of(
        self,
        method: str,
        principal: Principal,
        repository: str,
        ref: Ref,
        path: str,
        expires_s: int,
        place: str = "",
        size_max: int = 0,
    ) -> str:
        """A link that this server signs, by which anybody can do one thing for a while as a principal could."""
        is_branch = isinstance(ref, Branch)
        claims = LinkClaims(
            method=method,
            repository=repository,
            repository_id=ref._core.stores.repository_id,
            ref=ref.name if isinstance(ref, Branch) else str(ref.commit_id),
            branch_id=ref.branch_id if is_branch else "",  # type: ignore[attr-defined]
            path=path,
            place=place,
            size_max=size_max,
            expires_s=expires_s,
            user=principal.user,
            key_id=principal.key_id,
            issued_us=self.clock.now_us(),
        )
        return f"{self.options.address}/links/{self.links.sign(claims)}"

    def presigned_read(self, principal: Principal, repository: str, ref: Ref, info: ObjectInfo) -> tuple[str, int]:
        """A link by which anybody can read an object for a while, and when it ends, in seconds since 1970 UTC."""
        expires_s = self.clock.now_us() // 1_000_000 + PRESIGNED_S
        blobs, key = ref._locate(info)
        url = blobs.presigned("GET", key, PRESIGNED_S)
        if url is None:
            url = self.link_of("GET", principal, repository, ref, info.path, expires_s)
        return url, expires_s

    def close(self) -> None:
        """End the threads; what is under way is ended first."""
        self.imports.close()
        for pool in (self.work, self.bodies, self.knowing, self.looking):
            pool.close()
        self.readers.shutdown(wait=False, cancel_futures=True)
