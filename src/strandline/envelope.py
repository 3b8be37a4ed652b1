"""How records are written: msgpack of a frozen struct, in an envelope that carries the version of its format.

msgspec drops fields that it does not know, so a process that rewrote a newer record would lose what it cannot see. It
refuses to read one instead. And it writes whatever a struct holds, of any type, which nobody could read again: so each
record is read before it leaves this file, and one that says something else than what was meant is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Any, TypeVar

import msgspec

from strandline.errors import Corrupted, NewerFormat, UsageError

FORMAT_VERSION = 5
"""What records are written in. 2: branch records carry their last head moves. 3: they carry the writers of
transactions. 4: locks. 5: a namespace knows its lake, and a lake without its bytes reads them from another one's."""
NEWEST_FORMAT = 9
"""What is read. 6 to 9 are written only for what needs them, and says so by `format_needed`: a hidden branch, one on
which something with an ETag was staged, one to which something was published in one shot under a token, and a
collection whose lists are in parts."""
Record = TypeVar("Record")

_ABSENT = object()
_encoder = msgspec.msgpack.Encoder()


def encode(record: msgspec.Struct, version: int = FORMAT_VERSION, *, before: msgspec.Struct | None = None) -> bytes:
    """The bytes of a record, which `decode` makes an equal one of.

    Args:
        before: a record that was read from a store, or written to it. The very objects that `record` takes over from it
            are not checked once more: a branch record with 200 writers changes one of them at a time.

    Raises:
        UsageError: a field holds what its type does not allow, and nobody could read the record again.
    """
    try:
        raw = _encoder.encode((max(version, getattr(record, "format_needed", 0)), record))
        if type(before) is type(record):
            _check_changes(record, before)
        else:
            read = _decoder(type(record)).decode(raw)[1]
            if read != record:
                raise _unreadable(record, _difference(record, read))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable(record, str(error)) from error
    return raw


def _difference(record: msgspec.Struct, read: msgspec.Struct) -> str:
    for name in record.__struct_fields__:
        if getattr(record, name) != getattr(read, name):
            return _read_as(name, getattr(read, name))
    return "it is not equal to itself"


def _read_as(name: str, value: object) -> str:
    return f"`{name}` would be read as {value!r}"


class _Field(msgspec.Struct, frozen=True):
    """One of a record.

    Attributes:
        decoder: of its values, with all that its type demands.
        is_collection: a tuple of any length, or a mapping: a part of it is a value of its type as well.
    """

    name: str
    decoder: msgspec.msgpack.Decoder[Any]
    is_collection: bool


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    return tuple(
        _Field(field.name, msgspec.msgpack.Decoder(field.type), _is_collection(field.type))
        for field in msgspec.structs.fields(kind)
    )


@cache
def _values_of(kind: type[msgspec.Struct]) -> Callable[[msgspec.Struct], tuple[Any, ...]]:
    """Gives all fields of a struct as a tuple; `attrgetter` does so for several names, not for one."""
    names = [field.name for field in _fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)


def _is_collection(kind: Any) -> bool:
    return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.VarTupleType | msgspec.inspect.DictType)


def _check_changes(record: msgspec.Struct, before: msgspec.Struct) -> None:
    """Check what `before` does not hold already.

    Invariant: records and what they hold are never changed in place, so an object that was readable still is.
    """
    fields = _fields(type(record))
    values_of = _values_of(type(record))
    values, held = values_of(record), values_of(before)
    for field, value, old in compress(zip(fields, values, held, strict=True), map(is_not, values, held)):
        new = _new_items(value, old) if field.is_collection else value
        read = field.decoder.decode(_encoder.encode(new))
        if read != new:
            raise _unreadable(record, _read_as(field.name, read))


def _new_items(value: object, old: object) -> object:
    """The items of a collection that are not in another one; all of a value that is no such collection."""
    if isinstance(value, dict) and isinstance(old, dict):
        # a hundred writers beside the one that changed are passed over without a step of Python for each
        before = map(old.get, value, repeat(_ABSENT))
        return dict(compress(value.items(), map(is_not, value.values(), before)))
    if isinstance(value, tuple) and isinstance(old, tuple):
        held = set(map(id, old))
        return tuple(item for item in value if id(item) not in held)
    return value


def _unreadable(record: msgspec.Struct, reason: str) -> UsageError:
    return UsageError(
        f"A {type(record).__name__.removesuffix('Record')} record cannot hold what it was given: {reason}.",
        next="Look at the types of the arguments of this call.",
    )


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[tuple[int, Any]]:
    return msgspec.msgpack.Decoder(tuple[int, kind])


_NEWEST = bytes([NEWEST_FORMAT])  # small numbers are themselves in msgpack
_versions = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


def version_of(value: bytes) -> int:
    """The format of a record.

    Raises:
        Corrupted: the bytes are not a record.
    """
    try:
        return _versions.decode(value)[0]
    except msgspec.MsgspecError as error:
        raise Corrupted(f"A record cannot be read: {error}.") from error


def decode(kind: Any, value: bytes, name: str) -> Any:
    """Read a record.

    Args:
        kind: the struct, or a union of structs with tags.
        name: what the record is, for messages.

    Raises:
        NewerFormat: a newer strandline wrote it.
        Corrupted: it is not such a record.
    """
    try:
        version, _ = _versions.decode(value) if value[1:2] > _NEWEST else (FORMAT_VERSION, None)
        if version > NEWEST_FORMAT:
            raise NewerFormat(
                f"The record of {name} has format {version}; this strandline reads up to {NEWEST_FORMAT}.",
                next="Upgrade strandline.",
            )
        return _decoder(kind).decode(value)[1]
    except msgspec.MsgspecError as error:
        raise Corrupted(
            f"The record of {name} cannot be read: {error}.", next="Restore the key-value store from a backup."
        ) from error
