"""The changes of a branch as a shard: each move of its head is a time, and its files that came and went are updates.

A move of the head is a fact with a number, so all that record it write the same: any process may do it, at any time,
and several at once.
"""

from __future__ import annotations

from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.branch.at import BranchAt
from strandline.branch.reflog import read_moves
from strandline.branch.rules.record import BranchRecord, HeadMove
from strandline.core.of_branch import OfBranch
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Advice, Conflict, OutcomeUnknown, UpperMismatch, UsageError
from strandline.ids import CommitId
from strandline.operations import logged
from strandline.shards.handles.writer import Writer
from strandline.shards.rows.codec import TIME
from strandline.shards.rows.updates import concatenated
from strandline.shards.shard import Shard
from strandline.tree.diff import diff
from strandline.tree.rows import SCHEMA as OBJECTS

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("change", pa.string()),
        pa.field("commit", pa.string()),
        pa.field("author", pa.string()),
        *(field for field in OBJECTS if field.name not in ("path", "etag")),
    ]
)
"""`change` is "added" or "removed"; a file that changed is both. The columns of the object say which bytes."""
MOVES_AT_ONCE = 100
WRITER = "feed"


@checked(but=("changes",))
class Feed(OfBranch):
    """The changes of a branch, from the commit that its head was at when they were first recorded.

    Attributes:
        shard: its times are the numbers of the head's moves; the files at the first commit are added at its first time.
    """

    def __init__(self, core: RepositoryCore, at: BranchAt) -> None:
        super().__init__(core, at)
        self.shard: Shard = core.shards.get(f"_feed-{at.branch_id}", SCHEMA, key=["path"])

    def __repr__(self) -> str:
        return f"<Feed of {self.place}>"

    @logged("record changes")
    def record(self) -> int:
        """Record the moves of the head that are not recorded yet; how many this call did.

        Raises:
            Conflict: more moves came since the last time than the reflog keeps: what changed between is not known move
                by move.
            CommitExpired: a commit in between was collected.
        """
        recorded = 0
        writer = self.shard.writer(WRITER)
        while True:
            upper = self.shard.state.upper
            record = self._at.read().branch
            if upper > record.move_count:
                return recorded
            try:
                if upper == 0:
                    self._begin(writer, record)
                    recorded += 1
                else:
                    recorded += self._go_on(writer, record, upper)
            except (UpperMismatch, OutcomeUnknown):
                continue  # recorded by somebody else, or perhaps by this one: the same, and looked for anew

    def _begin(self, writer: Writer, record: BranchRecord) -> None:
        """Everything that is there is added, at the number of the move that made it so."""
        by = record.moves[0].by if record.moves else ""
        rows = self._rows(None, record.head, by)
        count = record.move_count
        writer.compare_and_append(_at(rows, count), 0, count + 1)

    def _go_on(self, writer: Writer, record: BranchRecord, upper: int) -> int:
        missing = record.move_count - upper + 1
        moves: list[HeadMove] = list(islice(read_moves(self._core.stores, record), missing))
        if len(moves) < missing:
            raise Conflict(
                f"The head of {self._at.name!r} moved {missing:,} times since changes were last recorded, and the "
                f"reflog keeps {len(moves):,}.",
                next=Advice(
                    "Record more often. To begin anew, delete the shard: repository.delete_shard("
                    f"{self.shard.name!r}).",
                    command=f"Record more often. To begin anew: `strandline shard delete …/{self.shard.name}`.",
                ),
            )
        oldest_first = moves[::-1][:MOVES_AT_ONCE]
        for number, move in enumerate(oldest_first, upper):
            rows = self._rows(move.before or None, move.after, move.by)
            writer.compare_and_append(_at(rows, number), number, number + 1)
        return len(oldest_first)

    def _rows(self, before: CommitId | None, after: CommitId, by: str) -> pa.Table:
        """What came and went between two commits."""
        commits, trees = self._core.commits, self._core.stores.trees
        if before is None:
            found = [_changes(objects, "added", after, by) for objects in trees.scan(commits.tree(after))]
        else:
            found = [
                _changes(objects.filter(pc.is_valid(objects.column("path"))), change, after, by)
                for part in diff(trees, commits.tree(before), commits.tree(after), "", None)
                for objects, change in ((part.left, "removed"), (part.right, "added"))
            ]
        return pa.concat_tables(found) if found else SCHEMA.empty_table()

    def changes(self, prefix: str = "", since: int | None = None) -> pa.Table:
        """What changed below a prefix after a time: recorded first, then read.

        Args:
            since: a number of a move, as `_time` gave it; None for everything, the first files as well.

        Returns:
            The columns of `SCHEMA`, `_time` and `_diff` (1), in the order of time.
        """
        if since is not None and (isinstance(since, bool) or not isinstance(since, int)):
            raise UsageError(
                f"since is the number of a move, an int, not {since!r}.", next="`_time` of a change is one."
            )
        self.record()
        state = self.shard.state
        first = state.since if since is None else since
        tables = [self.shard.snapshot(first).to_arrow()] if since is None and state.upper > first else []
        if state.upper > first + 1:
            tables.append(self.shard.listen(first, timeout_s=0).next().updates)
        whole = concatenated(tables, SCHEMA)
        if prefix:
            whole = whole.filter(pc.starts_with(whole.column("path"), prefix))
        return whole.sort_by([(TIME, "ascending"), ("path", "ascending"), ("change", "descending")])


def _changes(objects: pa.Table, change: str, commit: CommitId, by: str) -> pa.Table:
    told = {"change": change, "commit": str(commit), "author": by}
    columns = [
        pa.chunked_array([pa.repeat(told[field.name], objects.num_rows)])
        if field.name in told
        else objects.column(field.name)
        for field in SCHEMA
    ]
    return pa.table(columns, schema=SCHEMA)


def _at(rows: pa.Table, time: int) -> pa.Table:
    return rows.append_column(TIME, pa.array([time] * rows.num_rows, pa.int64()))
