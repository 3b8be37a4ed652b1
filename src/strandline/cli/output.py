"""The one place where commands print: lines for scripts and pipes, tables for people, JSON.

What only a terminal shows is in `terminal`, which takes as long to load as all else here: it is loaded for one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from strandline.errors import StrandlineError
from strandline.progress import Progress, no_progress
from strandline.redaction import redacted

Row = Mapping[str, Any]
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Output:
    """Where rows and sentences go.

    Args:
        as_json: one JSON object a line on standard output, and nothing else.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def rows(self, rows: Iterable[Row], columns: Sequence[str], empty: str = "Nothing.") -> None:
        """Show rows: all their fields as JSON, or some columns as a table; as they come, in a pipe."""
        if self.as_json:
            for row in rows:
                print(_json(row))
        elif sys.stdout.isatty():
            from strandline.cli import terminal  # noqa: PLC0415 - see above

            cells = ([visible(_text(row[name], for_people=True)) for name in columns] for row in rows)
            terminal.show_table(columns, cells, empty)
        else:
            for row in rows:
                print("\t".join(visible(_text(row[name])) for name in columns))

    def say(self, sentence: str | Iterable[str], fields: Row) -> None:
        """Say what was done: a sentence, or several lines, or the fields of it as JSON."""
        if self.as_json:
            print(_json(fields))
        else:
            self.lines([sentence] if isinstance(sentence, str) else sentence)

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            print(visible(redacted(line)))

    @contextmanager
    def progress(self, what: str, *, in_bytes: bool = False) -> Iterator[Progress]:
        """A progress bar on a terminal, silence elsewhere."""
        if not sys.stderr.isatty():
            yield no_progress
            return
        from strandline.cli import terminal  # noqa: PLC0415 - see above

        with terminal.progress_bar(visible(what), in_bytes=in_bytes) as progress:
            yield progress

    def error(self, error: StrandlineError) -> None:
        """Show an error on standard error: what happened, what is safe, what to do next."""
        if self.as_json:
            told = {"error": error.kind, "what": error.what, "safe": error.safe, "next": error.command}
            print(_json(told), file=sys.stderr)
            return
        advice = [visible(line) for line in (error.safe, error.command) if line]
        if sys.stderr.isatty():
            from strandline.cli import terminal  # noqa: PLC0415 - see above

            terminal.show_error(visible(error.what), advice)
            return
        print("\n  ".join([f"error: {visible(error.what)}", *advice]), file=sys.stderr)


def visible(text: str) -> str:
    """A text in which whatever a terminal obeys rather than shows is written as Python would write it.

    Those are control characters, the ends of lines among them, and the signs that turn the direction of text around.
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _json(fields: Row) -> str:
    made = json.dumps(fields, default=_plain, ensure_ascii=False)  # which escapes the first 32 characters only
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", made)


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 branch, 2 branches."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _text(value: Any, *, for_people: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S") if for_people else value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool) and for_people:
        return f"{value:,}"
    return " ".join(str(value).split()) if for_people else str(value)
