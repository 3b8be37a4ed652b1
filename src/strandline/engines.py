"""The one door to what stands above the repository: tables, and the engines that read and write them.

A branch opens tables, the collector lets Spark read metadata, range jobs let Spark copy bytes. None of them may import
these rooms, which import them. So they are loaded by name, here and nowhere else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from strandline.errors import UsageError

ENTRY_POINT_GROUP = "strandline.engines"
"""Entry points of this group map the name of an engine to a module or an object that has its functions."""

_OURS = {
    "tables": ("strandline.tables.table", ""),
    "merging": ("strandline.tables.merging", ""),
    "spark": ("strandline.spark", "spark"),
}


class Tables(Protocol):
    """What the engine "tables" has."""

    def Table(self, ref: Any, path: str) -> Any:  # noqa: N802 - the class itself
        """The table at a path of a ref."""

    def find_tables(self, ref: Any, prefix: str) -> Any:
        """The tables of a ref below a prefix."""


class Merging(Protocol):
    """What a merge asks of tables: see `tables.merging`."""

    @property
    def Clash(self) -> type[Exception]:  # noqa: N802 - the class itself
        """Raised where two records cannot become one; says why."""

    def special(self, paths: Any) -> Any:
        """Which paths of an Arrow array are records of tables, or marks of overwrites."""

    def table_of(self, path: str) -> str | None:
        """The table whose record an object is."""

    def folder_of(self, path: str) -> str | None:
        """The table or partition in which an overwrite left a mark."""

    def are_rows(self, path: str, folder: str) -> bool:
        """Whether an object below a table or partition may hold rows."""

    def described(self, folder: str) -> str:
        """A table or partition in words."""

    def extends(self, before: bytes, after: bytes) -> bool:
        """Whether a record reads what was written by an earlier one."""

    def merged_record(self, path: str, base: bytes | None, source: bytes, dest: bytes) -> bytes:
        """The record that holds the changes of both sides."""


class Engine(Protocol):
    """What an engine has that reads and writes tables, such as "spark".

    Arguments and results are those of the callers: `tables.table`, `repository.upkeep.gc`, `repository.jobs`.
    """

    def read_table(self, table: Any, session: Any, where: Any) -> Any:
        """A frame over a table, of which only rows are read for which a condition may be true."""

    def write_table(self, table: Any, data: Any, options: Any) -> Any:
        """Write a frame into a table, as its `WriteOptions` say; returns a `WriteResult`."""

    def collected(self, frame: Any) -> Any:
        """The rows of a frame as an Arrow table of this process, computed once."""

    def marker(self, session: Any) -> Any:
        """The `Marker` of a garbage collection that reads metadata in this engine."""

    def copier(self, session: Any) -> Any:
        """The `Copier` of a range job that copies bytes in this engine."""


def tables() -> Tables:
    return cast("Tables", load("tables"))


def merging() -> Merging:
    return cast("Merging", load("merging"))


def engine(name: str) -> Engine:
    return cast("Engine", load(name))


def load(name: str) -> Any:
    """The module of an engine.

    Raises:
        UsageError: nobody knows the name, or its package is not installed.
    """
    if name in _OURS:
        module, extra = _OURS[name]
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"This needs the Python package {error.name!r}, which is not installed.",
                next=f"Run: pip install 'strandline[{extra or error.name}]'",
            ) from error
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load, and only plug-ins need it

    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        if plugin.name == name:
            return plugin.load()
    raise UsageError(
        f"No engine is known by the name {name!r}.",
        next=f"Use one of {', '.join(sorted(_OURS))}, or install a package with an entry point in "
        f"{ENTRY_POINT_GROUP!r}.",
    )
