"""What a terminal shows beside plain lines: tables, progress, colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from strandline.progress import Progress


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Print rows below their titles, or the sentence `empty` instead of an empty table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in ("size", "count") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    _console().print(table if table.row_count else empty)


@contextmanager
def progress_bar(what: str, *, in_bytes: bool) -> Iterator[Progress]:
    """A bar on standard error, until the block ends."""
    numbers = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    console = _console(stderr=True)
    with ProgressBar(TextColumn(escape(what)), BarColumn(), *numbers, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda doing, done, total: bar.update(task, completed=done, total=total)


def show_error(what: str, advice: Iterable[str]) -> None:
    """Print what happened, and below it what is safe and what to do next."""
    console = _console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(what)}")
    for line in advice:
        console.print(f"  {escape(line)}")


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, soft_wrap=True, highlight=False)
