"""What a process counts, for Prometheus: install `strandline[metrics]`, then serve the registry of `prometheus_client`.

Without that package nothing is counted and nothing is paid.
"""

from __future__ import annotations

from typing import Any

from strandline import forks

PREFIX = "strandline_"


class _Nothing:
    """Stands in for a metric when `prometheus_client` is not installed."""

    def labels(self, *_: str) -> _Nothing:
        return self

    def inc(self, amount: float = 1) -> None: ...

    def observe(self, amount: float) -> None: ...


_made: dict[str, Any] = {}
_lock = forks.lock()


def _metric(kind: str, name: str, text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()) -> Any:
    found = _made.get(name)
    if found is None:
        with _lock:
            found = _made.get(name)
            if found is None:
                found = _made[name] = _make(kind, name, text, labels, buckets)
    return found


def _make(kind: str, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Any:
    # imported at the first use: most of its import is an HTTP server
    try:
        import prometheus_client  # noqa: PLC0415 - most of it is an HTTP server
    except ImportError:
        return _Nothing()
    if kind == "histogram":
        return prometheus_client.Histogram(PREFIX + name, text, labels, buckets=buckets)
    return prometheus_client.Counter(PREFIX + name, text, labels)


def retries(operation: str) -> Any:
    """Attempts of an operation on a branch that began again because the branch moved."""
    return _metric("counter", "retries", "Operations on a branch begun again", ("operation",)).labels(operation)


def swaps_lost() -> Any:
    """Swaps of a branch record that somebody else's came before."""
    return _metric("counter", "swaps_lost", "Swaps of a branch record that lost")


def compaction_seconds() -> Any:
    return _metric(
        "histogram", "compaction_seconds", "Duration of a compaction", (), (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
    )


def compaction_entries() -> Any:
    """Staged entries that compactions folded."""
    return _metric("counter", "compaction_entries", "Staged entries folded by compactions")


def compactions(outcome: str) -> Any:
    """Compactions by outcome: done, superseded, failed."""
    return _metric("counter", "compactions", "Compactions by outcome", ("outcome",)).labels(outcome)


def sealed_tokens() -> Any:
    """Sealed tokens that a commit or a compaction met."""
    return _metric(
        "histogram", "sealed_tokens", "Sealed tokens met by commits and compactions", (), (1, 2, 4, 8, 16, 32, 64, 128)
    )
