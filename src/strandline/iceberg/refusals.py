"""Why a change of a table's metadata is refused: what Iceberg's clients are answered, and what they then do."""

from __future__ import annotations

from strandline.errors import Conflict, UsageError


class BadUpdate(UsageError):
    """An update, a requirement or a request that cannot mean anything; clients give up (400)."""


class BadArgument(BadUpdate):
    """The same of a view, of which no client has files that it would keep."""


class Stale(Conflict):
    """What the client decided on is not the table any more; clients read it again and retry (409)."""


class Reused(BadUpdate):
    """The name by which a repetition is recognised stands for another request."""
