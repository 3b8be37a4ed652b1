"""Moves of the head whose reply is lost for good, and whatever goes wrong next: no error may say that nothing happened.

A swap is sent and lands late, all that would find out about it fails, and then somebody protects the branch, locks the
path, moves the head, or the store fails once more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from strandline.errors import StoreUnavailable, StrandlineError
from strandline.testing.faults import Outcome
from tests.harness.clients import Client

SETTLING = 5
"""How many calls are lost after the swap, so that it gives up finding out."""
RIVALS: dict[str, Callable[[Client], object]] = {
    "nobody": lambda two: None,
    "protects": lambda two: two.repo.protect("main"),
    "locks": lambda two: two.main.locks.take("", owner="repair"),
    "publishes": lambda two: two.main.publish({"other": b"x"}, "other", expected={"other": None}),
    "publishes there": lambda two: two.main.publish({"a": b"x"}, "rival", expected={"a": None}),
    "read-only": lambda two: two.repo.set_read_only(True),
}


def publish(one: Client) -> object:
    return one.main.publish({"a": b"mine"}, "mine", expected={"a": None})


def merge(one: Client) -> object:
    return one.main.merge("work", "mine")


def transact(one: Client) -> object:
    with one.main.transaction("nightly", "mine") as transaction:
        transaction.put("a", b"mine")
    return None


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("act", [publish, merge, transact])
@pytest.mark.parametrize("first", ["held up", Outcome.LATE, Outcome.DONE_BUT_LOST, Outcome.NOT_DONE])
def test_what_is_refused_did_not_happen(
    first: Outcome | str,
    act: Callable[[Client], object],
    rival: str,
    one: Client,
    two: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two.repo.lock_owners.register("repair", "repairs")
    work = two.main.create_branch("work")
    work.put("a", b"mine")
    work.commit("on work")
    for extra in range(12):
        two.main.hard_reset(two.repo.ref("work~1"), force=True)
        left = [0, 0]  # swaps of the branch until the first fault; calls since that one

        def plan(name: str, partition: bytes, key: bytes, extra: int = extra, left: list[int] = left) -> Outcome:
            if left[1] == 0:
                if name == "set_if" and partition.endswith(b"/refs") and key == b"main":
                    left[1] = 1
                    return first if isinstance(first, Outcome) else Outcome.LATE
                return Outcome.DONE
            left[1] += 1
            if left[1] <= 1 + SETTLING:
                return Outcome.NOT_DONE
            if left[1] == 2 + SETTLING + extra:
                with suppress(StrandlineError):  # it may be too late
                    RIVALS[rival](two)
            return Outcome.NOT_DONE if left[1] == 3 + SETTLING + 2 * extra else Outcome.DONE

        one.next = plan
        if first == "held up":  # until the call has ended
            monkeypatch.setattr(one.store, "_land", lambda: None)
        try:
            act(one)
            known = "done"
        except StoreUnavailable as error:
            known = error.happened
        except StrandlineError as error:
            known = "unknown" if "unknown" in error.safe else "no"
        one.connect()
        monkeypatch.undo()
        one.main.find("a")  # what is late lands now
        two.repo.set_read_only(False)
        two.repo.unprotect("main")
        two.main.locks.end([lock.id for lock in two.main.locks])
        count = [commit.message for commit in two.main.log()].count("mine")
        assert count <= 1
        assert count == {"done": 1, "no": 0}.get(known, count), (extra, known)
