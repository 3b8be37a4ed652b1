"""A row of the table of operations, from which routing, validation, permissions, OpenAPI and tests come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import msgspec

from strandline.iam.policy import Both, Either, Need, Needs, Verdict
from strandline.repository.branch import Branch
from strandline.server.auth.verifier import Principal
from strandline.server.messages import Request, Response
from strandline.server.services import Services
from strandline.tree.rows import Entry

JSON_MAX_BYTES = 1 << 20
SMALL_BYTES = 64 << 10
"""Bodies up to this size are written by the event loop itself, where the store does not wait for a disk."""

Cost = Literal["quick", "blocking", "upload", "long"]
"""quick: answered by the event loop where the stores are on this machine. blocking: always in a thread. upload: quick
if the body is small and the store does not wait. long: copies bytes, in a thread of those that take large bodies."""


class NoQuery(msgspec.Struct, frozen=True):
    """An operation without parameters in its query."""


@dataclass(frozen=True, slots=True)
class Staging:
    """What a handler returns that has put the bytes of an object where they belong: it is to be staged.

    Attributes:
        answer: made when the write is acknowledged.
        is_again: its branch has gone once, and this is another one of the name.
    """

    branch: Branch
    path: str
    entry: Entry
    answer: Callable[[], Response]
    is_again: bool = False


class HandOver(Exception):
    """What was begun in the event loop has to wait: a thread begins it anew. Nothing has happened yet."""


@dataclass(slots=True)
class AnyCall(ABC):
    """A request of any interface that is understood, permitted, and complete.

    Attributes:
        is_in_loop: whether the event loop calls the handler, so that it must not wait.
        still: raises unless the caller may still do what it asked for; for handlers that took long to begin.
    """

    services: Services
    request: Request
    principal: Principal
    body: Any = field(default=None, kw_only=True)
    is_in_loop: bool = field(default=False, kw_only=True)
    still: Callable[[], None] = field(default=lambda: None, kw_only=True)

    @property
    @abstractmethod
    def repository(self) -> str:
        """The name of the repository, or ""."""

    @property
    @abstractmethod
    def named_branch(self) -> str:
        """The branch that the request names, or the ref; "" if it names none. Conditions of policies may be on it."""

    @property
    def was_read(self) -> bool:
        """Whether a handler may have read some of the body, and so cannot be called again."""
        return bool(getattr(self.body, "is_begun", hasattr(self.body, "read")))

    @property
    def principal_name(self) -> str:
        """Whose request it is; "" if anybody's."""
        return self.principal.user if self.principal is not None else ""

    def elsewhere(self) -> None:
        """Have the handler called again in a thread, if the event loop is calling it: from here on it waits."""
        if self.is_in_loop:
            raise HandOver

    def permit(self, action: str, resource: str, *, is_prefix: bool = False, branch: str | None = None) -> None:
        """Raise `Forbidden` unless the caller may do this as well; on a prefix, to everything below it.

        Args:
            branch: on which branch, or at which ref, if that is another one than the request names.
        """
        need = Need(action, resource, is_prefix)
        at = self.named_branch if branch is None else branch
        self.services.verifier.permit(self.principal, need, self.request.peer, at)

    def may(self, action: str, resource: str, *, branch: str | None = None) -> bool:
        """Whether the caller may do this as well; `branch` as for `permit`."""
        at = self.named_branch if branch is None else branch
        return self.principal.verdict(Need(action, resource), self.request.peer, at) is Verdict.ALLOWED


@dataclass(slots=True)
class Call(AnyCall):
    """A request of the REST interface.

    Attributes:
        path: the parameters in the path, by name.
        query: a struct of the operation's kind.
        body: a struct of the operation's kind, or bytes, or a file for a thread to read.
    """

    path: dict[str, str]
    query: Any

    @property
    def repository(self) -> str:
        return self.path.get("repository", "")

    @property
    def named_branch(self) -> str:
        return branch_named(self.path)


def branch_to_write(call: Call, parameter: str = "branch") -> Branch:
    """The branch that a parameter of the path names; with `force`, that its repository is read-only is no reason.

    Raises:
        RefNotFound, RepositoryNotFound.
    """
    found = call.services.branch(call.repository, call.path[parameter])
    is_forced = getattr(call.query, "force", False) or getattr(call.body, "force", False)
    return found.forced if is_forced else found


def branch_named(parameters: Mapping[str, str]) -> str:
    """The branch, or the ref, among the parameters of a path."""
    for name in ("branch", "destination", "ref", "right", "commit"):
        if name in parameters:
            return parameters[name]
    return ""


Handler = Callable[[Call], Response | Staging]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the REST interface.

    Attributes:
        id: as lakeFS calls it, or our own name.
        path: below the base, with parameters in braces.
        needs: what the caller has to be allowed; None for operations that anybody may call. Fields in braces are
            parameters of the path and of the query, and fields of the body if `needs_body`.
        needs_body: what is made has its name in the body, so the caller is judged when that is there.
        makes_branch: the field of the body that names the branch which is made, and by which conditions judge.
        early: raises what can be known before a large body comes.
        judges_each: the handler judges the paths of its body one by one, and answers for each.
        replies: by status, the struct of the body, or None.
        body: the struct of a JSON body, `bytes` for raw content, or None.
        is_ours: not one of lakeFS's.
        revokes: what somebody may do may be less after it: its answer waits until every worker knows.
        unsupported: why it is answered with 501; "" if it is not.
    """

    id: str
    method: str
    path: str
    needs: Needs | None
    handler: Handler
    summary: str
    replies: dict[int, Any]
    tag: str
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    body_max: int = JSON_MAX_BYTES
    is_body_optional: bool = False
    needs_body: bool = False
    makes_branch: str = ""
    judges_each: bool = False
    early: Callable[[Call], None] | None = None
    cost: Cost = "blocking"
    is_ours: bool = False
    revokes: bool = False
    unsupported: str = ""
    lists: frozenset[str] = field(default=frozenset())
    """Names in the query that may be there several times."""


def fill(needs: Needs, values: dict[str, str]) -> Needs:
    """Needs with the parameters of a call in the places of their fields."""
    if isinstance(needs, Need):
        return Need(needs.action, needs.resource.format_map(values)) if "{" in needs.resource else needs
    return type(needs)(tuple(fill(need, values) for need in needs.needs))


def repository_need(action: str) -> Need:
    """An action on a repository."""
    return Need(action, "arn:lakefs:fs:::repository/{repository}")


def object_need(action: str, path: str = "{path}") -> Need:
    """An action on an object of a repository, on whichever branch."""
    return Need(action, "arn:lakefs:fs:::repository/{repository}/object/" + path)


def object_arn(repository: str, path: str) -> str:
    """The name of an object in policies."""
    return f"arn:lakefs:fs:::repository/{repository}/object/{path}"


def branch_need(action: str, branch: str = "{branch}") -> Need:
    """An action on a branch."""
    return Need(action, "arn:lakefs:fs:::repository/{repository}/branch/" + branch)


def tag_need(action: str) -> Need:
    """An action on a tag."""
    return Need(action, "arn:lakefs:fs:::repository/{repository}/tag/{tag}")


KNOWN = Both(())
"""What operations need that any user may call: an access key, and no policy."""


def everything(action: str) -> Need:
    """An action that is on nothing in particular."""
    return Need(action, "*")


Content = bytes | BinaryIO

__all__ = [
    "KNOWN",
    "AnyCall",
    "Both",
    "Call",
    "Content",
    "Either",
    "HandOver",
    "Handler",
    "Need",
    "Needs",
    "NoQuery",
    "Operation",
    "Staging",
    "branch_need",
    "branch_to_write",
    "everything",
    "fill",
    "object_arn",
    "object_need",
    "repository_need",
    "tag_need",
]
