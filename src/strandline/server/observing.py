"""What a server says of its requests: metrics, lines of a log, spans."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import prometheus_client
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from strandline.operations import named
from strandline.server.messages import Exchange

logger = logging.getLogger("strandline.requests")
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_seconds = prometheus_client.Histogram(
    "strandline_request_seconds", "Requests by operation", ("operation",), buckets=BUCKETS_S
)
_count = prometheus_client.Counter("strandline_requests", "Requests by operation and status", ("operation", "status"))


class Measures:
    """The metrics of requests; the parts of each label are looked up once."""

    def __init__(self) -> None:
        self._seconds: dict[str, Any] = {}
        self._counts: dict[tuple[str, int], Any] = {}

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """Count a request."""
        histogram = self._seconds.get(operation)
        if histogram is None:
            histogram = self._seconds[operation] = _seconds.labels(operation)
        histogram.observe(seconds)
        key = (operation, status)
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _count.labels(operation, str(status))
        count.inc()


def leave_metrics(folder: Path) -> None:
    """Write this worker's metrics for the other workers, which answer for all: in a file that is replaced at once."""
    mine = folder / f"{os.getpid()}.prom"
    half = mine.with_suffix(".half")
    half.write_bytes(prometheus_client.generate_latest())
    half.replace(mine)


def all_metrics(folder: Path) -> bytes:
    """The sums of the metrics of all workers, those that have died included: counts never go back."""
    leave_metrics(folder)
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for file in sorted(folder.glob("*.prom")):
        for family in text_string_to_metric_families(file.read_text()):
            if not family.name.startswith("strandline_"):
                continue  # of a process, not of the server
            families[family.name] = family
            held = values.setdefault(family.name, {})
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    key = sample.name, tuple(sorted(sample.labels.items()))
                    held[key] = held.get(key, 0.0) + sample.value
    lines: list[str] = []
    for name, family in families.items():
        lines += [f"# HELP {name} {family.documentation}", f"# TYPE {name} {family.type}"]
        for (full, labels), value in values[name].items():
            shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            lines.append(f"{full}{{{shown}}} {value!r}" if shown else f"{full} {value!r}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def log_request(exchange: Exchange, status: int, seconds: float) -> None:
    """Write a line of JSON about a request: no queries and no headers, which hold signatures and secrets."""
    request = exchange.request
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "id": request.id,
        "method": request.method,
        "operation": exchange.operation,
        "status": status,
        "ms": round(seconds * 1000, 3),
        "user": exchange.user,
        "peer": request.peer,
    }
    logger.log(logging.ERROR if status >= 500 else logging.INFO, "%s", msgspec.json.encode(line).decode())


def under(operation: str, id: str) -> AbstractContextManager[None]:
    """What is done for a request: its id stands in the lines of the core, and there is a span if anybody takes it."""
    return _in_a_span(operation, id) if "opentelemetry" in sys.modules else named(id)


@contextmanager
def _in_a_span(operation: str, id: str) -> Iterator[None]:
    from opentelemetry import trace  # noqa: PLC0415 - an optional package

    with named(id), trace.get_tracer("strandline").start_as_current_span(f"strandline {operation}") as span:
        span.set_attribute("strandline.request", id)
        yield
