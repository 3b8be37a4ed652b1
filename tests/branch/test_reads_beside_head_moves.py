"""A read beside a head that moves shows what the branch held at one instant, or reads again.

A merge, a publication and a commit of nothing but a compacted tree leave the staging token where it is, so the tokens
that a reader knows stay on record. What is put there afterwards must never show over the head before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.blob import open_store
from strandline.errors import ObjectMissing, PreconditionFailed
from strandline.testing.faults import Outcome
from strandline.tree.store import Tree, TreeStore
from tests.harness.clients import Client, content, link, shown

Move = Callable[[Client], None]


def merge(client: Client) -> None:
    client.main.merge("work")


def publish(client: Client) -> None:
    with client.main.transaction("job", "publish") as tx:
        tx.put("w", b"published")


def commit_what_is_compacted(client: Client) -> None:
    client.main.commit("only the compacted tree")


def before_the_staging_scan(client: Client, action: Callable[[], object]) -> list[str]:
    """Do something right before the client's next scan of a staging token; the list says whether it was done."""
    done: list[str] = []

    def plan(call: str, partition: bytes, key: bytes) -> Outcome:
        if call == "scan_page" and b"/staging/" in partition and not done:
            done.append("done")
            action()
        return Outcome.DONE

    client.store.plan = plan
    return done


def with_work(client: Client) -> None:
    work = client.repo.create_branch("work")
    link(work, "w", "merged")
    work.commit("w")


@pytest.mark.parametrize("is_cached", [False, True], ids=["read anew", "from the cache"])
@pytest.mark.parametrize("move", [merge, publish])
def test_a_page_never_shows_a_put_without_the_head_that_moved_before_it(
    one: Client, two: Client, move: Move, is_cached: bool
) -> None:
    with_work(one)
    if is_cached:
        two.main.find("warm")

    def move_then_put() -> None:
        move(one)
        link(one.main, "p", "put")

    done = before_the_staging_scan(two, move_then_put)
    assert shown(two) == ["p", "w"]
    assert done


@pytest.mark.parametrize("move", [merge, publish])
def test_uncommitted_never_shows_what_the_head_before_lacks(one: Client, two: Client, move: Move) -> None:
    with_work(one)

    def move_then_delete() -> None:
        move(one)
        one.main.delete("w")

    done = before_the_staging_scan(two, move_then_delete)
    assert [(change.path, change.kind) for change in two.main.uncommitted()] == [("w", "removed")]
    assert done


def test_uncommitted_beside_a_commit_of_nothing_but_a_compacted_tree(one: Client, two: Client) -> None:
    link(one.main, "a", "compacted")
    assert one.main.compact(force=True).outcome == "done"

    def commit_then_put() -> None:
        commit_what_is_compacted(one)
        link(one.main, "p", "put")

    two.main._cell._last = None
    done = before_the_staging_scan(two, commit_then_put)
    assert [change.path for change in two.main.uncommitted()] == ["p"]
    assert done
    assert shown(two) == ["a", "p"]


@pytest.mark.parametrize("move", [merge, publish, commit_what_is_compacted])
def test_a_backup_saves_a_branch_as_it_was_at_one_instant(one: Client, two: Client, move: Move, tmp_path: Path) -> None:
    with_work(one)
    if move is commit_what_is_compacted:
        one.main.put("w", b"compacted")
        assert one.main.compact(force=True).outcome == "done"

    def move_then_put() -> None:
        move(one)
        one.main.put("p", b"put")

    done = before_the_staging_scan(two, move_then_put)
    two.lake.backup(tmp_path / "saved", data=False)
    assert done
    one.lake.delete_repository("nyc")
    (restored,) = one.lake.restore(tmp_path / "saved", check=False, name="again")
    assert [info.path for info in restored.branch("main").list()] == ["p", "w"]
    staged = [change.path for change in restored.branch("main").uncommitted()]
    assert staged == ["p"]


def test_a_conditional_put_is_judged_on_the_head_that_it_lies_over(one: Client, two: Client) -> None:
    with_work(one)
    two.before("set_if", 1, lambda: merge(one))
    two.main.find("warm")
    with pytest.raises(PreconditionFailed):
        two.main.put("w", b"mine", create=True)
    assert content(one.main, "w") == "merged"


def test_a_head_that_left_and_came_back_is_another_state(one: Client) -> None:
    with_work(one)
    before = one.main._cell.read().branch
    one.main.merge("work")
    one.main.hard_reset(before.head)
    after = one.main._cell.read().branch
    assert (after.tokens, after.head, after.compacted) == (before.tokens, before.head, before.compacted)
    assert after.layers != before.layers
    assert not after.only_sealed_since(before)


# --- a tree that was replaced and collected between the record and the read


def collect_all_but(client: Client) -> None:
    """Delete the trees that no record names any more, as a collector does that runs after a long grace."""
    record = client.main._cell.read().branch
    kept = {record.compacted, *(commit.tree_ref for commit in client.main._core.commits.all())}
    blobs = client.main._core.stores.trees.blobs
    for key in list(blobs.list_keys("_strandline/metaranges/")):
        if key.rpartition("/")[2].removesuffix(".parquet") not in kept:
            blobs.delete_many([key])


def replaced_and_collected(client: Client) -> None:
    link(client.main, "b", "b")
    client.main.compact(force=True)
    collect_all_but(client)


@pytest.mark.parametrize(
    "read",
    [
        lambda client: content(client.main, "a"),
        shown,
        lambda client: list(client.main.uncommitted()),
    ],
    ids=["find", "list", "uncommitted"],
)
def test_a_cached_record_whose_tree_was_collected_is_read_again(
    one: Client, two: Client, read: Callable[[Client], object]
) -> None:
    link(one.main, "a", "a")
    one.main.compact(force=True)
    two.main._cell.read()  # only the record is cached, not the tree that it names
    replaced_and_collected(one)
    assert read(two)


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.main.commit("c"),
        lambda client: client.main.discard(prefix="z"),
        lambda client: client.main.compact(force=True),
        lambda client: client.main.rename("a", "z"),
        lambda client: client.main.locks.take("z", owner="me"),
    ],
    ids=["commit", "reset", "compact", "rename", "lock"],
)
def test_a_change_whose_tree_was_collected_is_computed_again(
    one: Client, two: Client, change: Callable[[Client], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    one.repo.lock_owners.register("me", "for this test")
    link(one.main, "a", "a")
    one.main.compact(force=True)
    old = one.main._cell.read().branch.compacted
    link(one.main, "c", "c")
    trees, met = two.main._core.stores.trees, list[str]()
    load = TreeStore.tree

    def tree(self: TreeStore, ref: str) -> Tree:
        if self is trees and ref == old and not met:
            met.append(ref)
            replaced_and_collected(one)
        return load(self, ref)

    monkeypatch.setattr(TreeStore, "tree", tree)
    change(two)
    assert met == [old]
    assert set(shown(one)) - {"a", "z"} == {"b", "c"}


def test_a_tree_that_the_record_still_names_is_missing(one: Client, two: Client) -> None:
    link(one.main, "a", "a")
    one.main.compact(force=True)
    blobs = open_store(one.repo._core.stores.trees.blobs.url)
    blobs.delete_many(list(blobs.list_keys("_strandline/metaranges/")))
    for act in (lambda: shown(two), lambda: two.main.commit("c"), lambda: two.main.rename("a", "b")):
        with pytest.raises(ObjectMissing):
            act()
