"""How a job under a lock remembers what it has copied, so that another process goes on when it dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from strandline.branch import transactions
from strandline.branch.lock_rules import grouped
from strandline.ids import CommitId, new_id
from strandline.repository.held import Held
from strandline.repository.manifest import decode_manifest, encode_manifest, sorted_changes
from strandline.repository.physical import transaction_folder
from strandline.tree.rows import Entry, decode_staged, encode_staged

PREFIX = "checkpoint-"


class Checkpoints:
    """The checkpoints of a transaction under a lock: files beside its manifest, each with some of its changes.

    Whoever begins under the name of a job whose transaction is open, with its lock held, goes on with that very
    transaction. If the first process lives after all, both write to keys of their own, and one of them is published.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        self._copied: list[tuple[str, Entry]] = []

    @contextmanager
    def resumed_or_begun(self) -> Iterator[None]:
        self._resume()
        with self._held:  # begins, unless it goes on
            yield

    def copied(self) -> list[tuple[str, Entry]]:
        """What earlier runs have copied."""
        return self._copied

    def write(self, entries: Sequence[tuple[str, Entry]]) -> None:
        held = self._held
        changes = {path.encode(): encode_staged(entry) for path, entry in entries}
        key = f"{self._folder}{PREFIX}{new_id()}.parquet"
        body = encode_manifest(held.facts(), sorted_changes(changes))
        held._core.resolver.namespace.put(key, body)

    @property
    def _folder(self) -> str:
        return transaction_folder(self._held.branch_id, self._held.transaction_id)

    def _resume(self) -> None:
        held = self._held
        core = held._core
        branch = held._cell.read(held.branch_id).branch
        writer = branch.writers.get(held.writer)
        if writer is None or not writer.is_open:
            return
        mine = [
            lock
            for lock in grouped(branch.locks, branch)
            if (lock.writer, lock.transaction, lock.ranges) == (held.writer, writer.started, held.ranges)
        ]
        _, record = transactions.find_record(core.stores, held.branch_id, writer.started)
        if not mine or mine[0].state != "held" or mine[0].mode != held.mode or record is None or not record.base:
            return
        held.go_on(mine[0].id, writer.started, CommitId(record.base))
        namespace = core.resolver.namespace
        there = set(namespace.list_keys(held.data_prefix))
        for key in sorted(namespace.list_keys(f"{self._folder}{PREFIX}")):
            _, changes = decode_manifest(namespace.get(key), key)
            for path, value in changes.items():
                entry = decode_staged(value)
                if isinstance(entry, Entry) and entry.physical_address in there:
                    self._copied.append((path.decode(), entry))
        held.adopt(self._copied)
