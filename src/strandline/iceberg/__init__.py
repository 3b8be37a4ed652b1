"""Iceberg tables on branches: `Catalog(branch)` is a catalog of PyIceberg, without a server.

`diff` compares the tables of two refs, `expire` takes old snapshots out of tables, and `relocate` puts addresses right
after a lake was moved.
"""

from __future__ import annotations

from typing import Any

from strandline.errors import UsageError

__all__ = ["Catalog", "diff", "expire", "relocate"]


def __getattr__(name: str) -> Any:
    if name == "Catalog":
        try:
            from strandline.iceberg.catalog import Catalog  # noqa: PLC0415 - PyIceberg is loaded where it is used
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyiceberg":
                raise
            raise UsageError("PyIceberg is not installed.", next="Run: pip install 'strandline[iceberg]'") from error
        return Catalog
    if name == "diff":
        from strandline.iceberg.table_diff import diff  # noqa: PLC0415 - as above

        return diff
    if name in ("expire", "relocate"):
        from strandline.iceberg import upkeep  # noqa: PLC0415 - repositories are loaded where they are used

        return getattr(upkeep, name)
    raise AttributeError(f"module 'strandline.iceberg' has no attribute {name!r}")
