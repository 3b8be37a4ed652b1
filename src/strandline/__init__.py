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
    from strandline.branch.commits import Commit
    from strandline.lake import Lake
    from strandline.repository.branch import Branch
    from strandline.repository.commits.importing import Imported
    from strandline.repository.locks.held import Held
    from strandline.repository.locks.locks import Take
    from strandline.repository.refs.differences import Change, Diff
    from strandline.repository.refs.history import Log
    from strandline.repository.refs.listing import Listing
    from strandline.repository.refs.ref import Ref
    from strandline.repository.refs.results import CommonPrefix, ObjectInfo
    from strandline.repository.repository import Repository
    from strandline.repository.transactions.transaction import Transaction, TransactionResult
    from strandline.shards.shard import Shard
    from strandline.shards.state.frontier import Antichain
    from strandline.tables.table import Table
    from strandline.tree.rows import Entry

__version__ = "0.1.0"

# Loaded when they are first asked for: `import strandline` stays fast, and needs no driver.
_LAZY = {
    "Antichain": "strandline.shards.state.frontier",
    "Branch": "strandline.repository.branch",
    "Change": "strandline.repository.refs.differences",
    "Commit": "strandline.branch.commits",
    "CommonPrefix": "strandline.repository.refs.results",
    "Diff": "strandline.repository.refs.differences",
    "Entry": "strandline.tree.rows",
    "Held": "strandline.repository.locks.held",
    "Imported": "strandline.repository.commits.importing",
    "Lake": "strandline.lake",
    "Listing": "strandline.repository.refs.listing",
    "Log": "strandline.repository.refs.history",
    "ObjectInfo": "strandline.repository.refs.results",
    "Ref": "strandline.repository.refs.ref",
    "Repository": "strandline.repository.repository",
    "Take": "strandline.repository.locks.locks",
    "Shard": "strandline.shards.shard",
    "Table": "strandline.tables.table",
    "Transaction": "strandline.repository.transactions.transaction",
    "TransactionResult": "strandline.repository.transactions.transaction",
}

__all__ = [
    "AlreadyExists",
    "Antichain",
    "BeforeSince",
    "Branch",
    "BranchGone",
    "BranchProtected",
    "Change",
    "Commit",
    "CommitExpired",
    "CommonPrefix",
    "Conflict",
    "Contention",
    "Corrupted",
    "Diff",
    "Entry",
    "Fenced",
    "FormatError",
    "Held",
    "Imported",
    "InvalidBounds",
    "InvalidName",
    "InvalidRef",
    "InvalidSettings",
    "Lake",
    "LakeNotFound",
    "Listing",
    "LockInvalid",
    "LockLost",
    "LockRateExceeded",
    "LockRejected",
    "LockTimeout",
    "Log",
    "MergeConflict",
    "NewerFormat",
    "NotAllowed",
    "NotAssigned",
    "NotFound",
    "NothingToCommit",
    "NothingToMerge",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectNotFound",
    "OutcomeUnknown",
    "PreconditionFailed",
    "RangeLocked",
    "ReaderExpired",
    "ReaderFenced",
    "Ref",
    "RefNotFound",
    "Repository",
    "RepositoryNotFound",
    "RepositoryReadOnly",
    "RequirementFailed",
    "SchemaMismatch",
    "Shard",
    "ShardNotFound",
    "ShardTimeout",
    "StorageError",
    "StoreUnavailable",
    "StrandlineError",
    "Table",
    "TableNotFound",
    "Take",
    "TooManyLocks",
    "Transaction",
    "TransactionClosed",
    "TransactionResult",
    "UncommittedChanges",
    "UpperMismatch",
    "UsageError",
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
        committer: who stands on commits that name nobody; by default the user's name.
        compaction: False keeps this process from compacting branches in the background; `Branch.compact` still does.
        shard_service: addresses of `strandline shard serve`, with commas between: they decide what this process asks of
            shards. Also in STRANDLINE_SHARD_SERVICE.
        shard_upkeep: addresses of those that compact shards; by default the same.

    Raises:
        LakeNotFound: there is no lake there, and `create` is not set.
        InvalidSettings: the settings name no lake, or a store refuses them.
        StoreUnavailable: a store does not answer.
        NewerFormat: a newer strandline made the lake.
    """
    from strandline.lake import open_lake
    from strandline.settings import find_settings

    settings = find_settings(
        location,
        kv=kv,
        blob=blob,
        tenant=tenant,
        synced=synced,
        committer=committer,
        compaction=compaction,
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
