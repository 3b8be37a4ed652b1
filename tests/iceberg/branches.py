"""A table that branches share, for tests of merges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandline.iceberg import Catalog
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
T = "db.t"


def some(*keys: int) -> pa.Table:
    return pa.table({"k": list(keys), "s": [f"row {key}" for key in keys]}, SCHEMA)


def started(lake: Lake, version: int, name: str = "nyc") -> tuple[Repository, Branch]:
    """A table of two files on main."""
    repository = lake.create_repository(name)
    main = repository.branch("main")
    catalog = Catalog(main)
    catalog.create_namespace("db")
    table = catalog.create_table(T, SCHEMA, properties={"format-version": str(version), "owner": "ann"})
    table.append(some(1, 2, 3))
    table.append(some(11, 12, 13))
    return repository, main


def rows(ref: Any, name: str = T) -> list[dict[str, Any]]:
    found = Catalog(ref).load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["k"])


def keys(ref: Any) -> list[int]:
    return [row["k"] for row in rows(ref)]
