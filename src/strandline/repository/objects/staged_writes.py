"""Writing to a branch without a commit: objects that are put, linked, copied, renamed and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from strandline.arguments import checked
from strandline.blob import BlobNotFound
from strandline.branch.attach import Computed, attach_changes, attach_pairs
from strandline.branch.conditional import stage_if
from strandline.branch.reset import reset_all, reset_range
from strandline.branch.rules.lock_rules import refuse_locked_keys, refuse_quarantined
from strandline.branch.rules.ranges import Range, single
from strandline.branch.rules.record import BranchRecord, refuse_blocked
from strandline.branch.staging import stage
from strandline.branch.view import Layers, consistently_seen
from strandline.clock import Microseconds
from strandline.core.overwrite import Overwrite
from strandline.core.physical import new_key, write_folder
from strandline.core.promises import announce_links, pinned
from strandline.core.texts import check_entries, check_metadata
from strandline.core.upload import Content, upload
from strandline.errors import Conflict, NotAllowed, RangeLocked, UsageError, some_paths
from strandline.ids import check_path, check_prefix, encoded, new_id
from strandline.operations import logged
from strandline.repository.objects.branch_view import BranchView
from strandline.repository.objects.moves import check_move, entries_below, moved
from strandline.repository.objects.writable import check_condition, distinct_keys
from strandline.repository.refs.ref import Ref, key_range
from strandline.results.rows import ObjectInfo, as_info
from strandline.tree.rows import TOMBSTONE, Entry, as_staged, check_one, check_staged, column, encode_staged, entries_of

READ_WINDOW_ROWS = 50_000


@checked(but=("stage", "delete"))
class StagedWrites(BranchView):
    """The staged changes of a branch."""

    def _refuse_early(self, path: str | None = None) -> None:
        seen, is_fresh = self._cell.cached(self.branch_id)
        keys = [] if path is None else [path.encode()]

        def judge(record: BranchRecord) -> None:
            refuse_blocked(record, "stage", self.name, forced=self._is_forced)
            refuse_locked_keys(record, self.name, keys)

        try:
            judge(seen.branch)
        except (NotAllowed, RangeLocked):
            if is_fresh:
                raise
            judge(self._at.read().branch)

    def _new_key(self, path: str) -> str:
        return new_key(self.branch_id, path)

    def _new_folder(self) -> str:
        return write_folder(self.branch_id, new_id())

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
        """Write an object; it is staged, and part of the next commit.

        Args:
            content: bytes, text, a `Path` of a local file, or a binary file.
            create: the path must hold no object.
            if_match: the object at the path must have this checksum.

        Raises:
            PreconditionFailed: `create` or `if_match` does not hold.
        """
        check_path(path)
        condition = check_condition(create, if_match)
        self._refuse_early(path)
        entry = upload(self._core, self._new_key(path), path, content, content_type, metadata)
        if condition is None:
            self.stage(path, entry)
        else:
            stage_if(self._at, path, entry, condition)
        return as_info(path, entry)

    def stage(self, path: str, entry: Entry) -> None:
        """Stage an object whose bytes the caller has just written."""
        stage(self._at, [(check_path(path), check_one(entry))])

    def stage_each(self, entries: Sequence[tuple[str, Entry]]) -> int:
        """Stage objects whose bytes the caller has just written; not atomic. Returns their number."""
        pairs = staged_pairs(entries)
        if pairs:
            stage(self._at, pairs)
        return len(pairs)

    def link(
        self,
        path: str,
        physical_address: str,
        *,
        size: int,
        checksum: str,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        create: bool = False,
        if_match: str | None = None,
        modified_at_us: Microseconds | None = None,
    ) -> ObjectInfo:
        """Stage an object whose bytes are elsewhere already.

        Args:
            create: the path must hold no object.
            if_match: the object at the path must have this checksum.
            modified_at_us: when it was written, in microseconds since 1970 UTC; by default now.

        Raises:
            ObjectMissing: there are no bytes at the address, or they are being collected as garbage.
            PreconditionFailed: `create` or `if_match` does not hold.
        """
        condition = check_condition(create, if_match)
        moment_us = self._core.stores.clock.now_us() if modified_at_us is None else modified_at_us
        entry = Entry(physical_address, size, checksum, moment_us, content_type, check_metadata(metadata))
        check_entries([(path, entry)])
        announce_links(self._core.stores, [physical_address])
        blobs, key = self._core.resolver.resolve(physical_address)
        try:
            found = blobs.head(key)
        except BlobNotFound:
            raise self._missing(as_info(path, entry)) from None
        if found.size != size:
            raise UsageError(
                f"{physical_address!r} has {found.size:,} bytes, not {size:,}.", next="Give the size that it has."
            )
        if condition is None:
            self.stage(path, entry)
        else:
            stage_if(self._at, path, entry, condition)
        return as_info(path, entry)

    def link_many(self, entries: Iterable[tuple[str, Entry]], *, atomic: bool = False) -> int:
        """Stage many objects whose bytes are elsewhere already, where their entries say; returns their number.

        One check of the branch however many there are. Without `atomic` a failed call may have staged some of them.

        Raises:
            ObjectMissing: some of the bytes are being collected as garbage.
            UsageError: a path occurs twice.
        """
        listed = entries if isinstance(entries, list) else list(entries)
        check_entries(listed)
        announce_links(self._core.stores, [entry.physical_address for _, entry in listed])
        return self.stage_atomically(listed) if atomic else self.stage_each(listed)

    def delete(self, path: str) -> bool:
        """Delete an object; whether there was one. Deleting what is not there is fine."""
        key = check_path(path)
        self._refuse_early(path)

        def is_known(record: BranchRecord) -> bool:
            layers = Layers(self._cell, self._core.commits, record)
            return layers.find_staged(key) is not None or layers.find(path, key) is not None

        # the only case without a tombstone: no layer holds the path, and a fresh read shows the same layers
        known, seen = consistently_seen(self._at, is_known)
        if not known:
            return False
        stage(self._at, [(key, encode_staged(TOMBSTONE))], seen)
        self._staged_tombstones(1)
        return True

    def _staged_tombstones(self, count: int) -> None:
        record = self._cell.remembered
        if self._cell.sensor is not None and record is not None and record.branch_id == self.branch_id:
            self._cell.sensor.saw_tombstones(self.name, record, count)

    @logged("delete many")
    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete several objects with one check of the branch, whether they are there or not; returns their number."""
        value = encode_staged(TOMBSTONE)
        pairs = [(key, value) for key in distinct_keys(list(paths))]
        if pairs:
            stage(self._at, pairs)
            self._staged_tombstones(len(pairs))
        return len(pairs)

    @logged("delete prefix")
    def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix at one instant; returns the number of objects."""
        value = encode_staged(TOMBSTONE)
        check_prefix(prefix)

        def compute(record: BranchRecord) -> Computed:
            return Computed([(key, value) for rows in self._sealed_rows(record, prefix) for key in keys_of(rows)])

        count = attach_changes(self._at, compute, [Range(*key_range(prefix))])
        self._staged_tombstones(count)
        return count

    @logged("copy")
    def copy(self, source: str, target: str, *, ref: Ref | str | None = None) -> int:
        """Copy an object, or with a trailing "/" everything below a prefix, without copying bytes.

        All copies appear at one instant. Returns their number.

        Args:
            ref: where the source is; this branch by default.
        """
        return self._move(source, target, self if ref is None else self._other(ref), is_rename=False)

    def copy_object(
        self,
        source: ObjectInfo,
        target: str,
        *,
        ref: Ref,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        replaces: bool = False,
        create: bool = False,
        if_match: str | None = None,
    ) -> ObjectInfo:
        """Stage a copy of one object of this repository, without copying bytes, as an object written now.

        Unlike `copy`, it stops nobody: a source that is changed during the call may be copied as it was before.

        Args:
            source: as `ref` shows it.
            replaces: whether content type and metadata are those given here; else they are those of the source.
            create, if_match: as for `put`.

        Raises:
            Conflict: the source was changed while it was being copied, and its bytes may go.
        """
        condition = check_condition(create, if_match)
        entry = Entry(
            source.physical_address,
            source.size,
            source.checksum,
            self._core.stores.clock.now_us(),
            content_type if replaces else source.content_type,
            check_metadata(metadata) if replaces else source.user_metadata,
            source.etag if self._core.keeps_etags else None,
        )
        check_entries([(target, entry)])
        self._refuse_early(target)
        # bytes that are there already: say so, then look whether the source still has them
        announce_links(self._core.stores, [source.physical_address])
        again = ref.find(source.path)
        if again is None or again.physical_address != source.physical_address:
            raise Conflict(
                f"{source.path!r} in {ref!r} was changed while it was being copied.",
                paths=[source.path],
                next="Repeat the call.",
            )
        if condition is None:
            self.stage(target, entry)
        else:
            stage_if(self._at, target, entry, condition)
        return as_info(target, entry)

    @logged("rename")
    def rename(self, source: str, target: str) -> int:
        """Rename an object, or with a trailing "/" everything below a prefix, at one instant; returns the number."""
        return self._move(source, target, self, is_rename=True)

    def _move(self, source: str, target: str, ref: Ref, *, is_rename: bool) -> int:
        is_prefix = check_move(source, target, is_rename=is_rename, is_here=ref is self)

        def compute(record: BranchRecord) -> Computed:
            if ref is self:
                found = self._sealed(record, source, exactly=not is_prefix)
            else:
                found = entries_below(ref, source, exactly=not is_prefix)
            # bytes that are there already: say so, then look whether the source still has them
            announce_links(self._core.stores, [entry.physical_address for _, entry in found])
            if ref is not self and entries_below(ref, source, exactly=not is_prefix) != found:
                raise Conflict(
                    f"{source!r} in {ref!r} was changed while it was being copied.",
                    paths=[source],
                    next="Repeat the call.",
                )
            return Computed(list(moved(found, source, target, ref, is_rename=is_rename).items()))

        with pinned(self._core.stores, [ref.commit_id] if ref is not self else [], f"copy to {self.name}"):
            gone = [Range(*key_range(source)) if is_prefix else single(source)] if is_rename else []
            staged = attach_changes(self._at, compute, gone)
        return staged // 2 if is_rename else staged

    def _sealed(self, record: BranchRecord, prefix: str, *, exactly: bool = False) -> list[tuple[str, Entry]]:
        """What the sealed layers and the tree of a record hold; the staging token above them is left out."""
        refuse_quarantined(record, self.name, single(prefix) if exactly else Range(*key_range(prefix)))
        layers = Layers(self._cell, self._core.commits, without_staging(record))
        if exactly:
            entry = layers.find(prefix, prefix.encode())
            return [] if entry is None else [(prefix, entry)]
        return [pair for rows in self._sealed_rows(record, prefix) for pair in entries_of(rows)]

    def _sealed_rows(self, record: BranchRecord, prefix: str) -> Iterator[pa.Table]:
        layers = Layers(self._cell, self._core.commits, without_staging(record))
        start, end = key_range(prefix)
        low: bytes | None = start.encode()
        while low is not None:
            rows, reach = layers.window(low, encoded(end), READ_WINDOW_ROWS)
            yield rows
            low = None if reach is None else reach + b"\0"

    def stage_atomically(
        self,
        entries: Sequence[tuple[str, Entry]],
        overwrite: Overwrite | None = None,
        expect: Mapping[str, str | None] | None = None,
    ) -> int:
        """Stage entries, and perhaps delete what else is below a prefix, at one instant; see `Writable`."""
        new = staged_pairs(entries)
        if overwrite is None and not expect:
            return attach_pairs(self._at, new) if new else 0
        written = {key for key, _ in new}
        value = encode_staged(TOMBSTONE)

        def compute(record: BranchRecord) -> Computed:
            for path, checksum in (expect or {}).items():
                found = self._sealed(record, path, exactly=True)
                if (found[0][1].checksum if found else None) != checksum:
                    raise Conflict(
                        f"{path!r} on branch {self.name!r} was changed by somebody else during the call.",
                        paths=[path],
                        next="Look at the change, then repeat the call.",
                    )
            gone: list[tuple[bytes, bytes]] = []
            if overwrite is not None:
                missing = set(overwrite.present)
                for rows in self._sealed_rows(record, overwrite.below):
                    for path, entry in entries_of(rows):
                        missing.discard(path)
                        key = path.encode()
                        if key not in written and not overwrite.keep(path, entry):
                            gone.append((key, value))
                if missing:
                    told = some_paths(sorted(missing))
                    raise Conflict(
                        f"{told} on branch {self.name!r} was deleted by somebody else during the call.",
                        paths=sorted(missing),
                        next="Look at the change, then repeat the call.",
                    )
            return Computed(new + gone)

        return attach_changes(self._at, compute)

    def stage_expecting(
        self,
        changes: Mapping[str, Entry | None],
        expected: Mapping[str, Entry | None],
        alone: Sequence[str] = (),
    ) -> bool:
        """Stage and delete at one instant, if paths hold what is expected then; see `Writable`."""
        pairs = sorted(as_staged(changes).items())

        def compute(record: BranchRecord) -> Computed:
            for path, wanted in expected.items():
                found = self._sealed(record, path, exactly=True)
                if (found[0][1] if found else None) != wanted:
                    raise _NotAsExpected
            for prefix in alone:
                for rows in self._sealed_rows(record, prefix):
                    if any(path not in changes for path, _ in entries_of(rows)):
                        raise _NotAsExpected
            return Computed(pairs)

        try:
            attach_changes(self._at, compute)
        except _NotAsExpected:
            return False
        return True

    @logged("discard")
    def discard(self, path: str | None = None, *, prefix: str | None = None) -> None:
        """Throw staged changes away: all, those of a path, or those below a prefix."""
        if path is not None and prefix is not None:
            raise UsageError("Give a path or a prefix, not both.")
        if path is not None:
            check_path(path)
            reset_range(self._at, path, path + "\0")
        elif prefix:
            check_prefix(prefix)
            reset_range(self._at, *key_range(prefix))
        else:
            reset_all(self._at)


class _NotAsExpected(Exception):
    """A path holds something else than it was to hold."""


def keys_of(rows: pa.Table) -> list[bytes]:
    keys: list[bytes] = column(rows, "path").cast(pa.binary()).to_pylist()
    return keys


def without_staging(record: BranchRecord) -> BranchRecord:
    sealed = record.sealed_tokens
    return replace(record, staging_token=sealed[0], sealed_tokens=sealed[1:])


def staged_pairs(entries: Sequence[tuple[str, Entry]]) -> list[tuple[bytes, bytes]]:
    keys = distinct_keys([path for path, _ in entries])
    return list(zip(keys, check_staged([entry for _, entry in entries]), strict=True))
