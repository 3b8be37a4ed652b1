"""What has to hold for the rows of tables, counted by Spark: a program of its own, so that it has its own session.

Reads a JSON object from its standard input, and writes one with the counts into the file that its argument names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def count_failures(spark: SparkSession, tables: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """How many rows each table has, and for how many of them each condition does not hold, NULL among these.

    Args:
        tables: by the full name of a table, conditions in SQL.
    """
    found: dict[str, Any] = {}
    for table, conditions in tables.items():
        counts = [f"count_if(NOT coalesce(({one}), false))" for one in conditions]
        (row,) = spark.sql(f"SELECT count(*), {', '.join(counts)} FROM {table}").collect()
        found[table] = {"rows": row[0], "failures": dict(zip(conditions, list(row)[1:], strict=True))}
    return found


def main() -> None:
    """Count, in a session that the configuration of the environment sets up."""
    spark = SparkSession.builder.appName("strandline expectations").getOrCreate()
    try:
        found = count_failures(spark, json.load(sys.stdin))
    finally:
        spark.stop()
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
