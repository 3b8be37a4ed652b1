"""All operations of the REST interface, in one table."""

from __future__ import annotations

from strandline.server.operation import Operation
from strandline.server.rest import (
    branches,
    commits,
    config,
    garbage,
    imports,
    locks,
    objects,
    refs,
    repositories,
    shards,
    staging,
    tags,
    transactions,
    unsupported,
    users,
)

OPERATIONS: tuple[Operation, ...] = (
    *config.OPERATIONS,
    *users.OPERATIONS,
    *repositories.OPERATIONS,
    *branches.OPERATIONS,
    *tags.OPERATIONS,
    *refs.OPERATIONS,
    *commits.OPERATIONS,
    *objects.OPERATIONS,
    *staging.OPERATIONS,
    *imports.OPERATIONS,
    *locks.OPERATIONS,
    *transactions.OPERATIONS,
    *shards.OPERATIONS,
    *garbage.OPERATIONS,
    *unsupported.OPERATIONS,
)
