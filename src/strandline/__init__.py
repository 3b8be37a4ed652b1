"""strandline: Git for data lakes.

Branches, atomic commits and merges over any object store, with metadata in any key-value store. `open` is where it
begins; everything public is in this module.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from strandline.arguments import checked_call
from strandline.errors import (
    AlreadyExists,
    BeforeSince,
    BranchGone,
    BranchProtected,
    CommitExpired,
    Conflict,
    Contention,
    Corrupted,
    Fenced,
    FormatError,
    InvalidBounds,
    InvalidName,
    InvalidRef,
    InvalidSettings,
    LakeNotFound,
    LockInvalid,
    LockLost,
    LockRateExceeded,
    LockRejected,
    LockTimeout,
    MergeConflict,
    NewerFormat,
    NotAllowed,
    NotAssigned,
    NotFound,
    NothingToCommit,
    NothingToMerge,
    ObjectMissing,
    ObjectNotFound,
    OutcomeUnknown,
    PreconditionFailed,
    RangeLocked,
    ReaderExpired,
    ReaderFenced,
    RefNotFound,
    RepositoryNotFound,
    RepositoryReadOnly,
    RequirementFailed,
    SchemaMismatch,
    ShardNotFound,
    ShardTimeout,
    StorageError,
    StoreUnavailable,
    StrandlineError,
    TableNotFound,
    TooManyLocks,
    TransactionClosed,
    UncommittedChanges,
    UpperMismatch,
    UsageError,
)

if TYPE_CHECKING:
    from strandline.backup.layout import Manifest, SavedBranch, SavedRepository
    from strandline.branch.commits import Commit
    from strandline.branch.compaction import Compaction
    from strandline.branch.locking import OnDirty
    from strandline.branch.rules.ranges import Range
    from strandline.branch.rules.record import HeadMove, LockMode, LockRecord
    from strandline.core.overwrite import IfChanged, Overwrite
    from strandline.core.record import LockOwner, Protection, RepositoryRecord
    from strandline.core.retention import Retention
    from strandline.core.upload import Content
    from strandline.ids import BranchId, CommitId
    from strandline.lake import Lake, Repositories
    from strandline.progress import Progress
    from strandline.repository.branch import Branch
    from strandline.repository.commits.importing import ImportResult
    from strandline.repository.commits.listing import ImportSource
    from strandline.repository.commits.merging import MergePreview
    from strandline.repository.commits.settling import Appended, MergeStrategy, Side
    from strandline.repository.feed import Feed
    from strandline.repository.jobs.range_job import RangeResult
    from strandline.repository.jobs.range_jobs import RangeJobs
    from strandline.repository.locks.held import LockedTransaction
    from strandline.repository.locks.locks import LockInfo, LockRequest, Locks, Ranges
    from strandline.repository.locks.owners import LockOwners, OwnerInfo
    from strandline.repository.locks.whole_repository import RepositoryLock
    from strandline.repository.objects.writable import Writable
    from strandline.repository.refs.ref import Ref
    from strandline.repository.refs.reflog import Reflog
    from strandline.repository.repository import NamedRef, RefList, Repository
    from strandline.repository.transactions.joined import JoinedTransaction
    from strandline.repository.transactions.operators import TransactionInfo, Transactions, WriterInfo, Writers
    from strandline.repository.transactions.options import OnStaged
    from strandline.repository.transactions.transaction import Transaction, TransactionResult
    from strandline.repository.upkeep.fsck import FsckReport
    from strandline.repository.upkeep.garbage import GarbagePlan
    from strandline.repository.upkeep.gc import GarbageCollection
    from strandline.repository.upkeep.judging import GarbagePlace
    from strandline.repository.upkeep.repair import Mended
    from strandline.repository.upkeep.upgrade import Upgraded
    from strandline.repository.upkeep.usage import StorageRow, StorageUse
    from strandline.results.differences import Change, Diff
    from strandline.results.history import Log
    from strandline.results.listing import Listing
    from strandline.results.rows import CommonPrefix, ObjectInfo
    from strandline.shards.shard import Shard
    from strandline.shards.state.frontier import Antichain
    from strandline.tables.history import TableChange, TableHistory
    from strandline.tables.outcomes import FilesRewritten, RowsChanged, TableConverted, WriteResult
    from strandline.tables.record import OptionValue, SchemaChange, SchemaDefault, TableRecord, WriteMode
    from strandline.tables.scan import TableFile
    from strandline.tables.statistics import Statistics
    from strandline.tables.table import Table
    from strandline.tables.upkeep_rule import TableUpkeep, UpkeepRule
    from strandline.tree.rows import Entry

__version__ = "0.1.0"

# Loaded when they are first asked for: `import strandline` stays fast, and needs no driver.
_LAZY = {
    "Antichain": "strandline.shards.state.frontier",
    "Branch": "strandline.repository.branch",
    "BranchId": "strandline.ids",
    "Change": "strandline.results.differences",
    "Commit": "strandline.branch.commits",
    "CommitId": "strandline.ids",
    "CommonPrefix": "strandline.results.rows",
    "Compaction": "strandline.branch.compaction",
    "Content": "strandline.core.upload",
    "Diff": "strandline.results.differences",
    "Entry": "strandline.tree.rows",
    "Feed": "strandline.repository.feed",
    "FsckReport": "strandline.repository.upkeep.fsck",
    "StorageRow": "strandline.repository.upkeep.usage",
    "StorageUse": "strandline.repository.upkeep.usage",
    "GarbageCollection": "strandline.repository.upkeep.gc",
    "GarbagePlace": "strandline.repository.upkeep.judging",
    "TableUpkeep": "strandline.tables.upkeep_rule",
    "UpkeepRule": "strandline.tables.upkeep_rule",
    "GarbagePlan": "strandline.repository.upkeep.garbage",
    "HeadMove": "strandline.branch.rules.record",
    "IfChanged": "strandline.core.overwrite",
    "ImportResult": "strandline.repository.commits.importing",
    "ImportSource": "strandline.repository.commits.listing",
    "Lake": "strandline.lake",
    "Listing": "strandline.results.listing",
    "LockInfo": "strandline.repository.locks.locks",
    "LockMode": "strandline.branch.rules.record",
    "LockOwner": "strandline.core.record",
    "LockOwners": "strandline.repository.locks.owners",
    "LockRecord": "strandline.branch.rules.record",
    "LockRequest": "strandline.repository.locks.locks",
    "JoinedTransaction": "strandline.repository.transactions.joined",
    "LockedTransaction": "strandline.repository.locks.held",
    "Locks": "strandline.repository.locks.locks",
    "Log": "strandline.results.history",
    "Manifest": "strandline.backup.layout",
    "Mended": "strandline.repository.upkeep.repair",
    "Appended": "strandline.repository.commits.settling",
    "MergePreview": "strandline.repository.commits.merging",
    "MergeStrategy": "strandline.repository.commits.settling",
    "Side": "strandline.repository.commits.settling",
    "NamedRef": "strandline.repository.repository",
    "ObjectInfo": "strandline.results.rows",
    "OnDirty": "strandline.branch.locking",
    "OnStaged": "strandline.repository.transactions.options",
    "OptionValue": "strandline.tables.record",
    "Overwrite": "strandline.core.overwrite",
    "OwnerInfo": "strandline.repository.locks.owners",
    "Progress": "strandline.progress",
    "Protection": "strandline.core.record",
    "Range": "strandline.branch.rules.ranges",
    "RangeJobs": "strandline.repository.jobs.range_jobs",
    "RangeResult": "strandline.repository.jobs.range_job",
    "Ranges": "strandline.repository.locks.locks",
    "Ref": "strandline.repository.refs.ref",
    "RefList": "strandline.repository.repository",
    "Reflog": "strandline.repository.refs.reflog",
    "Repositories": "strandline.lake",
    "Repository": "strandline.repository.repository",
    "RepositoryLock": "strandline.repository.locks.whole_repository",
    "RepositoryRecord": "strandline.core.record",
    "Retention": "strandline.core.retention",
    "SavedBranch": "strandline.backup.layout",
    "SavedRepository": "strandline.backup.layout",
    "SchemaChange": "strandline.tables.record",
    "SchemaDefault": "strandline.tables.record",
    "Shard": "strandline.shards.shard",
    "Statistics": "strandline.tables.statistics",
    "Table": "strandline.tables.table",
    "TableChange": "strandline.tables.history",
    "TableFile": "strandline.tables.scan",
    "TableHistory": "strandline.tables.history",
    "TableRecord": "strandline.tables.record",
    "Transaction": "strandline.repository.transactions.transaction",
    "TransactionInfo": "strandline.repository.transactions.operators",
    "TransactionResult": "strandline.repository.transactions.transaction",
    "Transactions": "strandline.repository.transactions.operators",
    "Upgraded": "strandline.repository.upkeep.upgrade",
    "Writable": "strandline.repository.objects.writable",
    "WriteMode": "strandline.tables.record",
    "FilesRewritten": "strandline.tables.outcomes",
    "RowsChanged": "strandline.tables.outcomes",
    "TableConverted": "strandline.tables.outcomes",
    "WriteResult": "strandline.tables.outcomes",
    "WriterInfo": "strandline.repository.transactions.operators",
    "Writers": "strandline.repository.transactions.operators",
}

__all__ = [
    "AlreadyExists",
    "Antichain",
    "Appended",
    "BeforeSince",
    "Branch",
    "BranchGone",
    "BranchId",
    "BranchProtected",
    "Change",
    "Commit",
    "CommitExpired",
    "CommitId",
    "CommonPrefix",
    "Compaction",
    "Conflict",
    "Content",
    "Contention",
    "Corrupted",
    "Diff",
    "Entry",
    "Feed",
    "Fenced",
    "FilesRewritten",
    "FormatError",
    "FsckReport",
    "GarbageCollection",
    "GarbagePlace",
    "GarbagePlan",
    "HeadMove",
    "IfChanged",
    "ImportResult",
    "ImportSource",
    "InvalidBounds",
    "InvalidName",
    "InvalidRef",
    "InvalidSettings",
    "JoinedTransaction",
    "Lake",
    "LakeNotFound",
    "Listing",
    "LockInfo",
    "LockInvalid",
    "LockLost",
    "LockMode",
    "LockOwner",
    "LockOwners",
    "LockRateExceeded",
    "LockRecord",
    "LockRejected",
    "LockRequest",
    "LockTimeout",
    "LockedTransaction",
    "Locks",
    "Log",
    "Manifest",
    "Mended",
    "MergeConflict",
    "MergePreview",
    "MergeStrategy",
    "NamedRef",
    "NewerFormat",
    "NotAllowed",
    "NotAssigned",
    "NotFound",
    "NothingToCommit",
    "NothingToMerge",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectNotFound",
    "OnDirty",
    "OnStaged",
    "OptionValue",
    "OutcomeUnknown",
    "Overwrite",
    "OwnerInfo",
    "PreconditionFailed",
    "Progress",
    "Protection",
    "Range",
    "RangeJobs",
    "RangeLocked",
    "RangeResult",
    "Ranges",
    "ReaderExpired",
    "ReaderFenced",
    "Ref",
    "RefList",
    "RefNotFound",
    "Reflog",
    "Repositories",
    "Repository",
    "RepositoryLock",
    "RepositoryNotFound",
    "RepositoryReadOnly",
    "RepositoryRecord",
    "RequirementFailed",
    "Retention",
    "RowsChanged",
    "SavedBranch",
    "SavedRepository",
    "SchemaChange",
    "SchemaDefault",
    "SchemaMismatch",
    "Shard",
    "ShardNotFound",
    "ShardTimeout",
    "Side",
    "Statistics",
    "StorageError",
    "StorageRow",
    "StorageUse",
    "StoreUnavailable",
    "StrandlineError",
    "Table",
    "TableChange",
    "TableConverted",
    "TableFile",
    "TableHistory",
    "TableNotFound",
    "TableRecord",
    "TableUpkeep",
    "TooManyLocks",
    "Transaction",
    "TransactionClosed",
    "TransactionInfo",
    "TransactionResult",
    "Transactions",
    "UncommittedChanges",
    "Upgraded",
    "UpkeepRule",
    "UpperMismatch",
    "UsageError",
    "Writable",
    "WriteMode",
    "WriteResult",
    "WriterInfo",
    "Writers",
    "__version__",
    "open",
]


@checked_call
def open(
    location: str | os.PathLike[str] | None = None,
    *,
    kv: str | None = None,
    blob: str | None = None,
    tenant: str | None = None,
    create: bool = False,
    new: bool = False,
    synced: bool | None = None,
    committer: str | None = None,
    compaction: bool | None = None,
    max_format: int | None = None,
    cache_mib: int | None = None,
    shard_service: str | None = None,
    shard_upkeep: str | None = None,
) -> Lake:
    """Open a lake.

    Args:
        location: a folder (SQLite and files, no server), a TOML file with the settings below, or `memory://name`.
            Without it and without `kv`, the environment's STRANDLINE_LAKE, or STRANDLINE_KV and STRANDLINE_BLOB.
        kv: URL of the key-value store: sqlite:///path, postgresql://…, redis://…, or one of a plug-in.
        blob: URL of the object store: a folder, s3://bucket/prefix, gs://…, az://….
        tenant: whose repositories; each tenant sees only its own.
        create: make the lake if it does not exist.
        new: with `create`, make it although objects of an earlier one lie in its folder, whose metadata are gone.
        synced: False gives up safety against a power loss, not against a killed process, for speed.
        committer: recorded when a commit does not name one; by default the user's name.
        compaction: False keeps this process from compacting branches in the background; `Branch.compact` still does.
        max_format: the newest format of records that may be written, for a lake that older versions have to read too.
        cache_mib: what this process keeps in memory of the metadata of all repositories together; by default 256.
        shard_service: addresses of `strandline shard serve`, with commas between: they decide what this process asks of
            shards. Also in STRANDLINE_SHARD_SERVICE.
        shard_upkeep: addresses of those that compact shards; by default the same.

    Raises:
        LakeNotFound: there is no lake there, and `create` is not set.
        InvalidSettings: the settings name no lake, or a store refuses them.
        StoreUnavailable: a store does not answer.
        NewerFormat: a newer strandline made the lake.
    """
    from strandline.lake import open_lake  # noqa: PLC0415 - `import strandline` stays fast
    from strandline.settings import find_settings  # noqa: PLC0415 - `import strandline` stays fast

    settings = find_settings(
        location,
        kv=kv,
        blob=blob,
        tenant=tenant,
        synced=synced,
        committer=committer,
        compaction=compaction,
        max_format=max_format,
        cache_mib=cache_mib,
        shard_service=shard_service,
        shard_upkeep=shard_upkeep,
    )
    return open_lake(settings, create=create, new=new)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'strandline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
