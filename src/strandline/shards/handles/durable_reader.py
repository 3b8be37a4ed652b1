"""What may still be read of a shard, held under a name."""

from __future__ import annotations

from strandline.arguments import checked
from strandline.errors import ReaderFenced, UsageError
from strandline.shards.deciding.commands import DowngradeDurable
from strandline.shards.deciding.machine import DEFAULT_TIMEOUT_S
from strandline.shards.handles.open_shard import OpenShard
from strandline.shards.state.frontier import Antichain, Frontier, antichain, bound_of
from strandline.shards.state.state import ReaderId
from strandline.shards.state.transitions import (
    Downgraded,
    TokenIs,
    compare_and_downgrade_since,
    expire_durable_reader,
    register_durable_reader,
)


@checked()
class DurableReader:
    """Holds what may still be read, without a lease, under a name that outlives processes.

    A process that uses it shows the token that the last one left: a zombie learns that another one came. To read, take
    the shard's `snapshot` and `listen`: while the name stands, nothing from its since on is forgotten.
    """

    def __init__(self, shard: OpenShard, name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(f"A durable reader needs a name of one line, not {name!r}.")
        self._shard = shard
        self._machine = shard.machine
        self.name = name
        self.id = ReaderId(name)
        record = self._machine.apply(lambda state, _: register_durable_reader(state, self.id), timeout_s)
        self._since = record.since
        self.token = record.token

    def __repr__(self) -> str:
        return f"<DurableReader {self.name} of {self._shard!r}>"

    @property
    def since(self) -> Antichain:
        """The time from which this reader keeps the contents readable."""
        return antichain(self._since)

    def claim(self, token: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Antichain:
        """Become its user: from now on the token is this one, and a process that shows another is refused.

        Raises:
            ReaderFenced: others claimed it again and again until the time was up. Nothing was changed.
        """
        clock = self._machine.place.clock
        until_us = clock.now_us() + int(timeout_s * 1_000_000)
        while True:
            try:
                left_s = max(0.0, (until_us - clock.now_us()) / 1_000_000)
                return self.compare_and_downgrade_since(self.token, token, antichain(self._since), timeout_s=left_s)
            except ReaderFenced as fenced:
                self.token = fenced.token
                if clock.now_us() >= until_us:
                    raise

    def compare_and_downgrade_since(
        self, expected_token: str, token: str, since: Frontier, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Antichain:
        """Give up reading before a time, if the token on record is the expected one; it becomes the new one.

        Raises:
            ReaderFenced: it is another one. Nothing was changed.
            UsageError: the reader was forgotten.
        """
        bound = bound_of(since)
        if not isinstance(token, str):
            raise UsageError(f"A token is a str, not {token!r}.", next="Write str(…) around it.")
        done: Downgraded | TokenIs | None
        if token == expected_token:
            done = self._machine.apply(DowngradeDurable(self.id, token, bound), timeout_s)
        else:
            done = self._machine.apply(
                lambda state, _: compare_and_downgrade_since(state, self.id, expected_token, token, bound), timeout_s
            )
        if done is None:
            raise UsageError(f"There is no durable reader {self.name!r} any more.", next="Make it again.")
        if isinstance(done, TokenIs):
            if done.token == token and expected_token != token:
                self.token, self._since = done.token, done.since  # an attempt whose reply was lost
                return self.since
            raise ReaderFenced(
                f"The durable reader {self.name!r} of {self._shard.name!r} is used by somebody else, under the token "
                f"{done.token!r}.",
                token=done.token,
                next="Stop, or claim it if the other one is dead.",
            )
        self.token, self._since = done.token, done.since
        return self.since

    def downgrade_since(self, since: Frontier, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Antichain:
        """Give up reading before a time, under the token that this handle last saw."""
        return self.compare_and_downgrade_since(self.token, self.token, since, timeout_s=timeout_s)

    def remove(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Forget it for good; whether it was there. The shard's since stays where it is."""
        return self._machine.apply(lambda state, _: expire_durable_reader(state, self.id), timeout_s)
