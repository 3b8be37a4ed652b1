"""Changes that nobody else sees yet, over a ref: what transactions are made of."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from strandline import forks
from strandline.arguments import checked
from strandline.branch.conditional import failed_precondition
from strandline.branch.rules.ranges import Range
from strandline.branch.view import overlaid
from strandline.core.overwrite import Overwrite
from strandline.core.repository_core import RepositoryCore
from strandline.core.upload import Content, upload
from strandline.errors import UsageError
from strandline.ids import check_path, check_prefix
from strandline.repository.objects.moves import check_move, entries_below, moved
from strandline.repository.objects.writable import Writable, check_condition, distinct_keys
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref, key_range
from strandline.repository.transactions.claims import Claims, Guard, kept_or_own
from strandline.results.listing import objects_in
from strandline.results.rows import ObjectInfo, as_info
from strandline.tree.rows import TOMBSTONE, Entry, as_staged, check_one, check_staged, decode_staged, encode_staged


@checked(but=("delete",))
class Overlay(Writable):
    """What lies beneath, with private changes over it. Safe to share between threads."""

    is_transaction = True

    def __init__(self, core: RepositoryCore, name: str, beneath: Ref, target: Target) -> None:
        super().__init__(core, name, target)
        self._lock = forks.rlock()
        self._under_way = 0
        self._start_over(beneath)

    def _start_over(self, beneath: Ref) -> None:
        """Forget all changes."""
        self._beneath = beneath
        self._claims = Claims()
        self._sorted: list[bytes] | None = None
        self._files = 0
        self._rows: int | None = 0
        self._bytes = 0

    @abstractmethod
    def _refuse_closed(self) -> None:
        """Raise unless it can still be written: each kind has a life of its own."""

    # --- reading ------------------------------------------------------------------------------------------------------

    def _find(self, path: str, key: bytes) -> Entry | None:
        own = self._claims.changes.get(key)
        if own is None:
            return self._beneath._find(path, key)
        staged = decode_staged(own)
        return staged if isinstance(staged, Entry) else None

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        rows, reach = self._beneath._window(start, end, limit)
        own = self._own_keys(start, end if reach is None else reach + b"\0")
        if not own:
            return rows, reach
        return overlaid(rows, own, [self._claims.changes[key] for key in own])[0], reach

    def _own_keys(self, start: bytes, end: bytes | None) -> list[bytes]:
        with self._lock:
            if self._sorted is None:
                self._sorted = sorted(self._claims.changes)
            keys = self._sorted
        return keys[bisect_left(keys, start) : len(keys) if end is None else bisect_left(keys, end)]

    # --- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._refuse_early()
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def _wrote(self, files: int, rows: int | None, size_bytes: int) -> None:
        with self._lock:
            self._files += files
            self._bytes += size_bytes
            self._rows = None if rows is None or self._rows is None else self._rows + rows

    def put(
        self,
        path: str,
        content: Content,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        create: bool = False,
        if_match: str | None = None,
    ) -> ObjectInfo:
        """Write an object; it becomes visible with everything else.

        Args:
            create, if_match: as for `Branch.put`. What holds now must hold when the changes land: a change of the path
                by others until then is a conflict.

        Raises:
            PreconditionFailed: `create` or `if_match` does not hold.
        """
        check_path(path)
        condition = check_condition(create, if_match)
        if self.is_repeat:
            return self.find(path) or ObjectInfo(path, "", 0, "", 0)  # the first run may have called it otherwise
        with self.writing():
            entry = upload(self._core, self._new_key(path), path, content, content_type, metadata)
            value = check_one(entry)
            with self._lock:
                if condition is not None:
                    found = self._find(path, path.encode())
                    if not condition(found):
                        raise failed_precondition(self.name, path, found)
                    self._claims.exact.add(path)
                self._add({path.encode(): value})
            self._wrote(1, None, entry.size)
        return as_info(path, entry)

    def delete(self, path: str) -> bool:
        """Delete an object; whether there was one."""
        key = check_path(path)
        if self.is_repeat:
            return False
        self._refuse_closed()
        if self._find(path, key) is None:
            return False
        self._add({key: encode_staged(TOMBSTONE)})
        return True

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete several objects, whether they are there or not; returns the number of paths."""
        keys = distinct_keys(list(paths))
        if not self.is_repeat:
            there = [key for key in keys if self._find(key.decode(), key) is not None]
            self._add(dict.fromkeys(there, encode_staged(TOMBSTONE)))
        return len(keys)

    def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix; the commit is refused if somebody adds to it first. Returns the number."""
        check_prefix(prefix)
        if self.is_repeat:
            return 0
        return self.stage_atomically([], Overwrite(below=prefix))

    def copy(self, source: str, target: str, *, ref: Ref | str | None = None) -> int:
        """Copy an object, or with a trailing "/" everything below a prefix, without copying bytes; returns the number.

        The copies are of what the transaction reads, its own writes included. A change of the source by others until
        the changes land is a conflict.

        Raises:
            UsageError: `ref` is given: bytes that only another ref keeps could be collected before they are published.
        """
        if ref is not None:
            raise UsageError(
                "A transaction copies what it reads itself, not from another ref.",
                next="Read the objects there and put them here, or copy on the branch.",
            )
        return self._move(source, target, is_rename=False)

    def rename(self, source: str, target: str) -> int:
        """Rename an object, or with a trailing "/" everything below a prefix; see `copy`."""
        return self._move(source, target, is_rename=True)

    def _move(self, source: str, target: str, *, is_rename: bool) -> int:
        """Refer once more to bytes that are there.

        Invariant: what is found is kept until the changes land, since the collector keeps the commit that an open
        transaction was begun on, and all that the transaction wrote.
        """
        is_prefix = check_move(source, target, is_rename=is_rename, is_here=True)
        if self.is_repeat:
            return 0
        with self._lock:
            self._refuse_closed()
            found = entries_below(self, source, exactly=not is_prefix)
            self._add_known(moved(found, source, target, self, is_rename=is_rename))
            self._claims.exact.update(path for path, _ in found)
            if is_prefix:
                self._claims.guards.append(Guard(source))
        return len(found)

    def stage_atomically(
        self,
        entries: Sequence[tuple[str, Entry]],
        overwrite: Overwrite | None = None,
        expect: Mapping[str, str | None] | None = None,
    ) -> int:
        """Write entries; see `Writable`. What is expected here is judged again when the changes land."""
        values = check_staged([entry for _, entry in entries])
        changes = dict(zip([check_path(path) for path, _ in entries], values, strict=True))
        present: Collection[str] = ()
        with self._lock:
            self._refuse_closed()
            if overwrite is not None:
                present = overwrite.present
                tombstone = encode_staged(TOMBSTONE)
                for path, entry in objects_in(self, Range(*key_range(overwrite.below))):
                    key = path.encode()
                    if key not in changes and not overwrite.keep(path, entry):
                        changes[key] = tombstone
                keep = kept_or_own(overwrite.keep, changes)
                self._claims.guards.append(Guard(overwrite.below, keep, overwrite.if_changed == "replace"))
            self._claims.exact.update(expect or ())
            self._claims.exact.update(present)
            self._add(changes)
        return len(changes)

    def stage_each(self, entries: Sequence[tuple[str, Entry]]) -> int:
        """Write entries, all at one instant; see `Writable`."""
        return self.stage_atomically(entries)

    def stage_expecting(
        self,
        changes: Mapping[str, Entry | None],
        expected: Mapping[str, Entry | None],
        alone: Sequence[str] = (),
    ) -> bool:
        """Write and delete at one instant, if paths show what is expected; see `Writable`.

        Invariant: what is expected is compared and replaced under the lock that the commit holds as well. Until the
        changes land, others may change none of these paths, and add nothing below the prefixes.
        """
        with self._lock:
            self._refuse_closed()
            if any(self._find(path, path.encode()) != wanted for path, wanted in expected.items()):
                return False
            for prefix in alone:
                if any(path not in changes for path, _ in objects_in(self, Range(*key_range(prefix)))):
                    return False
            self._claims.exact.update(expected)
            self._claims.guards += [Guard(prefix) for prefix in alone]
            self._add_known(as_staged(changes))
        return True

    def _add_known(self, changes: Mapping[bytes, bytes]) -> None:
        """Add changes whose bytes are kept by something else than this: they need not be its own."""
        Overlay._add(self, changes)

    def _add(self, changes: Mapping[bytes, bytes]) -> None:
        with self._lock:
            self._refuse_closed()
            self._claims.changes.update(changes)
            self._sorted = None
