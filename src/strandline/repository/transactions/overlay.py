"""Changes that nobody else sees yet, over a ref: what transactions are made of."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

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
from strandline.repository.refs.ref import Ref, as_changes, key_range
from strandline.repository.transactions.claims import Claims, Guard, Step, kept_or_own
from strandline.results.listing import objects_in
from strandline.results.rows import ObjectInfo, as_info
from strandline.tree.rows import (
    TOMBSTONE,
    Changes,
    Entry,
    as_staged,
    check_one,
    check_staged,
    decode_staged,
    encode_staged,
)
from strandline.tree.store import EMPTY, Tree


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

    def _layers(self, prefix: str) -> tuple[Tree, list[Changes]]:
        return EMPTY, as_changes(self, prefix)

    @abstractmethod
    def _refuse_closed(self) -> None:
        """Raise unless it can still be written: each kind has a life of its own."""

    def _refresh(self) -> None:
        """Take in what other processes have added."""

    def _deciding(self) -> AbstractContextManager[object]:
        """While a step is decided."""
        return nullcontext()

    def _keep(self, step: Step) -> bool:
        """Have a step count, before it shows; False if others were first, so that it has to be decided anew."""
        return True

    # --- reading ------------------------------------------------------------------------------------------------------

    def _find(self, path: str, key: bytes) -> Entry | None:
        self._refresh()
        own = self._claims.changes.get(key)
        if own is None:
            return self._beneath._find(path, key)
        staged = decode_staged(own)
        return staged if isinstance(staged, Entry) else None

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        self._refresh()
        # taken first, and replaced last: what lies beneath by then holds them, or they are still to be laid over it
        changes = self._claims.changes
        rows, reach = self._beneath._window(start, end, limit)
        own, values = self._own(changes, start, end if reach is None else reach + b"\0")
        return (overlaid(rows, own, values)[0] if own else rows), reach

    def _own(self, changes: Mapping[bytes, bytes], start: bytes, end: bytes | None) -> tuple[list[bytes], list[bytes]]:
        """The keys and values of changes in a range, both as they were at one moment."""
        with self._lock:
            if changes is not self._claims.changes:  # replaced since
                keys = sorted(changes)
            else:
                if self._sorted is None:
                    self._sorted = sorted(changes)
                keys = self._sorted
            own = keys[bisect_left(keys, start) : len(keys) if end is None else bisect_left(keys, end)]
            return own, [changes[key] for key in own]

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

            def decide() -> Step:
                if condition is None:
                    return Step({path.encode(): value})
                found = self._find(path, path.encode())
                if not condition(found):
                    raise failed_precondition(self.name, path, found)
                return Step({path.encode(): value}, exact=(path,))

            self._change(decide)
            self._wrote(1, None, entry.size)
        return as_info(path, entry)

    def delete(self, path: str) -> bool:
        """Delete an object; whether there was one."""
        key = check_path(path)
        if self.is_repeat:
            return False
        tombstone = {key: encode_staged(TOMBSTONE)}
        return self._change(lambda: None if self._find(path, key) is None else Step(tombstone))

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete several objects, whether they are there or not; returns the number of paths."""
        keys = distinct_keys(list(paths))
        if not self.is_repeat:

            def decide() -> Step:
                there = [key for key in keys if self._find(key.decode(), key) is not None]
                return Step(dict.fromkeys(there, encode_staged(TOMBSTONE)))

            self._change(decide)
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
        found: list[tuple[str, Entry]] = []

        def decide() -> Step:
            found[:] = entries_below(self, source, exactly=not is_prefix)
            return Step(
                moved(found, source, target, self, is_rename=is_rename),
                exact=[path for path, _ in found],
                guards=[Guard(source)] if is_prefix else (),
                is_kept=True,
            )

        self._change(decide)
        return len(found)

    def stage_atomically(
        self,
        entries: Sequence[tuple[str, Entry]],
        overwrite: Overwrite | None = None,
        expect: Mapping[str, str | None] | None = None,
    ) -> int:
        """Write entries; see `Writable`. What is expected here is judged again when the changes land."""
        values = check_staged([entry for _, entry in entries])
        own = dict(zip([check_path(path) for path, _ in entries], values, strict=True))
        tombstone = encode_staged(TOMBSTONE)
        made = 0

        def decide() -> Step:
            nonlocal made
            if overwrite is None:
                made = len(own)
                return Step(own, exact=expect or ())
            changes = dict(own)
            for path, entry in objects_in(self, Range(*key_range(overwrite.below))):
                key = path.encode()
                if key not in changes and not overwrite.keep(path, entry):
                    changes[key] = tombstone
            made = len(changes)
            guard = Guard(overwrite.below, kept_or_own(overwrite.keep, changes), overwrite.if_changed == "replace")
            return Step(changes, exact=[*(expect or ()), *overwrite.present], guards=[guard])

        self._change(decide)
        return made

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

        def decide() -> Step | None:
            if any(self._find(path, path.encode()) != wanted for path, wanted in expected.items()):
                return None
            for prefix in alone:
                if any(path not in changes for path, _ in objects_in(self, Range(*key_range(prefix)))):
                    return None
            guards = [Guard(prefix) for prefix in alone]
            return Step(as_staged(changes), exact=tuple(expected), guards=guards, is_kept=True)

        return self._change(decide)

    def _add_kept(self, changes: Mapping[bytes, bytes]) -> None:
        """Add changes whose bytes are kept by something else than this: they need not be its own."""
        self._change(lambda: Step(changes, is_kept=True))

    def _add(self, changes: Mapping[bytes, bytes]) -> None:
        self._change(lambda: Step(changes))

    def _change(self, decide: Callable[[], Step | None]) -> bool:
        """Make the changes that are decided on what is there, whatever that is by then; whether there are any."""
        with self._lock:
            while True:
                self._refresh()
                self._refuse_closed()
                with self._deciding():
                    step = decide()
                if step is None:
                    return False
                self._check(step)
                if self._keep(step):
                    self._claims.add(step)
                    self._sorted = None
                    return True

    def _check(self, step: Step) -> None:
        """Raise if a step cannot be made, however often it is tried."""
