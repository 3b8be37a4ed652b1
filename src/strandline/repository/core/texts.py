"""The texts that users attach to things, and how long they may be."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.errors import UsageError
from strandline.tree.rows import user_metadata_json

TEXT_MAX_CHARS = 4_096
METADATA_MAX_BYTES = 8 << 10


def check_text(value: object, what: str) -> str:
    """Refuse what would make a record unreadable for everyone else."""
    if not isinstance(value, str) or len(value) > TEXT_MAX_CHARS:
        told = f"of {len(value):,} characters" if isinstance(value, str) else type(value).__name__
        raise UsageError(
            f"{what} is a str of at most {TEXT_MAX_CHARS:,} characters, not {told}.", next="Write it as text: str(…)."
        )
    return value


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
