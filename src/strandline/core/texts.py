"""The texts that users attach to things, and how long they may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.errors import UsageError
from strandline.tree.rows import Entry, user_metadata_json

TEXT_MAX_CHARS = 4_096
METADATA_MAX_BYTES = 8 << 10
CONTENT_TYPE_MAX_CHARS = 255
ADDRESS_MAX_CHARS = 4_096
CHECKSUM_MAX_CHARS = 256


def check_text(value: object, what: str) -> str:
    """Refuse what would make a record unreadable for everyone else."""
    if not isinstance(value, str) or len(value) > TEXT_MAX_CHARS:
        told = f"of {len(value):,} characters" if isinstance(value, str) else type(value).__name__
        raise UsageError(
            f"{what} is a str of at most {TEXT_MAX_CHARS:,} characters, not {told}.", next="Write it as text: str(…)."
        )
    return value


def check_content_type(content_type: str | None, path: str) -> None:
    if content_type is not None and not (isinstance(content_type, str) and len(content_type) <= CONTENT_TYPE_MAX_CHARS):
        raise UsageError(
            f"The content type of {path!r} is not valid.",
            next=f"Use a text of at most {CONTENT_TYPE_MAX_CHARS} characters.",
        )


def check_entries(entries: Iterable[tuple[str, Entry]]) -> None:
    """Refuse texts that are longer than any address, checksum or media type: each listing would carry them."""
    for path, entry in entries:
        if entry.content_type is not None:
            check_content_type(entry.content_type, path)
        address, checksum = entry.physical_address, entry.checksum
        if len(str(address)) > ADDRESS_MAX_CHARS or len(str(checksum)) > CHECKSUM_MAX_CHARS:
            raise UsageError(
                f"The address or checksum of {path!r} is too long.",
                next=f"An address has at most {ADDRESS_MAX_CHARS:,} characters, a checksum {CHECKSUM_MAX_CHARS}.",
            )


def check_metadata(metadata: Mapping[str, str] | None) -> str | None:
    """The canonical text of user metadata; refuses what is not a small map of strings."""
    if metadata is None:
        return None
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()):
        raise UsageError("User metadata must map strings to strings.", next="Convert the values with str().")
    text = user_metadata_json(dict(metadata))
    if text is not None and len(text.encode()) > METADATA_MAX_BYTES:
        raise UsageError(
            f"The user metadata has {len(text.encode()):,} bytes; the most is {METADATA_MAX_BYTES:,}.",
            next="Put large values into an object of their own.",
        )
    return text
