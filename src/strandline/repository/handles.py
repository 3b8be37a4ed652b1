"""Which handle a ref expression gets: the one place that knows all kinds of them."""

from __future__ import annotations

from strandline.core.repository_core import RepositoryCore
from strandline.repository.branch import Branch
from strandline.repository.refs.expressions import Target, resolve
from strandline.repository.refs.ref import Ref, StagedRef

_KINDS: dict[str, type[Ref]] = {"branch": Branch, "staged": StagedRef}


def open_ref(core: RepositoryCore, expression: str, target: Target | None = None) -> Ref:
    """The handle of a ref expression, or of what it was resolved to."""
    found = resolve(core.stores, core.commits, expression) if target is None else target
    return _KINDS.get(found.kind, Ref)(core, expression, found)
