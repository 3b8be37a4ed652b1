"""Every error that a caller can meet, grouped by what the caller does next.

A message has three parts: what happened, what is safe, and the next call. `TABLE` is the one place that gives each
error its stable kind, its exit code, its HTTP status and its S3 code; the CLI and the server read it and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strandline.redaction import redacted

Happened = Literal["no", "unknown"]

NOTHING_CHANGED = "Nothing was changed."
PATHS_SHOWN = 5


class Advice(str):
    """What the caller can do next, in the words of Python; a command says it in its own.

    Attributes:
        command: the same for a user of the command line.
    """

    command: str

    def __new__(cls, python: str, command: str) -> Advice:
        made = super().__new__(cls, redacted(python))
        made.command = redacted(command)
        return made

    def __reduce__(self) -> tuple[type[Advice], tuple[str, str]]:
        return Advice, (str(self), self.command)


class StrandlineError(Exception):
    """The root of all errors that strandline raises on purpose.

    Args:
        what: what happened, one sentence.
        safe: what was changed and what was not.
        next: what the caller can do now.
    """

    def __init__(self, what: str, *, safe: str = NOTHING_CHANGED, next: str = "") -> None:
        # an address in a message may have come with a password, from a caller or in the words of a driver
        self.what, self.safe = redacted(what), redacted(safe)
        self.next = next if isinstance(next, Advice) else redacted(next)
        super().__init__(self._sentences())

    def _sentences(self) -> str:
        return " ".join(part for part in (self.what, self.safe, self.next) if part)

    def now_safe(self, safe: str) -> None:
        """Say anew what was changed and what was not: a caller that did more than the one that failed knows better."""
        self.safe = redacted(safe)
        self.args = (self._sentences(),)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)

    @property
    def kind(self) -> str:
        """A word for programs, stable between versions: `not-found`, `merge-conflict`, …."""
        return kind_of(type(self)).kind

    @property
    def command(self) -> str:
        """`next` in the words of the command line."""
        return self.next.command if isinstance(self.next, Advice) else self.next

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with it."""
        return kind_of(type(self)).exit_code


def _rebuild(cls: type[StrandlineError], args: tuple[object, ...], state: dict[str, object]) -> StrandlineError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def some_paths(paths: Sequence[str]) -> str:
    """The first few paths of a list, for a message."""
    shown = ", ".join(repr(path) for path in paths[:PATHS_SHOWN])
    more = len(paths) - PATHS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


# --- fix the call ---------------------------------------------------------------------------------------------------


class UsageError(StrandlineError):
    """The call cannot mean anything; change its arguments."""


class InvalidName(UsageError):
    """A repository, branch or tag name, or a path, breaks its rule. The message gives the rule in words."""


class InvalidRef(UsageError):
    """A ref expression that cannot be parsed, or that is ambiguous."""


class InvalidSettings(UsageError):
    """Stores that may not be opened as asked: an unknown scheme, a network file system, an unsafe Redis."""


class TransactionClosed(UsageError):
    """A call on a transaction that was committed, aborted or fenced before."""


class LockInvalid(UsageError):
    """A lock that cannot be: an empty or inverted range, one outside the key space, an owner that is not registered."""


class SchemaMismatch(UsageError):
    """The columns of what is written are not those of the table or shard."""


class InvalidBounds(UsageError):
    """Times that an append to a shard cannot have: an upper below its lower, updates outside of both."""


# --- it is not there ------------------------------------------------------------------------------------------------


class NotFound(StrandlineError):
    """What the call names does not exist."""


class LakeNotFound(NotFound):
    """No lake at this place. `open` of a mistyped path never makes one."""


class RepositoryNotFound(NotFound):
    """No repository has this name."""


class RefNotFound(NotFound):
    """No branch, tag or commit has this name."""


class BranchGone(RefNotFound):
    """The branch of this handle was deleted; the name may since belong to another branch."""


class ObjectNotFound(NotFound, KeyError):
    """No object at this path of this ref."""

    __str__ = Exception.__str__


class TableNotFound(NotFound):
    """The path has no table record."""


class ShardNotFound(NotFound):
    """No shard has this name."""


# --- take another name ----------------------------------------------------------------------------------------------


class AlreadyExists(StrandlineError):
    """The name, or the storage namespace, is taken."""


# --- merge, commit or discard first -----------------------------------------------------------------------------------


class Conflict(StrandlineError):
    """The state of the branch is in the way; the caller decides how to go on."""

    def __init__(self, what: str, *, paths: Sequence[str] = (), safe: str = NOTHING_CHANGED, next: str = "") -> None:
        self.paths = tuple(paths)
        super().__init__(what, safe=safe, next=next)


class MergeConflict(Conflict):
    """Both sides changed `paths` in different ways.

    Attributes:
        paths: objects, tables and partitions; each can be given to `take=`.
        reasons: by path, what both sides did to an object, a table or a partition.
    """

    def __init__(
        self,
        what: str,
        *,
        paths: Sequence[str] = (),
        reasons: Mapping[str, str] | None = None,
        safe: str = NOTHING_CHANGED,
        next: str = "",
    ) -> None:
        self.reasons = dict(reasons or dict.fromkeys(paths, ""))
        super().__init__(what, paths=paths or tuple(self.reasons), safe=safe, next=next)


class UncommittedChanges(Conflict):
    """Staged changes (`paths`) are in the way of an operation that moves the head of the branch."""


class PreconditionFailed(Conflict):
    """A conditional put found another object at the path than the condition demands."""


class RequirementFailed(Conflict):
    """What a job demanded of its own output (`transaction.require`) does not hold."""


class NothingToCommit(Conflict):
    """The branch has no uncommitted change."""


class NothingToMerge(Conflict):
    """The source has nothing that the destination does not have."""


class LockRejected(Conflict):
    """A lock that cannot be taken or released beside those that there are."""


class UpperMismatch(Conflict):
    """The upper of a shard is not the one that an append expected.

    Attributes:
        current: the shard's upper; append there, or find out which writer appended. An `Antichain`.
        expected: what the call expected.
    """

    def __init__(
        self, what: str, *, current: Any = None, expected: Any = None, safe: str = NOTHING_CHANGED, next: str = ""
    ) -> None:
        self.current = current
        self.expected = expected
        super().__init__(what, safe=safe, next=next)


class BeforeSince(Conflict):
    """The contents of a shard at a time that it forgot.

    Attributes:
        since: the least time that it can still be read at. An `Antichain`; the empty one if it is over.
    """

    def __init__(self, what: str, *, since: Any = None, safe: str = NOTHING_CHANGED, next: str = "") -> None:
        self.since = since
        super().__init__(what, safe=safe, next=next)


class TooManyLocks(LockRejected):
    """The branch has as many locks, or as many waiting callers, as fit on its record."""


# --- somebody else took over: stop ------------------------------------------------------------------------------------


class Fenced(StrandlineError):
    """A transaction that may no longer commit: another one of its writer was begun, or it was aborted from elsewhere.

    Attributes:
        successor: the transaction that took over, or None.
    """

    def __init__(self, what: str, *, successor: int | None = None, safe: str = NOTHING_CHANGED, next: str = "") -> None:
        self.successor = successor
        super().__init__(what, safe=safe, next=next)


class ReaderFenced(Fenced):
    """Somebody else uses the durable reader of a shard now.

    Attributes:
        token: the one that is on record.
    """

    def __init__(self, what: str, *, token: str = "", safe: str = NOTHING_CHANGED, next: str = "") -> None:
        self.token = token
        super().__init__(what, safe=safe, next=next)


class ReaderExpired(Fenced):
    """The lease of a reader ended: what it held may be gone."""


class LockLost(Fenced):
    """The lock under which something was to be changed is not held any more: it was released from elsewhere."""


# --- not allowed ----------------------------------------------------------------------------------------------------


class NotAllowed(StrandlineError):
    """A rule of the lake forbids the call."""


class BranchProtected(NotAllowed):
    """The branch is protected from this action."""


class NotAssigned(NotAllowed):
    """The writer's name is assigned to another node."""


class RepositoryReadOnly(NotAllowed):
    """The repository accepts no changes."""


# --- try again ------------------------------------------------------------------------------------------------------


class Contention(StrandlineError):
    """Others kept changing the branch; the bounded retries are used up."""


class LockTimeout(Contention):
    """A lock was not free within the time that its caller was willing to wait."""


class LockRateExceeded(Contention):
    """Locks of the branch were changed too often; the error says when it may go on."""


class ShardTimeout(Contention):
    """What a call waited for did not come within its time."""


class RangeLocked(StrandlineError):
    """Somebody holds a lock on what the call would change, or, in quarantine, read. The whole call was refused.

    Attributes:
        owner, description: of its holder.
        lock_id: of the lock.
    """

    def __init__(
        self,
        what: str,
        *,
        owner: str = "",
        description: str = "",
        lock_id: str = "",
        safe: str = NOTHING_CHANGED,
        next: str = "",
    ) -> None:
        self.owner = owner
        self.description = description
        self.lock_id = lock_id
        super().__init__(what, safe=safe, next=next)


# --- storage failed -------------------------------------------------------------------------------------------------


class StorageError(StrandlineError):
    """A store did not do what it was asked to."""


class StoreUnavailable(StorageError):
    """The key-value or object store failed a call.

    Attributes:
        happened: "no" if the write surely did not happen, "unknown" if it may have, or may yet.
    """

    def __init__(self, what: str, *, happened: Happened, safe: str | None = None, next: str = "") -> None:
        self.happened: Happened = happened
        if safe is None:
            safe = NOTHING_CHANGED if happened == "no" else "It is unknown whether the write took effect."
        super().__init__(what, safe=safe, next=next or "Look at the store, then repeat the call.")


class OutcomeUnknown(StoreUnavailable):
    """The reply of a compare-and-swap was lost and the record can no longer tell what became of it."""

    def __init__(self, what: str, *, safe: str | None = None, next: str = "") -> None:
        super().__init__(what, happened="unknown", safe=safe, next=next)


class ObjectMissing(StorageError):
    """The metadata is fine but the bytes of the object are not in the object store."""


class CommitExpired(StorageError):
    """No retention rule keeps the commit: its files are collected, or about to be."""


# --- the format is not mine -----------------------------------------------------------------------------------------


class FormatError(StorageError):
    """A record or file cannot be read."""


class NewerFormat(FormatError):
    """Written by a newer strandline than this one."""


class Corrupted(FormatError):
    """The bytes are not what was written."""


@dataclass(frozen=True, slots=True)
class ErrorKind:
    kind: str
    exit_code: int
    http_status: int
    s3_code: str


TABLE: dict[type[StrandlineError], ErrorKind] = {
    StrandlineError: ErrorKind("error", 1, 500, "InternalError"),
    UsageError: ErrorKind("usage", 2, 400, "InvalidArgument"),
    InvalidName: ErrorKind("invalid-name", 2, 400, "InvalidArgument"),
    InvalidRef: ErrorKind("invalid-ref", 2, 400, "InvalidArgument"),
    InvalidSettings: ErrorKind("invalid-settings", 2, 400, "InvalidArgument"),
    SchemaMismatch: ErrorKind("schema-mismatch", 2, 400, "InvalidArgument"),
    InvalidBounds: ErrorKind("invalid-bounds", 2, 400, "InvalidArgument"),
    NotFound: ErrorKind("not-found", 3, 404, "NoSuchKey"),
    LakeNotFound: ErrorKind("lake-not-found", 3, 404, "NoSuchBucket"),
    RepositoryNotFound: ErrorKind("repository-not-found", 3, 404, "NoSuchBucket"),
    RefNotFound: ErrorKind("ref-not-found", 3, 404, "NoSuchKey"),
    BranchGone: ErrorKind("branch-gone", 3, 404, "NoSuchKey"),
    ObjectNotFound: ErrorKind("object-not-found", 3, 404, "NoSuchKey"),
    TableNotFound: ErrorKind("table-not-found", 3, 404, "NoSuchKey"),
    ShardNotFound: ErrorKind("shard-not-found", 3, 404, "NoSuchKey"),
    AlreadyExists: ErrorKind("already-exists", 4, 409, "BucketAlreadyExists"),
    Conflict: ErrorKind("conflict", 5, 409, "OperationAborted"),
    MergeConflict: ErrorKind("merge-conflict", 5, 409, "OperationAborted"),
    UncommittedChanges: ErrorKind("uncommitted-changes", 5, 409, "OperationAborted"),
    PreconditionFailed: ErrorKind("precondition-failed", 5, 412, "PreconditionFailed"),
    UpperMismatch: ErrorKind("upper-mismatch", 5, 409, "OperationAborted"),
    BeforeSince: ErrorKind("before-since", 5, 409, "OperationAborted"),
    NothingToCommit: ErrorKind("nothing-to-commit", 6, 400, "InvalidRequest"),
    NothingToMerge: ErrorKind("nothing-to-merge", 6, 400, "InvalidRequest"),
    TransactionClosed: ErrorKind("transaction-closed", 2, 400, "InvalidArgument"),
    RequirementFailed: ErrorKind("requirement-failed", 5, 409, "OperationAborted"),
    Fenced: ErrorKind("fenced", 12, 409, "OperationAborted"),
    ReaderFenced: ErrorKind("reader-fenced", 12, 409, "OperationAborted"),
    ReaderExpired: ErrorKind("reader-expired", 12, 409, "OperationAborted"),
    NotAssigned: ErrorKind("not-assigned", 7, 403, "AccessDenied"),
    NotAllowed: ErrorKind("not-allowed", 7, 403, "AccessDenied"),
    BranchProtected: ErrorKind("branch-protected", 7, 403, "AccessDenied"),
    RepositoryReadOnly: ErrorKind("repository-read-only", 7, 403, "AccessDenied"),
    LockInvalid: ErrorKind("lock-invalid", 2, 400, "InvalidArgument"),
    LockRejected: ErrorKind("lock-rejected", 5, 409, "OperationAborted"),
    TooManyLocks: ErrorKind("too-many-locks", 5, 409, "OperationAborted"),
    LockLost: ErrorKind("lock-lost", 12, 409, "OperationAborted"),
    ShardTimeout: ErrorKind("shard-timeout", 8, 503, "SlowDown"),
    LockTimeout: ErrorKind("lock-timeout", 8, 503, "SlowDown"),
    LockRateExceeded: ErrorKind("lock-rate-exceeded", 8, 503, "SlowDown"),
    RangeLocked: ErrorKind("range-locked", 13, 423, "OperationAborted"),
    Contention: ErrorKind("contention", 8, 503, "SlowDown"),
    StorageError: ErrorKind("storage", 9, 500, "InternalError"),
    StoreUnavailable: ErrorKind("store-unavailable", 9, 503, "ServiceUnavailable"),
    OutcomeUnknown: ErrorKind("outcome-unknown", 9, 503, "ServiceUnavailable"),
    ObjectMissing: ErrorKind("object-missing", 10, 410, "NoSuchKey"),
    CommitExpired: ErrorKind("commit-expired", 10, 410, "NoSuchKey"),
    FormatError: ErrorKind("format", 11, 500, "InternalError"),
    NewerFormat: ErrorKind("newer-format", 11, 500, "InternalError"),
    Corrupted: ErrorKind("corrupted", 11, 500, "InternalError"),
}


def kind_of(cls: type[StrandlineError]) -> ErrorKind:
    """The row of `TABLE` for an error class, or for its nearest parent that has one."""
    for parent in cls.__mro__:
        if parent in TABLE:
            return TABLE[parent]
    return TABLE[StrandlineError]
