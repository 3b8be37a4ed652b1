"""How often a caller may show a wrong secret before it has to wait."""

from __future__ import annotations

import ipaddress

from strandline.server.refusals import NotAuthenticated

FEW = 10
"""A person mistypes a few times."""
MANY = 100
"""A fleet of clients starts at once with an old key."""
REGAINED_EACH_S = 6.0
KEPT_MAX = 10_000
SHARED_FROM = 2
"""From the third failure on all workers count together: the first ones cost no store anything."""
GOOD_S = 3_600.0
SITE_BITS = 64


class LoginLimit:
    """Buckets of allowed failures, each with a name and a size. Used under the verifier's lock."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}
        self._good: dict[str, float] = {}

    def succeeded(self, pair: str, now: float) -> None:
        """Remember that a caller has shown a right secret: for a while what others do is not held against it."""
        if len(self._good) > KEPT_MAX:
            self._good.clear()
        self._good[pair] = now

    def is_good(self, pair: str, now: float) -> bool:
        """Whether a caller has shown a right secret lately."""
        return now - self._good.get(pair, float("-inf")) < GOOD_S

    def suspicious(self, keys: tuple[tuple[str, int], ...], now: float) -> list[tuple[str, int]]:
        """The buckets that all workers count together by now."""
        return [(key, most) for key, most in keys if self._level(key, now) >= SHARED_FROM]

    def check(self, keys: tuple[tuple[str, int], ...], now: float) -> None:
        """Raise `NotAuthenticated` with status 429 if one of the buckets is full."""
        for key, most in keys:
            refuse_full(self._level(key, now), most)

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


def refuse_full(level: float, most: int) -> None:
    """Raise `NotAuthenticated` with status 429 if a bucket is full."""
    if level >= most:
        error = NotAuthenticated("Too many wrong secrets.", status=429, s3_code="SlowDown")
        error.retry_after_s = int((level - most + 1) * REGAINED_EACH_S) + 1
        raise error


def shown_address(peer: str) -> str:
    """What counts as one address: of IPv6 a network, since whoever has one address of it has all."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, SITE_BITS), strict=False))
