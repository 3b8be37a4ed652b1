"""How often a caller may show a wrong secret before it has to wait."""

from __future__ import annotations

from strandline.server.refusals import NotAuthenticated

FEW = 10
"""A person mistypes a few times."""
MANY = 100
"""A fleet of clients starts at once with an old key."""
REGAINED_EACH_S = 6.0
KEPT_MAX = 10_000


class LoginLimit:
    """Buckets of allowed failures, each with a name and a size. Used under the verifier's lock."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}

    def check(self, keys: tuple[tuple[str, int], ...], now: float) -> None:
        """Raise `NotAuthenticated` with status 429 if one of the buckets is full."""
        for key, most in keys:
            left = self._level(key, now)
            if left >= most:
                wait_s = int((left - most + 1) * REGAINED_EACH_S) + 1
                error = NotAuthenticated("Too many wrong secrets.", status=429, s3_code="SlowDown")
                error.retry_after_s = wait_s
                raise error

    def failed(self, keys: tuple[tuple[str, int], ...], now: float) -> None:
        """Count a failure."""
        if len(self._failures) > KEPT_MAX:  # those that have regained all of it first
            self._failures = {key: held for key, held in self._failures.items() if self._level(key, now) > 0}
            if len(self._failures) > KEPT_MAX:
                self._failures.clear()
        for key, _ in keys:
            self._failures[key] = (self._level(key, now) + 1, now)

    def _level(self, key: str, now: float) -> float:
        level, at = self._failures.get(key, (0.0, now))
        return max(0.0, level - (now - at) / REGAINED_EACH_S)
