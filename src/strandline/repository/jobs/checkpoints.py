"""How a job under a lock remembers what it has copied, so that another process goes on when it dies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from strandline.blob import BlobNotFound
from strandline.branch import transactions
from strandline.branch.rules.lock_rules import grouped
from strandline.core.manifest import decode_manifest, encode_manifest, sorted_changes
from strandline.core.physical import transaction_folder, transaction_prefix
from strandline.ids import CommitId, new_id
from strandline.repository.locks.held import LockedTransaction
from strandline.tree.rows import Entry, decode_staged, encode_staged

PREFIX = "checkpoint-"
SOURCE = "strandline.source"
"""In the metadata of a job's commit and checkpoints: what it copied from."""


class Checkpoints:
    """The checkpoints of a transaction under a lock: files beside its manifest, each with some of its changes.

    A run that begins under the name of a job whose transaction is open, with its lock held, goes on with that very
    transaction, if its source is the same still; else it begins anew. If the first process lives after all, both write
    to keys of their own, and one of them is published.

    Args:
        source: what the job copies from, in the state that it is in: a commit, or a digest of a listing.
        paths: what it copies; nothing else is taken from a checkpoint.
    """

    def __init__(self, held: LockedTransaction, source: str, paths: Collection[str]) -> None:
        self._held = held
        self._source = source
        self._paths = paths
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
        folder = transaction_folder(held.branch_id, held.id)
        key = f"{folder}{PREFIX}{new_id()}.parquet"
        body = encode_manifest(held._facts(), sorted_changes(changes))
        held._core.resolver.namespace.put(key, body)

    def _resume(self) -> None:
        held = self._held
        core = held._core
        branch = held._at.read().branch
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
        namespace = core.resolver.namespace
        copied: dict[str, Entry] = {}
        there = set(namespace.list_keys(transaction_prefix(held.branch_id, writer.started)))
        for key in sorted(namespace.list_keys(f"{transaction_folder(held.branch_id, writer.started)}{PREFIX}")):
            try:
                facts, changes = decode_manifest(namespace.get(key), key)
            except BlobNotFound:
                return  # the run that was to be gone on with has ended, and its files are being collected
            if facts.metadata.get(SOURCE) != self._source:
                return
            for path, value in changes.items():
                entry = decode_staged(value)
                is_there = isinstance(entry, Entry) and entry.physical_address in there
                if isinstance(entry, Entry) and is_there and path.decode() in self._paths:
                    copied[path.decode()] = entry
        held._go_on(mine[0].id, writer.started, CommitId(record.base))
        self._copied = sorted(copied.items())
        held._adopt(self._copied)
