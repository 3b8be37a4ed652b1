"""What a transaction publishes: its changes on whatever the head is by then, and the files that say so before."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import get_args

import pyarrow as pa

from strandline.arguments import checked
from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit
from strandline.branch.heads import NewHead
from strandline.branch.rules import writers
from strandline.branch.transactions import Who
from strandline.clock import Microseconds
from strandline.core.iceberg_files import POINTER
from strandline.core.manifest import (
    Facts,
    encode_deadlist,
    encode_manifest,
    sorted_changes,
)
from strandline.core.node import this_node, this_process
from strandline.core.physical import (
    transaction_folder,
    transaction_prefix,
)
from strandline.core.repository_core import RepositoryCore
from strandline.core.shapes import are_own
from strandline.core.texts import check_text
from strandline.engines import load
from strandline.errors import (
    Conflict,
    ObjectMissing,
    StrandlineError,
    UsageError,
    some_paths,
)
from strandline.ids import CommitId, check_prefix
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.one_shot import entry_of
from strandline.repository.commits.settling import Sides
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.options import OnStaged, TransactionOptions
from strandline.repository.transactions.overlay import Overlay
from strandline.tables.merging import Clash
from strandline.tree.apply import apply
from strandline.tree.diff import Difference, diff
from strandline.tree.rows import TOMBSTONE, Entry, decode_many, decode_staged, encode_staged
from strandline.tree.store import Tree

NEVER = -1


@checked()
class Publishing(Overlay):
    """A transaction without its life: what it was asked for, and what it would put on the branch."""

    def __init__(self, core: RepositoryCore, at: BranchAt, options: TransactionOptions, base: CommitId) -> None:
        target = Target("commit", base, at.name, at.branch_id)
        self.id = NEVER
        self._joined: dict[tuple[str, str, str], Entry] = {}
        self._clashes: dict[str, str] = {}
        super().__init__(core, at.name, Ref(core, at.name, target), target)
        if options.on_staged not in get_args(OnStaged):
            raise UsageError(f"{options.on_staged!r} is not a valid on_staged.", next="Use 'fail' or 'keep'.")
        most = options.max_uncommitted_bytes
        if most is not None and (most <= 0 or options.token):
            raise UsageError(
                "max_uncommitted_bytes must be positive, and has no use for a token: it publishes more than once.",
                next="Give a position instead, from which a restarted job goes on.",
            )
        if most is not None and options.shared:
            raise UsageError(
                "A shared transaction is published once: max_uncommitted_bytes would publish it in parts.",
                next="Leave one of them out.",
            )
        check_text(options.token, "A token")
        if options.node is not None:
            check_text(options.node, "A node's name")
        if options.committer is not None:
            check_text(options.committer, "A committer")
        self._options = options
        self._draft = make_draft(core, options.message, options.metadata, options.committer)
        self._who = Who(writers.check_writer_name(options.writer), options.node or this_node(), this_process())
        self._expect_unchanged = tuple(map(_check_prefix, options.expect_unchanged))
        self._position: str | None = None
        self.position = options.position
        self._begun_at: Microseconds = 0

    @property
    def position(self) -> str | None:
        """How far the job has consumed its source; on record once it is published."""
        return self._position

    @position.setter
    def position(self, value: str | None) -> None:
        self._position = None if value is None else check_text(value, "A position")

    @property
    def writer(self) -> str:
        """The name of its writer."""
        return self._who.name

    def _write_manifest(self, digest: str) -> int:
        """Write the manifest (what will be published) and the deadlist (files below the prefix that will not).

        Both files are named by what they say, so a repeated commit writes the same again.
        """
        blobs = self._core.resolver.namespace
        prefix = self.data_prefix
        there = set(blobs.list_keys(prefix))
        addresses = (entry.physical_address for entry in decode_many(list(self._claims.changes.values())) if entry)
        live = {address for address in addresses if address.startswith(prefix)}  # others are kept by something else
        if missing := sorted(live - there):
            self.refuse_doomed(ObjectMissing("bytes are gone"))
            raise ObjectMissing(
                f"{len(missing)} files that transaction {self.id} refers to are not there, such as {missing[0]!r}.",
                safe="Nothing of it was published.",
                next="Write them again, or abort.",
            )
        unpublished = pa.array(sorted(there - live), pa.large_string())
        dead: list[str] = unpublished.filter(pa.array(are_own(unpublished))).to_pylist()  # S3A leaves marks of folders
        folder = transaction_folder(self.branch_id, self.id)
        blobs.put(
            f"{folder}manifest-{digest}.parquet", encode_manifest(self._facts(), sorted_changes(self._claims.changes))
        )
        if dead:
            blobs.put(f"{folder}deadlist-{digest}.parquet", encode_deadlist(dead))
        return len(dead)

    def _drop_manifest(self, digest: str) -> None:
        """A commit that was refused is not one that was asked for: nobody may publish it from its manifest later."""
        folder = transaction_folder(self.branch_id, self.id)
        with suppress(StrandlineError):
            self._core.resolver.namespace.delete_many([f"{folder}manifest-{digest}.parquet"])

    def _facts(self) -> Facts:
        """All that a manifest says besides the changes."""
        return Facts(
            id=self.id,
            writer=self.writer,
            node=self._who.node,
            branch=self.name,
            branch_id=self.branch_id,
            base=self._target.commit,
            token=self._options.token,
            message=self._draft.message,
            committer=self._draft.committer,
            metadata=self._draft.metadata,
            position=self.position,
            begun_at=self._begun_at,
            expect_unchanged=self._expect_unchanged,
            guarded=tuple({guard.prefix for guard in self._claims.guards}),
            exact=tuple(sorted(self._claims.exact)),
            on_staged=self._options.on_staged,
            shared=self._options.shared,
            files=self._files,
            rows=self._rows,
            bytes=self._bytes,
        )

    def _compute(self, head: Commit) -> NewHead:
        """This transaction's changes on whatever the head is by now: nothing of the job is computed again."""
        trees, commits = self._core.stores.trees, self._core.commits
        head_tree = commits.tree(head.id)
        changes = self._claims.changes
        if head.id != self._target.commit:
            since = diff(trees, commits.tree(self._target.commit), head_tree)
            try:
                blockers, more = self._claims.judge_committed(since)
            except Conflict as error:  # a write of some rows looks at others by itself
                raise self._contradicted(list(error.paths)) from error
            joined = self._joined_tables(blockers, head_tree)
            if blockers := [path for path in blockers if path.encode() not in joined]:
                raise self._contradicted(blockers)
            more |= joined
            changes = {**changes, **more}
        tree = apply(trees, head_tree, [sorted_changes(changes)] if changes else []).tree
        told = {
            "strandline.writer": self.writer,
            "strandline.transaction": str(self.id),
            "strandline.files": str(self._files),
            "strandline.bytes": str(self._bytes),
        }
        if self._rows is not None:
            told["strandline.rows"] = str(self._rows)
        if self._options.token:
            told["strandline.token"] = self._options.token
        if self.position is not None:
            told["strandline.position"] = self.position
        now_us = self._core.stores.clock.now_us()
        draft = replace(self._draft, metadata={**self._draft.metadata, **told}, date_us=now_us)
        return NewHead(draft.commit(tree, (head,)), tree)

    def _joined_tables(self, paths: list[str], head: Tree) -> dict[bytes, bytes]:
        """The Iceberg tables that others have changed as well, with the changes of both, where these can be joined."""
        found: dict[bytes, bytes] = {}
        for path in paths:
            if not path.endswith("/" + POINTER) or path.startswith(tuple(self._claims.unchanged)):
                continue
            mine = decode_staged(self._claims.changes.get(path.encode(), encode_staged(TOMBSTONE)))
            theirs = self._core.stores.trees.find(head, path)
            base = self._beneath.find(path)
            if not isinstance(mine, Entry) or theirs is None or base is None:
                continue
            key = base.physical_address, mine.physical_address, theirs.physical_address
            if key not in self._joined:  # a publication that is computed anew makes the same files
                try:
                    sides = Sides(entry_of(base), mine, theirs)
                    self._joined[key] = load("iceberg").merged_entry(self._core, self.branch_id, path, sides)
                except Clash as clash:
                    self._clashes[path] = str(clash)
                    continue
            found[path.encode()] = encode_staged(self._joined[key])
        return found

    def _contradicted(self, paths: list[str]) -> Conflict:
        reasons = "".join(f" {path!r}: {self._clashes[path]}." for path in paths if path in self._clashes)
        return Conflict(
            f"{len(paths)} path{'s' * (len(paths) > 1)} that transaction {self.id} of {self.writer!r} "
            f"overwrites or relies on were changed since it began: {some_paths(paths)}.{reasons}",
            paths=paths,
            safe="Nothing of it was published.",
            next="Run the job again on the branch as it is now.",
        )

    def _in_the_way(self, staged: Difference) -> list[str]:
        """Staged changes of others that publishing would contradict.

        It looks at what is staged when it seals, once; what is staged later is ordered after it and lies above it, so
        nobody can hold a publication up by going on to stage. With "keep" even what is staged already is ordered
        after it, and nothing is ever in the way.
        """
        if self._options.on_staged == "keep":
            return []
        try:
            return self._claims.judge_staged(staged)
        except Conflict as error:  # a write of some rows looks at others by itself
            return list(error.paths)

    @property
    def data_prefix(self) -> str:
        """What all physical keys of this transaction begin with."""
        return transaction_prefix(self.branch_id, self.id)


def _check_prefix(prefix: str) -> str:
    check_prefix(prefix)
    return prefix
