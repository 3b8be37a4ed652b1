"""Sessions of Spark on this machine, set up alike for all benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CACHE = Path(__file__).parents[1] / ".cache" / "ivy"


def builder() -> Any:
    """`SparkSession.builder` for two cores and loopback, that fetches its packages once."""
    from pyspark.sql import SparkSession

    CACHE.mkdir(parents=True, exist_ok=True)
    made = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars.ivy": str(CACHE),
    }.items():
        made = made.config(name, value)
    return made
