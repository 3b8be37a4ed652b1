"""The changes of a branch as a shard: each move of the head once, whoever records it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import Conflict, OutcomeUnknown, UsageError
from strandline.repository.branch import Branch
from strandline.repository.feed import Feed
from strandline.repository.repository import Repository
from strandline.shards.handles.writer import Writer


def told(feed: Feed, prefix: str = "", since: int | None = None) -> list[tuple[Any, ...]]:
    table = feed.changes(prefix, since)
    return list(zip(*(table[name].to_pylist() for name in ("_time", "change", "path", "author")), strict=True))


def test_each_move_of_the_head_is_told_once(main: Branch) -> None:
    main.put("a", "1")
    main.put("t/x", "1")
    first = main.commit("begin", committer="ann")
    feed = main.feed
    begun = told(feed)
    assert [(change, path) for _, change, path, _ in begun] == [("added", "a"), ("added", "t/x")]
    at = begun[0][0]
    main.put("a", "2")
    main.delete("t/x")
    main.put("t/y", "1")
    main.commit("more", committer="bob")
    work = main.create_branch("work")
    work.put("t/z", "1")
    work.commit("there")
    main.merge(work)
    assert told(feed, since=at) == [
        (at + 1, "removed", "a", "bob"),
        (at + 1, "added", "a", "bob"),
        (at + 1, "removed", "t/x", "bob"),
        (at + 1, "added", "t/y", "bob"),
        (at + 2, "added", "t/z", "tester"),
    ]
    assert told(feed, "t/", since=at + 1) == [(at + 2, "added", "t/z", "tester")]
    assert told(feed, since=at + 2) == []
    main.hard_reset(first.id)
    assert [change for _, change, _, _ in told(feed, since=at + 2)].count("removed") == 3
    commits = set(feed.changes()["commit"].to_pylist())
    assert first.id in commits


def test_a_feed_can_be_recorded_by_several_at_once(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.feed.record()

        def record() -> None:
            with strandline.open(tmp_path / "lake") as own:
                feed = own.repository("nyc").branch("main").feed
                for _ in range(10):
                    feed.record()

        threads = [threading.Thread(target=record) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(30):
            main.put(f"f{number}", "x")
            main.commit(f"{number}")
        for thread in threads:
            thread.join()
        changes = told(main.feed)
        assert sorted(path for _, _, path, _ in changes) == sorted(f"f{number}" for number in range(30))
        times = [time for time, _, _, _ in changes]
        assert times == list(range(times[0], times[0] + 30))


def test_a_feed_that_the_reflog_does_not_reach_says_so(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    main.feed.record()
    for number in range(5):
        main.put("a", str(number))
        main.commit(f"{number}")
    monkeypatch.setattr("strandline.repository.feed.read_moves", lambda stores, record: iter(record.moves[:2]))
    with pytest.raises(Conflict, match="moved 5 times"):
        main.feed.record()


def test_a_branch_made_anew_has_a_feed_of_its_own(repo: Repository) -> None:
    work = repo.create_branch("work")
    work.put("a", "1")
    work.commit("a")
    old = work.feed
    assert len(told(old)) == 1
    repo.delete_branch("work")
    again = repo.create_branch("work")
    assert told(again.feed) == []
    assert again.feed.shard.name != old.shard.name


def test_a_move_is_named_by_its_number(main: Branch) -> None:
    for since in ("main~1", 1.5, True):
        with pytest.raises(UsageError, match="since is the number of a move"):
            main.feed.changes(since=since)  # type: ignore[arg-type]


def test_a_record_of_which_nobody_knows_whether_it_is_there_is_looked_for(
    main: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a feed writes is definite: it goes on from what is on record, whoever wrote it."""
    append = Writer.compare_and_append
    lost = [True]

    def answered(self: Writer, *arguments: Any, **options: Any) -> None:
        append(self, *arguments, **options)
        if lost:
            lost.pop()
            raise OutcomeUnknown("Injected.")

    monkeypatch.setattr(Writer, "compare_and_append", answered)
    main.put("a", b"1")
    main.commit("a")
    assert main.feed.changes().column("path").to_pylist() == ["a"]
    assert not lost
