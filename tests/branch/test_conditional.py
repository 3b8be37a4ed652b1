"""Conditional puts: what they demand, what they take back, and what others do in between."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline.branch.attempts import update
from strandline.branch.rules.record import seal
from strandline.errors import (
    OutcomeUnknown,
    PreconditionFailed,
    UsageError,
)
from strandline.ids import StagingToken, new_id
from tests.harness.clients import Client, Shared, content, link


def test_a_conditional_put_holds_its_condition(one: Client) -> None:
    made = one.main.put("a", b"1", create=True)
    with pytest.raises(PreconditionFailed, match="holds another object"):
        one.main.put("a", b"2", create=True)
    with pytest.raises(PreconditionFailed):
        one.main.put("a", b"2", if_match="blake3:other")
    with pytest.raises(PreconditionFailed, match="does not exist"):
        one.main.put("b", b"2", if_match=made.checksum)
    one.main.commit("first")
    one.main.put("a", b"2", if_match=made.checksum)
    assert one.main.read("a") == b"2"
    one.main.delete("a")
    one.main.put("a", b"3", create=True)
    assert one.main.read("a") == b"3"
    with pytest.raises(UsageError):
        one.main.put("a", b"4", create=True, if_match="x")


def test_of_two_that_create_an_object_at_once_one_wins(one: Client, two: Client) -> None:
    one.before("set_if", 1, lambda: two.main.put("a", b"two", create=True))
    with pytest.raises(PreconditionFailed):
        one.main.put("a", b"one", create=True)
    assert one.main.read("a") == b"two"


def test_a_conditional_put_notices_a_commit_in_between(one: Client, two: Client) -> None:
    def other() -> None:
        two.main.put("a", b"two")
        two.main.commit("other")

    one.before("set_if", 1, other)
    with pytest.raises(PreconditionFailed):
        one.main.put("a", b"one", create=True)
    one.before("set_if", 1, lambda: two.main.commit("empty", allow_empty=True))
    one.main.put("b", b"one", create=True)
    assert (two.main.read("a"), two.main.read("b")) == (b"two", b"one")


@pytest.mark.parametrize("then", ["nothing", "folded", "committed"])
@pytest.mark.parametrize("condition", ["create", "create above a fold", "match"])
def test_a_conditional_put_remembers_what_it_replaced_in_a_token_that_was_sealed(
    one: Client, two: Client, condition: str, then: str
) -> None:
    """Found by the simulator at seed 2,018,771: what it replaced, a deletion or an object, was forgotten."""
    two.main.put("a", b"committed")
    two.main.commit("a")
    if condition.startswith("create"):
        two.main.delete("a")
        if condition == "create above a fold":
            two.main.compact(force=True)
        options: dict[str, Any] = {"create": True}
    else:
        options = {"if_match": two.main.put("a", b"staged").checksum}

    def seal_it() -> None:
        update(two.main._at, lambda branch: seal(branch, StagingToken(new_id())))
        if then == "folded":
            one.before("get", 1, lambda: two.main.compact(force=True))
        if then == "committed":
            one.before("get", 1, lambda: two.main.commit("it"))

    one.before("set_if", 1, seal_it)
    if (condition, then) == ("create above a fold", "folded"):
        # a fold that discards what is staged looks like a compaction: the call cannot tell
        with pytest.raises(OutcomeUnknown):
            one.main.put("a", b"mine", **options)
    else:
        one.main.put("a", b"mine", **options)
    assert two.main.read("a") == b"mine"


def seal_here(client: Client) -> None:
    update(client.main._at, lambda branch: seal(branch, StagingToken(new_id())))


def test_a_conditional_put_does_not_win_over_a_revert(one: Client, two: Client, shared: Shared) -> None:
    """A commit of a deletion, and its revert, come between the read and the write; then others commit the write."""
    three = Client(shared)
    link(two.main, "p", "x")
    two.main.commit("x")
    two.main.delete("p")
    sealed, go = threading.Event(), threading.Event()
    two.before("set_if", 2, lambda: (sealed.set(), go.wait(10)))
    commit = threading.Thread(target=lambda: two.main.commit("gone"))
    commit.start()
    assert sealed.wait(10)

    def reverted() -> None:
        go.set()
        commit.join(10)
        three.main.revert("main", "back")
        assert content(three.main, "p") == "x"
        one.before("get", 1, lambda: three.main.commit("with mine"))

    one.before("set_if", 1, reverted)
    with pytest.raises((OutcomeUnknown, PreconditionFailed)):
        one.main.put("p", b"mine", create=True)


def test_a_conditional_put_does_not_win_over_a_reset(one: Client, two: Client) -> None:
    """A reset of the path, whose seal came before the read, brings back what is committed; then others fold."""
    link(two.main, "p", "x")
    two.main.commit("x")
    two.main.delete("p")

    def put() -> None:
        def fold() -> None:
            one.before("get", 1, lambda: two.main.compact(force=True))

        def reset_goes_on() -> None:
            go.set()
            done.wait(10)
            fold()

        one.before("set_if", 1, reset_goes_on)
        with pytest.raises((OutcomeUnknown, PreconditionFailed)):
            one.main.put("p", b"mine", create=True)

    go, done, sealed = threading.Event(), threading.Event(), threading.Event()
    two.before("set_if", 2, lambda: (sealed.set(), go.wait(10)))

    def reset() -> None:
        two.main.discard("p")
        done.set()

    thread = threading.Thread(target=reset)
    thread.start()
    assert sealed.wait(10)
    put()
    thread.join(10)


def test_a_conditional_put_that_is_refused_undoes_no_deletion(one: Client, two: Client, shared: Shared) -> None:
    """What others put above its entry hides that already: there is nothing to take back."""
    three = Client(shared)
    link(two.main, "p/s", 1)
    link(two.main, "q", 2)
    two.main.commit("c")
    sealed, go = threading.Event(), threading.Event()
    three.before("set_if", 2, lambda: (sealed.set(), go.wait(10)))
    deletion = threading.Thread(target=lambda: three.main.delete_prefix("d/"))

    def copied_and_deletion_begun() -> None:
        two.main.copy("p/", "d/")
        deletion.start()
        assert sealed.wait(10)

    one.before("set_if", 1, copied_and_deletion_begun)
    one.before("set_if", 2, lambda: (go.set(), deletion.join(10)))
    with pytest.raises((OutcomeUnknown, PreconditionFailed)):
        one.main.put("d/s", b"mine", create=True)
    go.set()
    deletion.join(10)
    assert two.main.find("d/s") is None


def test_a_conditional_put_does_not_believe_in_a_token_that_was_swept_while_it_read(
    one: Client, two: Client, shared: Shared
) -> None:
    """What lay there was folded and swept, so the path looked empty; then its own entry is folded as well."""
    three = Client(shared)
    link(two.main, "p", "theirs")
    sealed, go, sealed_again, goes_on = (threading.Event() for _ in range(4))
    two.before("set_if", 2, lambda: (sealed.set(), go.wait(10)))
    first = threading.Thread(target=lambda: two.main.compact(force=True))
    first.start()
    assert sealed.wait(10)
    second = threading.Thread(target=lambda: three.main.compact(force=True))

    def folded_and_swept() -> None:
        go.set()
        first.join(10)
        assert two.repo.sweep(after_s=0, again_after_s=0)

    def folded_again() -> None:
        goes_on.set()
        second.join(10)
        assert two.repo.sweep(after_s=0, again_after_s=0)

    def another_fold() -> None:
        three.before("scan_page", 1, lambda: (sealed_again.set(), goes_on.wait(10)))
        second.start()
        assert sealed_again.wait(10)
        one.before("get", 1, folded_again)

    assert one.main.find("q") is None  # its record is in the cache
    one.before("get", 2, folded_and_swept)
    one.before("set_if", 1, another_fold)
    with pytest.raises(OutcomeUnknown):
        one.main.put("p", b"mine", create=True)


def test_a_conditional_put_is_taken_back_above_a_token_that_a_commit_has_read(
    one: Client, two: Client, shared: Shared
) -> None:
    """Its record was old, so it wrote where nothing seemed to lie; a commit scans that before it is taken back."""
    three = Client(shared)
    link(two.main, "p", "theirs")
    sealed, go, scanned, goes_on = (threading.Event() for _ in range(4))
    two.before("set_if", 2, lambda: (sealed.set(), go.wait(10)))
    first = threading.Thread(target=lambda: two.main.commit("theirs"))
    first.start()
    assert sealed.wait(10)
    second = threading.Thread(target=lambda: three.main.commit("with what is being taken back"))

    def committed_and_swept() -> None:
        go.set()
        first.join(10)
        assert two.repo.sweep(after_s=0, again_after_s=0)

    def scanned_by_another_commit() -> None:
        three.before("set_if", 2, lambda: (scanned.set(), goes_on.wait(10)))
        second.start()
        assert scanned.wait(10)

    assert one.main.find("q") is None  # its record is in the cache
    one.before("get", 2, committed_and_swept)
    one.before("set_if", 2, scanned_by_another_commit)
    with pytest.raises(PreconditionFailed):
        one.main.put("p", b"mine", create=True)
    goes_on.set()
    second.join(10)
    assert content(two.main, "p") == content(one.main, "p") == "theirs"


@pytest.mark.parametrize("other", ["an attach", "a merge"])
def test_a_conditional_put_cannot_tell_what_lies_beneath_when_others_put_something_there(
    one: Client, two: Client, other: str
) -> None:
    link(two.main, "x", 1)
    two.main.commit("x")
    work = two.main.create_branch("work")
    link(work, "a", "merged")
    work.commit("a")

    def seal_it_and_fold() -> None:
        if other == "an attach":
            two.main.rename("x", "y")
        update(two.main._at, lambda branch: seal(branch, StagingToken(new_id())))
        if other == "a merge":
            two.main.merge("work", "m")
        one.before("get", 1, lambda: two.main.compact(force=True))

    one.before("set_if", 1, seal_it_and_fold)
    with pytest.raises((OutcomeUnknown, PreconditionFailed)) as failed:
        one.main.put("a", b"mine", create=True)
    if other == "an attach":
        assert failed.type is OutcomeUnknown
    else:
        assert content(two.main, "a") == "merged"


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_conditional_put_that_was_committed_as_it_was_taken_back_is_not_refused_for_sure(
    one: Client, two: Client, is_sealed: bool
) -> None:
    """Found by the simulator at seeds 5,009,983 and 8,012,494: what took it back went to a token that a commit had
    dropped, another one or the very same."""
    work = two.main.create_branch("work")
    link(work, "p", "merged")
    work.commit("p")

    def merged_and_sealed() -> None:
        two.main.merge("work", "m")
        if is_sealed:
            seal_here(two)
        one.before("set_if", 1, lambda: two.main.commit("mine, too"))

    one.before("set_if", 1, merged_and_sealed)
    with pytest.raises((OutcomeUnknown, PreconditionFailed)) as failed:
        one.main.put("p", b"mine", create=True)
    if failed.type is PreconditionFailed:
        assert content(two.main, "p") == "merged"


def test_a_conditional_put_that_is_refused_puts_back_what_it_replaced(one: Client, two: Client) -> None:
    staged = two.main.put("a", b"staged")

    def seal_it_and_write_above() -> None:
        update(two.main._at, lambda branch: seal(branch, StagingToken(new_id())))
        one.before("get", 1, lambda: two.main.put("a", b"above"))

    one.before("set_if", 1, seal_it_and_write_above)
    with pytest.raises(PreconditionFailed):
        one.main.put("a", b"mine", if_match=staged.checksum)
    assert two.main.read("a") == b"above"
    two.main.commit("c")
    assert two.main.read("a") == b"above"
