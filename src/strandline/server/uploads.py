"""Multipart uploads on every store: records that any worker completes, and where the bytes of parts go.

On a disk the parts lie in one file, in a grid: the first part that comes says how long a part is, and part n of that
length is written at its place in the file. So completing an upload of any size cuts the file. A slot of the grid is
claimed once; a part that comes again, or has another length, gets a file of its own, and then the parts are copied into
a new one.

Invariants:
1. Who writes to a slot has claimed it, and has found the upload open after that. Who completes first moves the upload
   on, and lists the claims after that. So either the writer finds it moved on and writes nothing, or the claim is seen,
   and a slot that is claimed and not finished is never taken for a part of the object.
2. Completing and aborting move the record by a swap: of two, one wins.
3. Bytes of parts are referred to by nothing but these records. They are younger than an upload may last, which is not
   more than the grace of a collection; an object of them is announced as a link before it is staged.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Literal

import msgspec
from msgspec.structs import replace

from strandline.blob import BlobNotFound, BlobStore
from strandline.blob.store import PartsStore
from strandline.clock import Microseconds
from strandline.core.promises import announce_links
from strandline.envelope import decode, encode
from strandline.errors import Contention, StrandlineError
from strandline.ids import keys_below, new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.repository.branch import Branch
from strandline.server.conditions import stage_conditionally
from strandline.server.refusals import BadRequest, Refusal
from strandline.tree.rows import Entry

PARTITION = b"uploads"
PART_MIN_BYTES = 5 << 20
PART_MAX_BYTES = 5 << 30
PARTS_MAX = 10_000
LASTS_US = 7 * 86_400 * 1_000_000
REMEMBERED_US = 86_400 * 1_000_000
"""For how long a completed upload is known, so that a completion that is repeated gets the same answer."""
ATTEMPTS = 16
READ_BYTES = 1 << 20
SETTLE_ATTEMPTS = 100
SETTLE_EACH_S = 0.05
TAKEN_OVER_AFTER_US = 120 * 1_000_000

State = Literal["open", "completing", "done"]


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that is under way, or was completed lately.

    Attributes:
        place: the physical key of the file with the grid.
        grid: how long a part of the grid is; 0 as long as no part has come.
        user: that began it.
        etag: of the object, once it is done.
        moved_at: when its completion began: one that died is taken over after a while.
        completed_at: when it was done.
    """

    id: str
    branch: str
    branch_id: str
    path: str
    place: str
    user: str
    begun_at: Microseconds
    content_type: str | None = None
    user_metadata: str | None = None
    grid: int = 0
    state: State = "open"
    etag: str = ""
    moved_at: Microseconds = 0
    completed_at: Microseconds = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part whose bytes are there.

    Attributes:
        place: the physical key of a file of its own, or "" in the grid.
    """

    number: int
    size: int
    md5: str
    written_at: Microseconds
    place: str = ""


class Uploads:
    """The uploads of a lake. Safe to share between threads and processes."""

    def __init__(self, kv: Store) -> None:
        self._kv = kv

    # --- records -----------------------------------------------------------------------------------------------------

    def begin(
        self, branch: Branch, path: str, user: str, content_type: str | None, user_metadata: str | None
    ) -> Upload:
        """Begin an upload."""
        upload = Upload(
            id=new_id() + new_id(),
            branch=branch.name,
            branch_id=branch.branch_id,
            path=path,
            place=branch._new_key(path),
            user=user,
            begun_at=branch._core.stores.clock.now_us(),
            content_type=content_type,
            user_metadata=user_metadata,
        )
        self._kv.set(PARTITION, _key(branch, upload.id), encode(upload))
        return upload

    def get(self, branch: Branch, path: str, id: str) -> Upload:
        """An upload that can be completed, or was; raises `Refusal` with the code NoSuchUpload."""
        return self._read(branch, path, id)[1]

    def _read(self, branch: Branch, path: str, id: str) -> tuple[bytes, Upload]:
        is_id = len(id) == 40 and id.isascii() and id.isalnum()
        raw = self._kv.get(PARTITION, _key(branch, id)) if is_id else None
        found = None if raw is None else decode(Upload, raw, f"upload {id}")
        if raw is None or found is None or found.path != path or found.branch_id != branch.branch_id:
            raise no_such_upload()
        return raw, found

    def parts(self, branch: Branch, id: str, after: int = 0) -> Iterator[Part]:
        """The parts of an upload whose bytes are there, by number."""
        start, end = keys_below(_key(branch, id) + b"/part/")
        for _, raw in self._kv.scan(PARTITION, start + (b"%05d\0" % after if after else b""), end):
            yield decode(Part, raw, f"a part of upload {id}")

    def open_ones(self, branch: Branch, prefix: str = "") -> Iterator[Upload]:
        """The open uploads of a branch, in no particular order."""
        for upload in self.of_repository(branch):
            if upload.branch_id == branch.branch_id and upload.state == "open" and upload.path.startswith(prefix):
                yield upload

    def of_repository(self, branch: Branch) -> Iterator[Upload]:
        """All uploads of the repository of a branch."""
        yield from self._all(_below(branch))

    def _all(self, below: bytes) -> Iterator[Upload]:
        start, end = keys_below(below)
        for key, raw in self._kv.scan(PARTITION, start, end):
            if key.count(b"/") == 1:
                yield decode(Upload, raw, "an upload")

    # --- parts -------------------------------------------------------------------------------------------------------

    def put(self, branch: Branch, path: str, id: str, number: int, data: BinaryIO, size: int | None) -> Part:
        """Store a part. One of the same number that was there before counts no more.

        Args:
            size: as the client says it; None if it does not.

        Raises:
            BadRequest: the number is not 1 to 10,000, or the part is too large.
        """
        if not 1 <= number <= PARTS_MAX:
            raise BadRequest(f"Part numbers are 1 to {PARTS_MAX:,}.", s3_code="InvalidArgument")
        if size is not None and size > PART_MAX_BYTES:
            raise BadRequest("The part is too large.", s3_code="EntityTooLarge")
        upload = self._open(branch, path, id)
        blobs = branch._core.resolver.namespace
        hashed = _Hashed(data, PART_MAX_BYTES if size is None else size)
        place = ""
        if isinstance(blobs, PartsStore) and size and self._claims_slot(branch, upload, number, size):
            upload = self._open(branch, path, id)  # invariant 1: looked at after the claim
            blobs.put_at(upload.place, (number - 1) * upload.grid, hashed)  # type: ignore[arg-type]
        else:
            place = branch._new_key(path)
            blobs.put(place, hashed, "fresh")  # type: ignore[arg-type]
        part = Part(
            number=number,
            size=hashed.size,
            md5=hashed.md5.hexdigest(),
            written_at=branch._core.stores.clock.now_us(),
            place=place,
        )
        self._open(branch, path, id)
        self._kv.set(PARTITION, _key(branch, id) + b"/part/%05d" % number, encode(part))
        return part

    def _open(self, branch: Branch, path: str, id: str) -> Upload:
        upload = self.get(branch, path, id)
        if upload.state != "open":
            raise no_such_upload()
        return upload

    def _claims_slot(self, branch: Branch, upload: Upload, number: int, size: int) -> bool:
        """Whether the part may be written into the grid: it fits there, and nobody was given its slot before."""
        grid = upload.grid or self._propose_grid(branch, upload, size)
        if size > grid:
            return False
        key = _key(branch, upload.id) + b"/slot/%05d" % number
        try:
            self._kv.set_if(PARTITION, key, b"claimed", ABSENT)
        except PredicateFailed:
            return False
        return True

    def _propose_grid(self, branch: Branch, upload: Upload, size: int) -> int:
        for _ in range(ATTEMPTS):
            raw, now = self._read(branch, upload.path, upload.id)
            if now.grid or now.state != "open":
                return now.grid
            try:
                self._kv.set_if(PARTITION, _key(branch, upload.id), encode(replace(now, grid=size)), raw)
            except PredicateFailed:
                continue
            return size
        raise _contended()

    # --- the end -----------------------------------------------------------------------------------------------------

    def complete(
        self,
        branch: Branch,
        path: str,
        id: str,
        wanted: Sequence[tuple[int, str]],
        *,
        only_new: bool = False,
        only_as: str = "",
    ) -> Upload:
        """Make an object of parts, in their order, and stage it. Repeated, it gives the same answer for a day.

        Args:
            wanted: numbers and ETags.

        Raises:
            BadRequest: a part is not there, has another ETag, is too small, or they are not in order.
            PreconditionFailed: the path holds what `only_new` or `only_as` does not allow.
        """
        upload = self._settled(branch, path, id)
        while True:
            if upload.state == "done":
                return upload
            try:
                chosen = self._chosen(branch, id, wanted)
            except BadRequest:
                if self.get(branch, path, id) != upload:
                    upload = self._settled(branch, path, id)
                    continue  # another one completed it meanwhile, and its parts are gone
                raise
            branch._refuse_early(path)
            now_us = branch._core.stores.clock.now_us()
            try:
                upload = self._swap(branch, upload, replace(upload, state="completing", moved_at=now_us))
                break
            except PredicateFailed:
                upload = self._settled(branch, path, id)
        try:
            place = self._join(branch, upload, chosen)
            digest = hashlib.md5(b"".join(bytes.fromhex(part.md5) for part in chosen), usedforsecurity=False)
            etag = f"{digest.hexdigest()}-{len(chosen)}"
            now_us = branch._core.stores.clock.now_us()
            size = sum(part.size for part in chosen)
            entry = Entry(place, size, f"etag:{etag}", now_us, upload.content_type, upload.user_metadata)
            announce_links(branch._core.stores, [place])
            try:
                found = branch._core.resolver.namespace.head(place)
            except BlobNotFound:
                raise no_such_upload() from None
            if found.size != size:
                raise Refusal("The parts do not give the object that they should.", status=500)
            self._stage(branch, path, entry, only_new=only_new, only_as=only_as)
        except BaseException as error:
            # where the object may be staged nobody may delete its bytes: a repetition finds out, after a while
            if getattr(error, "happened", "no") == "no":
                with suppress(StrandlineError, PredicateFailed):
                    self._swap(branch, upload, replace(upload, state="open", moved_at=0))
            raise
        with suppress(PredicateFailed):  # another one took over, and gives the same answer
            upload = self._swap(branch, upload, replace(upload, state="done", etag=etag, completed_at=now_us))
        done = replace(upload, state="done", etag=etag, completed_at=now_us)
        with suppress(StrandlineError):  # what is left is swept later
            self._forget_parts(branch, done, keep=place)
        return done

    def _settled(self, branch: Branch, path: str, id: str) -> Upload:
        """The upload, when nobody is completing it any more, or that has taken too long."""
        clock = branch._core.stores.clock
        for _ in range(SETTLE_ATTEMPTS):
            upload = self.get(branch, path, id)
            if upload.state != "completing" or clock.now_us() - upload.moved_at > TAKEN_OVER_AFTER_US:
                return upload
            clock.sleep(SETTLE_EACH_S)
        raise Contention("The upload is being completed by somebody else.", next="Repeat the request.")

    def _stage(self, branch: Branch, path: str, entry: Entry, *, only_new: bool, only_as: str) -> None:
        if only_new or only_as:
            stage_conditionally(branch, path, entry, only_new=only_new, only_as=only_as)
        else:
            branch.stage(path, entry)

    def _chosen(self, branch: Branch, id: str, wanted: Sequence[tuple[int, str]]) -> list[Part]:
        held = {part.number: part for part in self.parts(branch, id)}
        chosen: list[Part] = []
        for number, etag in wanted:
            part = held.get(number)
            if chosen and number <= chosen[-1].number:
                raise BadRequest("The parts are not in the order of their numbers.", s3_code="InvalidPartOrder")
            if part is None or part.md5 != etag.strip('"'):
                raise BadRequest(f"Part {number} is not there, or has another ETag.", s3_code="InvalidPart")
            chosen.append(part)
        if not chosen:
            raise BadRequest("The list of parts is empty.", s3_code="MalformedXML")
        if any(part.size < PART_MIN_BYTES for part in chosen[:-1]):
            raise BadRequest("A part other than the last one has less than 5 MiB.", s3_code="EntityTooSmall")
        return chosen

    def _join(self, branch: Branch, upload: Upload, chosen: list[Part]) -> str:
        """The physical key under which the parts are one object."""
        blobs = branch._core.resolver.namespace
        start, end = keys_below(_key(branch, upload.id) + b"/slot/")
        claimed = {int(key.rpartition(b"/")[2]) for key, _ in self._kv.scan(PARTITION, start, end)}
        finished = {part.number for part in self.parts(branch, upload.id) if not part.place}
        is_grid = (
            claimed <= finished
            and finished <= {part.number for part in chosen}  # a cut must lose nothing that may be asked for again
            and all(not part.place for part in chosen)
            and [part.number for part in chosen] == list(range(1, len(chosen) + 1))
            and all(part.size == upload.grid for part in chosen[:-1])
        )
        if is_grid and isinstance(blobs, PartsStore):
            blobs.cut(upload.place, sum(part.size for part in chosen))
            return upload.place
        if len(chosen) == 1 and chosen[0].place:
            return chosen[0].place
        place = branch._new_key(upload.path)
        blobs.put(place, _Joined(blobs, upload, chosen), "fresh")  # type: ignore[arg-type]
        return place

    def abort(self, branch: Branch, path: str, id: str) -> None:
        """End an upload and delete what came of it. Raises `Refusal` if it is not there, or was completed."""
        raw, upload = self._read(branch, path, id)
        if upload.state == "done":
            raise no_such_upload()
        if upload.state == "completing":
            raise Contention("The upload is just being completed.", next="Repeat the request.")
        try:
            self._kv.set_if(PARTITION, _key(branch, id), encode(replace(upload, state="done")), raw)
        except PredicateFailed:
            raise Contention("The upload changed during the request.", next="Repeat the request.") from None
        self._forget_parts(branch, upload, keep="")
        self._kv.delete(PARTITION, _key(branch, id))

    def _forget_parts(self, branch: Branch, upload: Upload, keep: str) -> None:
        """Delete the records of parts, and files that are not the object's; a part that is still coming is garbage."""
        places = {part.place for part in self.parts(branch, upload.id)} | {upload.place}
        branch._core.resolver.namespace.delete_many(sorted(places - {"", keep}))
        self._drop_keys(_key(branch, upload.id) + b"/")

    def _drop_keys(self, below: bytes) -> None:
        start, end = keys_below(below)
        self._kv.delete_many(PARTITION, [key for key, _ in self._kv.scan(PARTITION, start, end)])

    def _swap(self, branch: Branch, before: Upload, after: Upload) -> Upload:
        """Replace a record; raises `PredicateFailed` if it is another one than `before`."""
        self._kv.set_if(PARTITION, _key(branch, after.id), encode(after), encode(before))
        return after

    def sweep(self, now_us: Microseconds) -> int:
        """Forget uploads that are too old; their bytes are garbage, which a collection finds. Returns their number."""
        old: list[bytes] = []
        for key, raw in self._kv.scan(PARTITION):
            if key.count(b"/") == 1:
                upload = decode(Upload, raw, "an upload")
                limit = upload.completed_at + REMEMBERED_US if upload.completed_at else upload.begun_at + LASTS_US
                if now_us > limit:
                    old.append(key)
        for key in old:
            self._drop_keys(key + b"/")
            self._kv.delete(PARTITION, key)
        return len(old)


class _Hashed:
    """A file that is read once; what passes is counted and hashed, and no more passes than was said.

    In the grid, one byte more would lie in the next part.
    """

    def __init__(self, source: BinaryIO, most: int) -> None:
        self._source = source
        self._most = most
        self.md5 = hashlib.md5(usedforsecurity=False)
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(READ_BYTES if size < 0 else min(size, READ_BYTES))
        if self.size + len(data) > self._most:
            raise BadRequest("The part is longer than it was said to be.", s3_code="IncompleteBody")
        self.md5.update(data)
        self.size += len(data)
        return data


class _Joined:
    """The parts of an upload as one file."""

    def __init__(self, blobs: BlobStore, upload: Upload, parts: Sequence[Part]) -> None:
        self._files = self._open(blobs, upload, parts)
        self._file: BinaryIO = io.BytesIO()
        self._left = 0

    @staticmethod
    def _open(blobs: BlobStore, upload: Upload, parts: Sequence[Part]) -> Iterator[tuple[BinaryIO, int]]:
        for part in parts:
            file = blobs.open_read(part.place or upload.place)
            if not part.place:
                file.seek((part.number - 1) * upload.grid)
            yield file, part.size

    def read(self, size: int = -1) -> bytes:
        while not self._left:
            self._file.close()
            following = next(self._files, None)
            if following is None:
                return b""
            self._file, self._left = following
        data = self._file.read(min(self._left, READ_BYTES if size < 0 else size))
        if not data:
            raise Refusal("A part of the upload was cut.", status=500)
        self._left -= len(data)
        return data


def _below(branch: Branch) -> bytes:
    return branch._core.stores.repository_id.encode() + b"/"


def _key(branch: Branch, id: str) -> bytes:
    return _below(branch) + id.encode()


def no_such_upload() -> Refusal:
    """The answer about an upload that is not there, or is over."""
    return Refusal(
        "There is no such upload: it was completed, aborted, or is too old.", status=404, s3_code="NoSuchUpload"
    )


def _contended() -> Contention:
    return Contention("Others keep changing the upload.", next="Repeat the request.")
