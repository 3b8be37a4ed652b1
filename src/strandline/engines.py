"""The one door to engines that read and write outside of this process, such as Spark.

Tables let Spark read and write rows, the collector lets it read metadata, range jobs let it copy bytes. None of them
may import its room, which imports them. So engines are loaded by name, here and nowhere else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from strandline.errors import UsageError

ENTRY_POINT_GROUP = "strandline.engines"
"""Entry points of this group map the name of an engine to a module or an object that has its functions."""

_OURS = {
    "spark": ("strandline.spark", "spark"),
    "iceberg": ("strandline.iceberg.settled", "iceberg"),
    "export": ("strandline.iceberg.exporting", "iceberg"),
    "conversion": ("strandline.iceberg.native", "iceberg"),
    "catalog": ("strandline.server.embedded", "server"),
}


class Engine(Protocol):
    """What an engine has that reads and writes tables, such as "spark".

    Arguments and results are those of the callers: `tables.table`, `repository.upkeep.gc`, `repository.jobs`,
    `repository.commits`.
    """

    def read_table(self, table: Any, session: Any, where: Any) -> Any:
        """A frame over a table, of which only rows are read for which a condition may be true."""

    def write_table(self, table: Any, data: Any, options: Any) -> Any:
        """Write a frame into a table, as its `WriteOptions` say; returns a `WriteResult`."""

    def change_rows(self, what: str, *rest: Any) -> Any:
        """Delete, update or merge rows of a table; returns a `RowsChanged`."""

    def collected(self, frame: Any) -> Any:
        """The rows of a frame as an Arrow table of this process, computed once."""

    def surveyor(self, session: Any) -> Any:
        """The `Surveyor` of a garbage collection that lists, judges and deletes in this engine."""

    def folder(self, session: Any, core: Any, branch_id: Any, progress: Any) -> Any:
        """The `Folder` of a commit or a compaction that lays what is staged over a tree in this engine."""

    def tree_workers(self, session: Any, core: Any, progress: Any) -> Any:
        """The `TreeWorkers` of a merge that compare and merge trees in this engine."""

    def exporter(self, session: Any, core: Any, progress: Any) -> Any:
        """The `ItemCopier` of an export that copies bytes in this engine."""

    def mover(self, session: Any) -> Any:
        """The `Mover` that copies the files of a repository in this engine."""

    def copier(self, session: Any) -> Any:
        """The `Copier` of a range job that copies bytes in this engine."""

    def rewriters(self, session: Any, core: Any) -> Any:
        """The `Rewriters` of a table's files that write in this engine."""

    def import_workers(self, session: Any) -> Any:
        """The `Workers` of an import that list and cut slices in this engine."""


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
