"""A lake: its two stores, put together. `strandline.open` returns one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec
import pyarrow as pa
from msgspec.structs import replace as replace_fields

from strandline import forks
from strandline.arguments import checked
from strandline.background import BackgroundThreads
from strandline.blob import BlobStore, Resolver, join_url
from strandline.blob import open_store as open_blobs
from strandline.blob.fallback import FallbackBlobs
from strandline.branch.commits import CommitLog
from strandline.branch.stores import Stores
from strandline.clock import Clock, SystemClock, backoff_s
from strandline.core.namespace import adopt, drop_reader
from strandline.core.record import PARTITION, RepositoryRecord
from strandline.core.repository_core import RepositoryCore
from strandline.engines import engine
from strandline.envelope import FORMAT_VERSION, decode
from strandline.errors import (
    AlreadyExists,
    Corrupted,
    NotAllowed,
    NotFound,
    RepositoryNotFound,
    UsageError,
)
from strandline.ids import RepositoryId, check_repository_name, new_id
from strandline.kv import Store
from strandline.kv.tenant import TenantStore
from strandline.opening import LAKES, ROOT, LakeRecord, open_metadata
from strandline.operations import logged, warning
from strandline.progress import Progress, no_progress
from strandline.repository.handles import open_ref
from strandline.repository.names.repositories import (
    create_repository,
    delete_repository,
    find_repository,
    list_repositories,
)
from strandline.repository.repository import Repository
from strandline.repository.upkeep.repair import Mended, repair
from strandline.repository.upkeep.upgrade import Upgraded, is_old, rewrite, total, upgrade_refs
from strandline.results.rows import Results, check_amount
from strandline.settings import Settings, current_user, portable
from strandline.tree.cache import CacheBudget
from strandline.tree.node_file import LEVELS_FORMAT
from strandline.tree.store import TreeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.backup.layout import Manifest
    from strandline.shards.deciding.service import ShardService

FIND_ATTEMPTS = 40


class Repositories(Results[RepositoryRecord]):
    """The repositories of a lake, by name."""

    _titles = ("repository", "default branch", "namespace")

    def __init__(self, kv: Store, prefix: str, after: str, amount: int | None) -> None:
        check_amount(amount, "list", "names")
        self._kv = kv
        self._prefix = prefix
        self._after = after
        self._amount = amount

    def __iter__(self) -> Iterator[RepositoryRecord]:
        return islice(list_repositories(self._kv, self._prefix, self._after, self._amount), self._amount)

    def to_arrow(self) -> pa.Table:
        rows = list(self)
        return pa.table(
            {
                "name": pa.array([row.name for row in rows], pa.string()),
                "default_branch": pa.array([row.default_branch for row in rows], pa.string()),
                "namespace": pa.array([row.namespace for row in rows], pa.string()),
                "read_only": pa.array([row.read_only for row in rows], pa.bool_()),
            }
        )

    def _cells(self, row: RepositoryRecord) -> tuple[object, ...]:
        return row.name, row.default_branch, row.namespace


@checked()
class Lake:
    """All repositories of one tenant. A context manager; safe to share between threads; pickles without secrets."""

    def __init__(self, settings: Settings, kv: Store, clock: Clock) -> None:
        self._settings = settings
        self._kv = kv
        self._clock = clock
        self._cores: dict[RepositoryId, RepositoryCore] = {}
        self._cache = CacheBudget(self._settings.cache_mib << 20)
        self._lock = forks.lock()
        self._upkeep = BackgroundThreads()
        self._closers: list[Callable[[], None]] = []
        self._shard_service, self._shard_upkeep = _services(settings, clock)

    @property
    def place(self) -> str:
        """Where the lake is, without secrets."""
        return str(self._settings.folder or self._settings.kv)

    @property
    def is_embedded(self) -> bool:
        """Whether its metadata are in this process or in a file of this machine: reading them waits for nobody."""
        return self._settings.kv.reveal().startswith(("sqlite:", "memory:"))

    @property
    def id(self) -> str:
        """What tells this lake from all others, copies of its key-value store excepted."""
        raw = self._kv.get(*ROOT)
        assert raw is not None
        record: LakeRecord = decode(LakeRecord, raw, "the lake")
        return record.lake_id

    def __repr__(self) -> str:
        return f"<Lake {self.place}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (portable(self._settings),)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what runs in the background and let go of the stores. Handles of this lake cannot be used any more."""
        try:
            while self._closers:
                self._closers.pop()()
            self._upkeep.close()
        finally:
            for service in (self._shard_service, self._shard_upkeep):
                if service is not None:
                    service.close()
            self._kv.close()

    def at_close(self, closer: Callable[[], None]) -> None:
        """Have something ended before the stores are let go, what was added last first."""
        self._closers.append(closer)

    def repository(
        self, name: str, *, create: bool = False, namespace: str | None = None, default_branch: str = "main"
    ) -> Repository:
        """A repository.

        Args:
            create: make it if it does not exist.
            namespace: of a new one, the URL or folder for its bytes; by default a folder in the lake's object store.

        Raises:
            RepositoryNotFound: it does not exist and `create` is not set.
        """
        try:
            record = find_repository(self._kv, name)
        except RepositoryNotFound:
            if not create:
                raise
            try:
                return self.create_repository(name, namespace=namespace, default_branch=default_branch)
            except AlreadyExists as taken:
                record = self._found_by_somebody_else(name, taken)
        return Repository(self._core(record))

    def _found_by_somebody_else(self, name: str, taken: AlreadyExists) -> RepositoryRecord:
        """The repository that another process made at the same time; its name is written last, so wait a little."""
        for attempt in range(FIND_ATTEMPTS):
            try:
                return find_repository(self._kv, name)
            except RepositoryNotFound:
                self._clock.sleep(backoff_s(attempt))
        raise taken

    @logged("create repository")
    def create_repository(self, name: str, *, namespace: str | None = None, default_branch: str = "main") -> Repository:
        """Make a repository.

        Raises:
            AlreadyExists: the name is taken, or the namespace is in use or overlaps another one.
        """
        repository_id = RepositoryId(new_id())
        if namespace is not None and "://" not in namespace:
            namespace = f"file://{quote(str(Path(namespace).absolute()))}"
        record = RepositoryRecord(
            id=repository_id,
            name=name,
            namespace=namespace or f"{name}-{repository_id}",
            default_branch=default_branch,
            created_at=self._clock.now_us(),
        )
        create_repository(
            self._kv, self._clock, record, self._namespace_url, self._settings.committer, self._stores, self.id
        )
        return Repository(self._core(record))

    @logged("delete repository")
    def delete_repository(self, name: str, *, force: bool = False) -> None:
        """Delete a repository: its branches, tags, commits and staged changes. The bytes of its objects stay.

        Args:
            force: even if it is read-only.
        """
        record = delete_repository(self._kv, name, self._clock, self._stores, force=force)
        if record.behind:
            drop_reader(open_blobs(record.behind), self.id)
        with self._lock:
            self._cores.pop(record.id, None)

    def repositories(self, prefix: str = "", *, after: str = "", amount: int | None = None) -> Repositories:
        """The repositories whose names begin with a prefix, by name. Read anew each time the result is iterated.

        Args:
            after: begin behind this name.
            amount: the most that are returned.
        """
        return Repositories(self._kv, prefix, after, amount)

    @logged("upgrade")
    def upgrade(self, *, dry_run: bool = False) -> Upgraded:
        """Write records of older formats anew; older versions of strandline refuse the lake from then on.

        It may run while others work, be interrupted, and be run again.

        Args:
            dry_run: only count.
        """
        written = []
        for record in self.repositories():
            stores = self._stores(record)
            try:
                written.append({"namespace": int(adopt(stores, record.id, record.name, self.id, dry_run=dry_run))})
            except NotAllowed as error:  # only its garbage cannot be collected, and that says so
                warning("the namespace of %s stays as it is: %s", record.name, error)
            written.append(upgrade_refs(self._stores(record), dry_run=dry_run))
            written.append(self._rewrite(PARTITION, record.name.encode(), RepositoryRecord, "repository", dry_run))
        if isinstance(self._kv, TenantStore) and not dry_run:  # an older version did not list its lakes
            self._kv.shared.set(LAKES, self.id.encode(), self._settings.tenant.encode())
        # last: a reader of the new format of the lake may rely on all of it
        written.append(self._rewrite(*ROOT, LakeRecord, "lake", dry_run, {"format": FORMAT_VERSION}))
        return Upgraded(FORMAT_VERSION, total(written))

    @logged("repair")
    def repair(self, *, dry_run: bool = False) -> list[Mended]:
        """Mend records that an earlier version wrote and that nobody can read; returns what was mended, and how.

        It may run while others work. Records that can be read are left as they are.

        Args:
            dry_run: only say what would be mended.
        """
        return repair(self._kv, self._stores, self.id, dry_run=dry_run)

    def _rewrite(
        self,
        partition: bytes,
        key: bytes,
        kind: type[msgspec.Struct],
        what: str,
        dry_run: bool,
        changes: dict[str, Any] | None = None,
    ) -> dict[str, int]:
        raw = self._kv.get(partition, key)
        is_done = raw is not None and is_old(raw)
        if is_done and not dry_run:
            is_done = rewrite(self._kv, partition, key, kind, f"the {what}", changes)
        return {what: int(is_done)}

    # --- backups ------------------------------------------------------------------------------------------------------

    @logged("backup")
    def backup(
        self,
        target: str | os.PathLike[str],
        repositories: Sequence[str] | None = None,
        *,
        data: bool = True,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> Manifest:
        """Save repositories while they are in use: branches, tags, staged changes, history, reflogs, and all bytes.

        Each branch is saved as it is at one instant. At a place that holds an earlier backup only new files are copied.
        Objects that were imported by reference stay references.

        Args:
            target: a folder or the URL of an object store.
            repositories: which ones; by default all.
            data: False leaves the bytes of objects where they are: such a backup brings metadata back to them.
            progress: called with how many files are done, and how many there are.
            spark: a session whose executors copy the bytes.

        Returns:
            The manifest of the backup.
        """
        from strandline.backup.moving import Mover, MoverHere  # noqa: PLC0415 - few processes back up
        from strandline.backup.save import Source, save  # noqa: PLC0415 - few processes back up

        self._refuse_inside(os.fspath(target))
        names = repositories if repositories is not None else [record.name for record in self.repositories()]
        sources = [Source(record, self._stores(record)) for record in (find_repository(self._kv, n) for n in names)]
        place = open_blobs(os.fspath(target), synced=self._settings.synced)
        mover: Mover = MoverHere() if spark is None else engine("spark").mover(spark)
        return save(place, sources, self.id, self._clock.now_us(), data=data, progress=progress, mover=mover)

    def _refuse_inside(self, target: str) -> None:
        """Raise if a backup would lie in the lake, or the lake in it: it would go with what it is to save."""
        held = [str(self._settings.folder)] if self._settings.folder is not None else []
        held += [self._settings.blob, *(self._namespace_url(record) for record in self.repositories())]
        mine = open_blobs(target).url.partition("?")[0].rstrip("/") + "/"
        for place in held:
            theirs = open_blobs(place).url.partition("?")[0].rstrip("/") + "/"
            if mine.startswith(theirs) or theirs.startswith(mine):
                raise UsageError(
                    f"The backup {target!r} and the lake's own {place!r} lie in each other.",
                    next="Save to another folder, or another prefix, best on another disk.",
                )

    @logged("restore")
    def restore(
        self,
        source: str | os.PathLike[str],
        repository: str | None = None,
        *,
        name: str | None = None,
        take_over: bool = False,
        check: bool = True,
        progress: Progress = no_progress,
    ) -> list[Repository]:
        """Bring repositories back from a backup; commits keep their ids, branches what was staged on them.

        Args:
            source: the folder or URL of the backup.
            repository: only this one; by default all.
            name: bring it back under this name.
            take_over: of a backup without bytes, whose lake is gone: the namespace of the original becomes this
                lake's. Without it, the bytes are read from there, and the original's garbage collection is refused
                as long as this lake needs them.
            check: read everything and compare it with its checksums afterwards.

        Raises:
            NotFound: there is no complete backup, or no such repository in it.
            AlreadyExists: a repository of the name, or the saved one itself, is in this lake.
            Corrupted: the backup is not whole, or what was brought back is not.
        """
        from strandline.backup.layout import load_manifest  # noqa: PLC0415 - few processes back up
        from strandline.backup.load import load  # noqa: PLC0415 - few processes back up
        from strandline.iceberg.upkeep import relocate  # noqa: PLC0415 - few processes back up

        place = open_blobs(os.fspath(source), synced=self._settings.synced)
        manifest = load_manifest(place)
        chosen = [one for one in manifest.repositories if repository in (None, one.record.name)]
        if not chosen:
            held = ", ".join(one.record.name for one in manifest.repositories) or "none"
            raise NotFound(f"The backup holds no repository {repository!r}.", next=f"It holds {held}.")
        if name is not None and len(chosen) > 1:
            raise UsageError("Several repositories cannot have one name.", next="Say which one to restore.")
        made = []
        for one in chosen:
            if one.record.behind and not one.has_data:
                raise UsageError(
                    f"The backup of {one.record.name!r} has no bytes, and its lake read some of them from yet another "
                    f"place, {one.record.behind}.",
                    next="Back the repository up with its bytes, and restore that.",
                )
        for one in chosen:
            known_as = name or one.record.name
            check_repository_name(known_as)
            record = replace_fields(
                one.record,
                name=known_as,
                namespace=one.url if take_over else f"{known_as}-{one.record.id}-{self.id[:8]}",
                behind="" if one.has_data or take_over else one.url,
            )
            load(place, one, record, self._kv, self._stores, progress, self.id, take_over=take_over)
            made.append(Repository(self._core(record)))
            if not record.behind and not take_over:
                relocate(made[-1], progress)
            if check:
                _refuse_damaged(made[-1])
        return made

    @logged("copy repository")
    def copy_repository(
        self,
        repository: str,
        lake: Lake,
        *,
        name: str | None = None,
        check: bool = True,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> Repository:
        """Copy a repository into another lake, with its history, branches, tags, staged changes and all bytes.

        It is in use meanwhile; each branch is copied as it is at one instant. The copy's name is written when all of it
        is there. A call that died is repeated, and copies no file again that is there. Imported objects are not copied.

        Args:
            lake: an open lake with other stores.
            name: of the copy; by default the same.
            check: read all of the copy and compare it with its checksums afterwards.
            spark: a session whose executors copy the bytes; they need the keys of both object stores.

        Raises:
            AlreadyExists: the name is taken there, or this very repository is in that lake.
            Corrupted: a file has not the size that is on record, or what was copied is damaged.
        """
        from strandline.backup.load import bring, claim, finish, is_to_be_finished  # noqa: PLC0415 - few processes copy
        from strandline.backup.moving import Mover, MoverHere  # noqa: PLC0415 - few processes copy
        from strandline.backup.save import FilesAt, Source, save_one  # noqa: PLC0415 - few processes copy
        from strandline.iceberg.upkeep import relocate_in  # noqa: PLC0415 - few processes copy

        held = find_repository(self._kv, repository)
        known_as = check_repository_name(name or repository)
        mover: Mover = MoverHere() if spark is None else engine("spark").mover(spark)
        namespace = f"{known_as}-{held.id}-{lake.id[:8]}"
        record = replace_fields(held, name=known_as, namespace=namespace, behind="", lock=None)
        run = new_id()
        stores = lake._stores(record)
        if not is_to_be_finished(record, lake._kv, stores):
            stores = claim(record, lake._kv, lake._stores, lake.id, run=run)
            with tempfile.TemporaryDirectory(prefix="strandline-copy-") as folder:
                records = open_blobs(folder, synced=False)
                files_at = FilesAt(stores.trees.blobs, "")
                saved = save_one(records, Source(held, self._stores(held)), True, progress, mover, files_at)
                saved = replace_fields(saved, record=record)
                bring(
                    records, saved, record, lake._kv, stores, run, lambda: relocate_in(stores.trees.blobs.own, progress)
                )
        made = Repository(lake._core(record))
        if check:
            _refuse_damaged(made)
        finish(record, stores)
        return made

    def _namespace_url(self, record: RepositoryRecord) -> str:
        if "://" in record.namespace:
            return record.namespace
        root = self._settings.blob
        return join_url(root if "://" in root else f"file://{quote(str(Path(root).absolute()))}", record.namespace)

    def _blobs(self, record: RepositoryRecord) -> BlobStore:
        own = open_blobs(self._namespace_url(record), synced=self._settings.synced)
        return FallbackBlobs(own, open_blobs(record.behind)) if record.behind else own

    def _stores(self, record: RepositoryRecord) -> Stores:
        has_levels = self._settings.max_format >= LEVELS_FORMAT
        trees = TreeStore(self._blobs(record), self._cache.max_bytes, self._cache, has_levels=has_levels)
        return Stores(self._kv, trees, self._clock, record.id, self._settings.committer)

    def _core(self, record: RepositoryRecord) -> RepositoryCore:
        with self._lock:
            if record.id not in self._cores:
                stores = self._stores(record)
                self._cores[record.id] = RepositoryCore(
                    name=record.name,
                    stores=stores,
                    commits=CommitLog(stores, self._cache),
                    resolver=Resolver(stores.trees.blobs),
                    reopen=(_reopen_repository, (portable(self._settings), record.name, record.id)),
                    open_ref=open_ref,
                    upkeep=self._upkeep,
                    compacts=self._settings.compaction,
                    max_format=self._settings.max_format,
                    shard_service=self._shard_service,
                    shard_upkeep=self._shard_upkeep,
                )
            return self._cores[record.id]


def _refuse_damaged(repository: Repository) -> None:
    audit = repository.fsck(content=True)
    if not audit.is_sound:
        raise Corrupted(
            f"Repository {repository.name!r} was restored, but {audit.problem_count:,} things are missing or damaged: "
            f"{audit.problems[0]}",
            safe="It is there, and reads what is whole.",
            next="`strandline fsck` lists them; restore from another backup under another name.",
        )


def open_lake(settings: Settings, *, create: bool = False, new: bool = False, clock: Clock | None = None) -> Lake:
    """Open the lake that the settings name.

    Args:
        create: make the lake if it does not exist.
        new: make it although objects of an earlier one lie where its objects are to be.

    Raises:
        LakeNotFound: there is none, and `create` is not set.
        NewerFormat: a newer strandline made it.
        InvalidSettings, StoreUnavailable: a store cannot be opened.
    """
    clock = clock or SystemClock()
    if not settings.committer:
        settings = replace(settings, committer=current_user())
    return Lake(settings, open_metadata(settings, clock, create=create, new=new), clock)


_lakes: dict[Settings, Lake] = {}
_lakes_lock = forks.lock()


def _services(settings: Settings, clock: Clock) -> tuple[ShardService | None, ShardService | None]:
    """Where shards are changed, and where they are compacted; None for this process."""
    if not settings.shard_service and not settings.shard_upkeep:
        return None, None
    from strandline.shards.deciding.service import ShardService, service_urls  # noqa: PLC0415 - loads much of shards

    deciding = service_urls(settings.shard_service)
    compacting = service_urls(settings.shard_upkeep) or deciding
    return (
        ShardService(deciding, clock) if deciding else None,
        ShardService(compacting, clock) if compacting else None,
    )


def _reopen(settings: Settings) -> Lake:
    """The lake of an unpickled handle: one for all handles in the process."""
    key = replace(settings, folder=None)
    with _lakes_lock:
        if key not in _lakes:
            _lakes[key] = open_lake(settings)
        return _lakes[key]


def _reopen_repository(settings: Settings, name: str, id: RepositoryId) -> Repository:
    repository = _reopen(settings).repository(name)
    if repository._core.stores.repository_id != id:
        raise RepositoryNotFound(
            f"The repository {name!r} of this handle was deleted; another one has its name now.",
            next="Get a new handle: lake.repository(…).",
        )
    return repository
