"""The night's work as a DAG of Airflow 3. Tasks that fail are tried again, and do no harm by it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task

from examples.orchestration import nightly

LAKE = os.environ.get("NIGHTLY_LAKE", "lake.toml")
TABLES = [path for path in os.environ.get("NIGHTLY_TABLES", "").split(",") if path]
SOURCE = os.environ.get("NIGHTLY_SOURCE", "s3://landing/rides")


@dag(
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
)
def nightly_rides() -> None:
    @task
    def land(ds: str = "") -> str:
        return nightly.land(LAKE, f"{SOURCE}/{ds}", ds)

    @task
    def check(name: str, ds: str = "") -> str:
        nightly.check(LAKE, name, ds)
        return name

    @task
    def publish(name: str) -> str:
        return nightly.publish(LAKE, name)

    @task
    def tidy(_: str) -> dict[str, int]:
        return nightly.tidy(LAKE, TABLES)

    tidy(publish(check(land())))


nightly_rides()
