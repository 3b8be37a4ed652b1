"""What the options of the data source name."""

from __future__ import annotations

import json
from collections.abc import Mapping

import strandline
from strandline.blob import BlobNotFound, open_store
from strandline.errors import StrandlineError, UsageError
from strandline.lake import Lake
from strandline.places import place_on_a_ref, shard_named
from strandline.shards.shard import Shard

CHECKPOINT = "checkpointLocation"
"""Spark hands options over by their names in lower case."""


def open_shard(options: Mapping[str, str]) -> tuple[Lake, Shard]:
    """The shard of `load("repository/shard")` in the lake of `option("lake", …)`.

    Raises:
        UsageError: an option is missing.
    """
    text = options.get("path") or options.get("shard") or ""
    repository, name = shard_named(text, 'Write .load("repository/shard").')
    lake = strandline.open(options.get("lake"))
    return lake, lake.repository(repository).shard(name)


def open_place(options: Mapping[str, str]) -> tuple[Lake, str, str, str]:
    """The lake, and repository, branch and path of `load("repository/branch/path")`.

    Raises:
        UsageError: an option is missing.
    """
    place = place_on_a_ref(options.get("path") or "", 'Write .load("repository/branch/path").')
    return strandline.open(options.get("lake")), *place


def check_reader(options: Mapping[str, str]) -> str:
    """The name under which a streaming query holds what it has not read."""
    name = options.get("reader", "")
    if not name:
        raise UsageError(
            "A stream from a shard needs a name, under which the shard keeps for it what it has not read.",
            next='Give .option("reader", "…"), the same at each start of the query, and no other query\'s.',
        )
    return name


def check_writer(options: Mapping[str, str]) -> str:
    """The name under which a streaming query writes: its own, or the id that Spark keeps in its checkpoint.

    Raises:
        UsageError: neither is known.
    """
    name = options.get("writer", "")
    if name:
        return name
    query = query_of(options)
    if query:
        return query
    raise UsageError(
        "A stream into a shard needs a name, by which a restarted query recognises what it has written.",
        next=f'Give .option("writer", "…"), the same at each start of the query, or .option("{CHECKPOINT}", "…").',
    )


def query_of(options: Mapping[str, str]) -> str:
    """The id that Spark keeps in a query's checkpoint, where the checkpoint is an option; else empty."""
    place = options.get(CHECKPOINT.lower(), "")
    if not place:
        return ""
    try:
        return str(json.loads(open_store(place.removeprefix("file:")).get("metadata"))["id"])
    except (BlobNotFound, ValueError, KeyError, StrandlineError):  # a store that only Spark can reach
        return ""
