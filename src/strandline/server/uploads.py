"""Multipart uploads on every store: records that any worker completes, and where the bytes of parts go.

On a disk the parts lie in one file, in a grid: the first part that comes says how long a part is, and part n of that
length is written at its place in the file. So completing an upload of any size cuts the file. A slot of the grid is
claimed once; a part that comes again, or has another length, gets a file of its own, and then the parts are copied into
a new one.

Invariants:
1. A writer of a slot has claimed it, and has found the upload open after that. A completion first moves the upload on,
   and lists the claims after that. So either the writer finds it moved on and writes nothing, or the claim is seen,
   and a slot that is claimed and not finished is never taken for a part of the object.
2. Completing, staging and aborting move the record by a swap: of two, one wins. An object is staged only by the caller
   that swapped its place into the record. So one that was taken over before that stages nothing, and whatever was
   staged is found by the place on record.
3. From the moment at which an object may be staged without an answer, the upload is never open again, and neither its
   file nor that of the object is deleted here: a branch may refer to them.
4. Bytes of parts are referred to by nothing but these records, which a collection of garbage reads like link records;
   an object of them is announced as a link before it is staged.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from msgspec.structs import replace

from strandline.blob import BlobNotFound, BlobStore
from strandline.blob.store import PartsStore
from strandline.clock import Microseconds
from strandline.core.promises import announce_links
from strandline.core.upload_records import LASTS_US, PARTS, UPLOADS, Part, Upload
from strandline.envelope import decode, encode
from strandline.errors import Contention, StrandlineError
from strandline.ids import keys_below, new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.repository.branch import Branch
from strandline.server.conditions import stage_conditionally
from strandline.server.refusals import BadRequest, Refusal
from strandline.tree.rows import Entry

PART_MIN_BYTES = 5 << 20
PART_MAX_BYTES = 5 << 30
PARTS_MAX = 10_000
REMEMBERED_US = 86_400 * 1_000_000
"""For how long a completed upload is known, so that a completion that is repeated gets the same answer."""
ATTEMPTS = 16
READ_BYTES = 1 << 20
SETTLE_ATTEMPTS = 1_000
SETTLE_EACH_S = 0.05
"""A repetition waits for the completion that is under way a little less long than clients wait for an answer."""
TAKEN_OVER_AFTER_US = 120 * 1_000_000
HEARTBEAT_US = 10 * 1_000_000
"""How often a completion that copies says that it is alive."""
_AT_WORK = ("completing", "staging")


@dataclass(frozen=True, slots=True)
class Said:
    """What a client says of the object that it completes.

    Attributes:
        size: in bytes.
        check: gets the object as a file, the sizes of its parts, and what to call now and then; raises if it is not
            the object that was meant.
    """

    size: int | None = None
    check: Callable[[BinaryIO, Sequence[int], Callable[[], None]], None] | None = None


_NOTHING_SAID = Said()


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
        self._kv.set(UPLOADS, _key(branch, upload.id), encode(upload))
        return upload

    def get(self, branch: Branch, path: str, id: str) -> Upload:
        """An upload that can be completed, or was; raises `Refusal` with the code NoSuchUpload."""
        return self._read(branch, path, id)[1]

    def _read(self, branch: Branch, path: str, id: str) -> tuple[bytes, Upload]:
        is_id = len(id) == 40 and id.isascii() and id.isalnum()
        raw = self._kv.get(UPLOADS, _key(branch, id)) if is_id else None
        found = None if raw is None else decode(Upload, raw, f"upload {id}")
        if raw is None or found is None or found.path != path or found.branch_id != branch.branch_id:
            raise no_such_upload()
        if found.state != "done" and branch._core.stores.clock.now_us() - found.begun_at > LASTS_US:
            raise no_such_upload()  # its bytes may be collected by now
        return raw, found

    def parts(self, branch: Branch, id: str, after: int = 0) -> Iterator[Part]:
        """The parts of an upload whose bytes are there, by number."""
        start, end = keys_below(_key(branch, id) + b"/part/")
        for _, raw in self._kv.scan(PARTS, start + (b"%05d\0" % after if after else b""), end):
            yield decode(Part, raw, f"a part of upload {id}")

    def of_repository(self, repository_id: str) -> Iterator[Upload]:
        """All uploads of a repository."""
        start, end = keys_below(repository_id.encode() + b"/")
        for _, raw in self._kv.scan(UPLOADS, start, end):
            yield decode(Upload, raw, "an upload")

    # --- parts -------------------------------------------------------------------------------------------------------

    def put(
        self,
        branch: Branch,
        path: str,
        id: str,
        number: int,
        data: BinaryIO,
        size: int | None,
        still: Callable[[], None] = lambda: None,
    ) -> Part:
        """Store a part. One of the same number that was there before counts no more.

        Args:
            size: as the client says it; None if it does not.
            still: called right before the part counts; raises if it may not.

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
        still()
        self._open(branch, path, id)
        self._kv.set(PARTS, _key(branch, id) + b"/part/%05d" % number, encode(part))
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
            self._kv.set_if(PARTS, key, b"claimed", ABSENT)
        except PredicateFailed:
            return False
        return True

    def _propose_grid(self, branch: Branch, upload: Upload, size: int) -> int:
        for _ in range(ATTEMPTS):
            raw, now = self._read(branch, upload.path, upload.id)
            if now.grid or now.state != "open":
                return now.grid
            try:
                self._kv.set_if(UPLOADS, _key(branch, upload.id), encode(replace(now, grid=size)), raw)
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
        said: Said = _NOTHING_SAID,
        still: Callable[[], None] = lambda: None,
    ) -> Upload:
        """Make an object of parts, in their order, and stage it. Repeated, it gives the same answer for a day.

        Args:
            wanted: numbers and ETags.
            said: what the object must be like.
            still: called right before the object is staged; raises if it may not be.

        Raises:
            BadRequest: a part is not there, has another ETag, is too small, or they are not in order.
            PreconditionFailed: the path holds what `only_new` or `only_as` does not allow.
        """
        upload, chosen = self._claimed(branch, path, id, wanted, said.size)
        if upload.state == "done":
            return upload
        held = [upload]
        try:
            if chosen:
                upload = self._joined(branch, held, chosen, said)
            entry = self._entry(branch, upload)
            announce_links(branch._core.stores, [upload.object_place])
            still()
            self._stage(branch, path, entry, only_new=only_new, only_as=only_as)
        except BaseException as error:
            # an upload whose object may be staged is not opened again: a repetition finds out what became of it
            is_uncertain = upload.is_uncertain or (
                upload.state == "staging" and getattr(error, "happened", "no") != "no"
            )
            upload = held[0]
            after = replace(upload, state="open", object_place="", etag="", moved_at=0)
            if is_uncertain:
                after = replace(upload, is_uncertain=True, moved_at=0)
            with suppress(StrandlineError, PredicateFailed):
                self._swap(branch, upload, after)
            if isinstance(error, BlobNotFound):
                raise no_such_upload() from None
            raise
        return self._end(branch, upload)

    def _claimed(
        self, branch: Branch, path: str, id: str, wanted: Sequence[tuple[int, str]], size: int | None
    ) -> tuple[Upload, list[Part]]:
        """An upload that this call alone may complete now, and its parts; or one that is done.

        Of an upload whose object may be staged already there are no parts: its bytes are what they are.
        """
        while True:
            upload = self._settled(branch, path, id)
            if upload.state == "done":
                _refuse_others(upload, wanted)
                return upload, []
            if upload.state == "staging" and self._is_staged(branch, upload):
                _refuse_others(upload, wanted)
                return self._end(branch, upload), []
            try:
                chosen = [] if upload.state == "staging" else self._chosen(branch, id, wanted)
            except BadRequest:
                if self.get(branch, path, id) == upload:
                    raise
                continue  # another one completed it meanwhile, and its parts are gone
            if chosen and size not in (None, sum(part.size for part in chosen)):
                raise BadRequest("The parts do not add up to the size that the request says.")
            branch._refuse_early(path)
            mine = replace(
                upload,
                state="staging" if upload.state == "staging" else "completing",
                moved_at=branch._core.stores.clock.now_us(),
                is_uncertain=upload.is_uncertain or upload.state == "staging",
            )
            try:
                return self._swap(branch, upload, mine), chosen
            except PredicateFailed:
                continue

    def _joined(self, branch: Branch, held: list[Upload], chosen: list[Part], said: Said) -> Upload:
        """Join the parts, and put the place of the object on record: invariant 2.

        Args:
            held: the upload; what it was replaced by is put there.
        """
        upload = held[0]

        def alive() -> None:
            now_us = branch._core.stores.clock.now_us()
            if now_us - held[0].moved_at > HEARTBEAT_US:
                held[0] = self._swap(branch, held[0], replace(held[0], moved_at=now_us))

        try:
            place = self._join(branch, upload, chosen, alive)
            blobs, sizes = branch._core.resolver.namespace, [part.size for part in chosen]
            if blobs.head(place).size != sum(sizes):
                raise Refusal("The parts do not give the object that they should.", status=500)
            if said.check is not None:
                with blobs.open_read(place) as file:
                    said.check(file, sizes, alive)
            now_us = branch._core.stores.clock.now_us()
            etag = _etag_of([part.md5 for part in chosen])
            after = replace(held[0], state="staging", object_place=place, etag=etag, moved_at=now_us)
            held[0] = self._swap(branch, held[0], after)
            return held[0]
        except PredicateFailed:
            raise Contention("The upload was taken over by another request.", next="Repeat the request.") from None

    def _entry(self, branch: Branch, upload: Upload) -> Entry:
        return Entry(
            upload.object_place,
            branch._core.resolver.namespace.head(upload.object_place).size,
            f"etag:{upload.etag}",
            branch._core.stores.clock.now_us(),
            upload.content_type,
            upload.user_metadata,
        )

    def _is_staged(self, branch: Branch, upload: Upload) -> bool:
        found = branch.find(upload.path)
        return found is not None and found.physical_address == upload.object_place

    def _end(self, branch: Branch, upload: Upload) -> Upload:
        done = replace(upload, state="done", completed_at=branch._core.stores.clock.now_us())
        with suppress(PredicateFailed):  # another one took over, and gives the same answer
            self._swap(branch, upload, done)
        with suppress(StrandlineError):  # what is left is swept later
            self._forget_parts(branch, done)
        return done

    def _settled(self, branch: Branch, path: str, id: str) -> Upload:
        """The upload, when nobody is completing it any more, or that has taken too long."""
        clock = branch._core.stores.clock
        for _ in range(SETTLE_ATTEMPTS):
            upload = self.get(branch, path, id)
            if upload.state == "aborted":
                raise no_such_upload()
            if upload.state not in _AT_WORK or clock.now_us() - upload.moved_at > TAKEN_OVER_AFTER_US:
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

    def _join(self, branch: Branch, upload: Upload, chosen: list[Part], alive: Callable[[], None]) -> str:
        """The physical key under which the parts are one object."""
        blobs = branch._core.resolver.namespace
        start, end = keys_below(_key(branch, upload.id) + b"/slot/")
        claimed = {int(key.rpartition(b"/")[2]) for key, _ in self._kv.scan(PARTS, start, end)}
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
        blobs.put(place, _Joined(blobs, upload, chosen, alive), "fresh")  # type: ignore[arg-type]
        return place

    def abort(self, branch: Branch, path: str, id: str) -> None:
        """End an upload and delete what came of it. Raises `Refusal` if it is not there, or was completed."""
        raw, upload = self._read(branch, path, id)
        if upload.state == "done":
            raise no_such_upload()
        is_alive = branch._core.stores.clock.now_us() - upload.moved_at <= TAKEN_OVER_AFTER_US
        if upload.state in _AT_WORK and is_alive:
            raise Contention("The upload is just being completed.", next="Repeat the request.")
        if upload.state == "staging" and self._is_staged(branch, upload):
            self._end(branch, upload)  # the completion went well, though nobody was answered
            raise no_such_upload()
        is_uncertain = upload.is_uncertain or upload.state == "staging"
        aborted = replace(upload, state="aborted", is_uncertain=is_uncertain)
        try:
            self._kv.set_if(UPLOADS, _key(branch, id), encode(aborted), raw)
        except PredicateFailed:
            raise Contention("The upload changed during the request.", next="Repeat the request.") from None
        self._forget_parts(branch, aborted)
        self._kv.delete(UPLOADS, _key(branch, id))

    def _forget_parts(self, branch: Branch, upload: Upload) -> None:
        """Delete the records of parts, and files that are not the object's; a part that is still coming is garbage.

        Invariant 3: of an uncertain upload the file that may be the object stays. It has no other one: such an upload
        is never joined again.
        """
        places = {part.place for part in self.parts(branch, upload.id)} | {upload.place}
        kept = {""}
        if upload.state == "done" or upload.is_uncertain:
            kept.add(upload.object_place)
        branch._core.resolver.namespace.delete_many(sorted(places - kept))
        self._drop_keys(_key(branch, upload.id) + b"/")

    def _drop_keys(self, below: bytes) -> None:
        start, end = keys_below(below)
        self._kv.delete_many(PARTS, [key for key, _ in self._kv.scan(PARTS, start, end)])

    def _swap(self, branch: Branch, before: Upload, after: Upload) -> Upload:
        """Replace a record; raises `PredicateFailed` if it is another one than `before`."""
        self._kv.set_if(UPLOADS, _key(branch, after.id), encode(after), encode(before))
        return after

    def sweep(self, now_us: Microseconds) -> int:
        """Forget uploads that are too old; their bytes are garbage, which a collection finds. Returns their number."""
        old: list[bytes] = []
        for key, raw in self._kv.scan(UPLOADS):
            upload = decode(Upload, raw, "an upload")
            limit = upload.completed_at + REMEMBERED_US if upload.completed_at else upload.begun_at + LASTS_US
            if now_us > limit:
                old.append(key)
        for key in old:
            self._drop_keys(key + b"/")
            self._kv.delete(UPLOADS, key)
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
    """The parts of an upload as one file.

    Args:
        alive: called while it is read.
    """

    def __init__(self, blobs: BlobStore, upload: Upload, parts: Sequence[Part], alive: Callable[[], None]) -> None:
        self._alive = alive
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
        self._alive()
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


def _etag_of(md5s: Sequence[str]) -> str:
    """The ETag of an object of parts; raises `ValueError` if one is no hexadecimal text."""
    whole = hashlib.md5(b"".join(map(bytes.fromhex, md5s)), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(md5s)}"


def _refuse_others(upload: Upload, wanted: Sequence[tuple[int, str]]) -> None:
    """Raise if an object that is there was made of other parts than are asked for."""
    try:
        is_same = _etag_of([etag.strip('"') for _, etag in wanted]) == upload.etag
    except ValueError:
        is_same = False
    if not is_same:
        raise BadRequest("The upload was completed with other parts.", s3_code="InvalidPart")
