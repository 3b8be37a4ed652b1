"""The night's work as assets of Dagster, a partition a day."""

from __future__ import annotations

import os

import dagster

from examples.orchestration import nightly

LAKE = os.environ.get("NIGHTLY_LAKE", "lake.toml")
SOURCE = os.environ.get("NIGHTLY_SOURCE", "s3://landing/rides")
DAYS = dagster.DailyPartitionsDefinition(start_date="2026-01-01")


@dagster.asset(partitions_def=DAYS)
def landed_rides(context: dagster.AssetExecutionContext) -> str:
    day = context.partition_key
    name = nightly.land(LAKE, f"{SOURCE}/{day}", day)
    nightly.check(LAKE, name, day)
    return name


@dagster.asset(partitions_def=DAYS)
def published_rides(landed_rides: str) -> str:
    return nightly.publish(LAKE, landed_rides)


definitions = dagster.Definitions(assets=[landed_rides, published_rides])
