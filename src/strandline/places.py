"""Places in a lake as people write them: `repository/ref/path` and `repository/shard`."""

from __future__ import annotations

from typing import NamedTuple

from strandline.errors import UsageError


class Place(NamedTuple):
    """What a text names; a part that it does not name is empty. No name of a repository, ref or shard has a "/"."""

    repository: str
    ref: str
    path: str

    @classmethod
    def named_by(cls, text: str) -> Place:
        """The place that a text names, whole or in part."""
        repository, _, rest = text.partition("/")
        ref, _, path = rest.partition("/")
        return cls(repository, ref, path)


def place_on_a_ref(text: str, next: str = "Write for example nyc/main or nyc/main/raw/a.csv.") -> Place:
    """The place that `repository/ref` or `repository/ref/path` names.

    Args:
        next: advice for a text that does not, in the words of the caller's door.

    Raises:
        UsageError: the text names no repository, or no ref.
    """
    place = Place.named_by(text)
    if not place.repository or not place.ref:
        raise UsageError(f"{text!r} is not repository/ref.", next=next)
    return place


def shard_named(text: str, next: str = "Write for example nyc/positions.") -> tuple[str, str]:
    """The repository and the shard that `repository/shard` names.

    Raises:
        UsageError: the text names no repository or no shard, or more than a shard.
    """
    repository, _, shard = text.partition("/")
    if not repository or not shard or "/" in shard:
        raise UsageError(f"{text!r} is not repository/shard.", next=next)
    return repository, shard


def column_and_type(text: str) -> tuple[str, str]:
    """A column and its type, as the command line takes them: `year=integer`.

    Raises:
        UsageError: it is not that.
    """
    name, equals, kind = text.partition("=")
    if not (name and equals and kind):
        raise UsageError(f"{text!r} is not a column and its type.", next="Write for example year=integer,day=date.")
    return name, kind
