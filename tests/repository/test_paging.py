"""Long results page by page: the pages together are the whole, and a page costs what it shows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from strandline.branch import view
from strandline.branch.commits import KEY_PREFIX
from strandline.errors import RefNotFound, StrandlineError, UsageError
from strandline.kv.store import Page
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.results import history
from strandline.results.differences import Change, Diff
from strandline.tree.cache import ByteBoundedCache
from tests.harness.clients import link

PATHS = [f"{folder}{number}" for folder in ("", "a/", "a/b/", "a/c/", "b/", "é/") for number in range(5)]
PATHS += ["a/", "a/b/", "aa", "b//"]
"""With markers of folders, as S3 tools make them: objects that are called as their prefix."""
SPANS = [
    ("", ""),
    ("a/", ""),
    ("", "/"),
    ("a/", "/"),
    ("a", "/"),
    ("nothing/", ""),
    ("", "/b"),
    ("a", "aa"),
    ("b/", "/"),
]


def told(change: Change) -> tuple[str, str]:
    return change.path, change.kind


def pages(read: Callable[[str, int], Diff], amount: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    after = ""
    while page := [told(change) for change in read(after, amount)]:
        assert len(page) <= amount
        assert page[-1][0] > after
        found += page
        after = page[-1][0]
    return found


def folded(whole: list[tuple[str, str]], prefix: str, delimiter: str) -> list[tuple[str, str]]:
    """What a listing by folders shows of all changes, in another way than the code."""
    shown: dict[str, str] = {}
    for path, kind in whole:
        if not path.startswith(prefix):
            continue
        head, found, _ = path[len(prefix) :].partition(delimiter) if delimiter else (path, "", "")
        shown[prefix + head + found if found else path] = "prefix_changed" if found else kind
    return sorted(shown.items())


@pytest.mark.parametrize("seed", range(8))
def test_pages_of_differences_are_the_whole(repo: Repository, main: Branch, seed: int) -> None:
    rnd = Random(seed)

    def change(count: int) -> None:
        for path in rnd.sample(PATHS, count):
            if rnd.random() < 0.3:
                main.delete(path)
            else:
                link(main, path, rnd.randrange(4))

    change(20)
    first = main.commit("first")
    change(14)
    second = main.commit("second")
    change(6)
    if rnd.random() < 0.5:
        main.compact(force=True)
    change(8)
    if rnd.random() < 0.5:
        main.put_many({"a/b/sealed": b"1", "z": b"2"})
    change(3)
    staged = [told(one) for one in main.uncommitted()]
    between = [told(one) for one in repo.ref(first.id).diff(second.id)]
    assert staged
    assert between
    for prefix, delimiter in SPANS:
        for amount in (1, 2, 5, 100):
            assert pages(
                lambda after, most: main.uncommitted(prefix, delimiter=delimiter, after=after, amount=most),  # noqa: B023 - called within its turn
                amount,
            ) == folded(staged, prefix, delimiter)
            assert pages(
                lambda after, most: repo.ref(first.id).diff(
                    second.id,
                    prefix,  # noqa: B023
                    delimiter=delimiter,  # noqa: B023
                    after=after,
                    amount=most,
                ),
                amount,
            ) == folded(between, prefix, delimiter)
        whole = main.uncommitted(prefix, delimiter=delimiter)
        assert [told(one) for one in whole] == folded(staged, prefix, delimiter)
        assert whole.to_arrow().select(["path", "kind"]).to_pylist() == [
            {"path": path, "kind": kind} for path, kind in folded(staged, prefix, delimiter)
        ]
    listed = [info.path for info in repo.ref("main$").list()]
    assert listed == [path for path, kind in staged if kind != "removed"]
    assert [info.path for info in repo.ref("main$").list(amount=2)] == listed[:2]


def test_a_page_of_what_is_staged_reads_about_what_it_shows(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    main.put_many({f"committed/{number:04d}": b"x" for number in range(50)})
    main.commit("first")
    for number in range(600):
        link(main, f"k/{number:04d}", number)
    for number in range(50):
        link(main, f"k/{number:04d}", "again")
    read = 0
    kv = main._core.stores.kv
    scan_page = type(kv).scan_page

    def counted(*arguments: object, **options: object) -> Page:
        nonlocal read
        page = scan_page(*arguments, **options)  # type: ignore[arg-type]
        read += len(page.keys)
        return page

    monkeypatch.setattr(type(kv), "scan_page", counted)
    found = pages(lambda after, most: main.uncommitted(after=after, amount=most), 10)
    assert len(found) == 600
    assert read < 3 * 600
    read = 0
    assert [told(one) for one in main.uncommitted(delimiter="/")] == [("k/", "prefix_changed")]
    assert read < 200


def test_a_listing_goes_on_behind_a_marker_that_is_called_as_its_prefix(repo: Repository, main: Branch) -> None:
    for path in ("raw/", "raw/a", "raw/b/c"):
        link(main, path, 1)
    for committed in (False, True):
        found: list[str] = []
        while page := [
            one.path for one in main.list("raw/", delimiter="/", after=found[-1] if found else "", amount=1)
        ]:
            found += page
            assert len(found) < 9
        assert found == ["raw/", "raw/a", "raw/b/"]
        if not committed:
            main.commit("first")


def test_a_flat_folder_is_not_read_in_small_windows(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    main.put_many({f"t/{number:05d}": b"" for number in range(3_000)})
    windows: list[int] = []
    read = view.uncommitted_window

    def counted(at: Any, low: str, end: str | None, rows: int) -> Any:
        windows.append(rows)
        return read(at, low, end, rows)

    monkeypatch.setattr(view, "uncommitted_window", counted)
    assert len(list(main.uncommitted("t/", delimiter="/"))) == 3_000
    assert len(windows) <= 5


def test_a_page_of_names_reads_about_what_it_shows(
    repo: Repository, main: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(main, "a", 1)
    main.commit("first")
    for number in range(60):
        repo.create_branch(f"b{number:02d}")
    kv = main._core.stores.kv
    scan_page = type(kv).scan_page
    read: list[int] = []

    def counted(*arguments: object, **options: object) -> Page:
        page = scan_page(*arguments, **options)  # type: ignore[arg-type]
        read.append(len(page.keys))
        return page

    monkeypatch.setattr(type(kv), "scan_page", counted)
    assert len(list(repo.branches(amount=5))) == 5
    assert sum(read) <= 6
    read.clear()
    assert list(repo.tags(amount=2)) == []
    assert read == [3, 12, 46]


def test_a_log_shows_what_is_there_of_a_damaged_history(repo: Repository, main: Branch, lake: Lake) -> None:
    for number in range(3):
        link(main, "a", number)
        main.commit(f"{number}")
    newest, damaged = [commit.id for commit in main.log(amount=2)]
    stores = main._core.stores
    stores.kv.delete(stores.records, KEY_PREFIX + damaged.encode())
    main._core.commits._cache = ByteBoundedCache(1 << 20)
    assert [commit.id for commit in main.log(amount=1)] == [newest]
    rest = iter(main.log())
    assert next(rest).id == newest
    with pytest.raises(RefNotFound):
        next(rest)


def test_a_page_passes_what_changes_nothing(main: Branch) -> None:
    for number in range(40):
        link(main, f"k/{number:04d}", number)
    main.commit("first")
    for number in range(40):
        link(main, f"k/{number:04d}", number)
    link(main, "z", 1)
    main.delete("never")
    assert [told(one) for one in main.uncommitted(amount=1)] == [("z", "added")]
    assert view.WINDOW_MAX_ROWS > 40


def test_what_is_compacted_comes_in_its_turn_between_what_is_staged(main: Branch) -> None:
    for path in "abcd":
        link(main, path, 1)
    main.commit("first")
    for path in ("a0", "z"):
        link(main, path, 1)
    main.compact(force=True)
    for path in "abcdm":  # all but the last as they are committed
        link(main, path, 1)
    whole = ["a0", "m", "z"]
    assert [one.path for one in main.uncommitted()] == whole
    for amount in (1, 2, 3):
        assert [
            path for path, _ in pages(lambda after, most: main.uncommitted(after=after, amount=most), amount)
        ] == whole


def test_amounts_and_starts_that_make_no_sense_are_refused(main: Branch, repo: Repository, lake: Lake) -> None:
    calls: list[Callable[[], object]] = [
        lambda: main.uncommitted(amount=-1),
        lambda: main.diff("main", amount=-1),
        lambda: repo.branches(amount=-1),
        lambda: repo.tags(amount=-1),
        lambda: lake.repositories(amount=-1),
        lambda: main.log(amount=-1),
        lambda: main.uncommitted(after="\0"),
        lambda: main.uncommitted(delimiter=1),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(UsageError if call is not calls[6] else StrandlineError):
            call()
    assert list(main.uncommitted(amount=0)) == []
    assert list(main.uncommitted(delimiter="/", amount=0)) == []


def test_names_come_page_by_page(repo: Repository, main: Branch, lake: Lake) -> None:
    link(main, "a", 1)
    main.commit("first")
    names = [f"b{number:02d}" for number in range(12)]
    for name in names:
        repo.create_branch(name)
        repo.create_tag(f"t-{name}", "main")
    repo.delete_branch("b05")
    names.remove("b05")
    for amount in (1, 3, 100):
        for listed, prefix, expected in (
            (repo.branches, "", [*names, "main"]),
            (repo.branches, "b0", [name for name in names if name.startswith("b0")]),
            (repo.tags, "t-b1", ["t-b10", "t-b11"]),
        ):
            found: list[str] = []
            while page := [one.name for one in listed(prefix, after=found[-1] if found else "", amount=amount)]:
                assert len(page) <= amount
                found += page
            assert found == expected
    for name in ("aaa", "bbb", "bbc"):
        lake.create_repository(name)
    assert [one.name for one in lake.repositories(after="aaa")] == ["bbb", "bbc", repo.name]
    assert [one.name for one in lake.repositories("bb", amount=1)] == ["bbb"]
    assert [one.name for one in lake.repositories("bb", after="bbb")] == ["bbc"]


@pytest.fixture
def merged(repo: Repository, main: Branch) -> list[str]:
    """A history of 60 commits with merges, newest first."""
    rnd = Random(5)
    for number in range(14):
        link(main, f"m{number}", number)
        main.commit(f"main {number}")
        work = repo.create_branch(f"w{number}", f"main~{rnd.randrange(min(number + 1, 5))}")
        for step in range(rnd.randrange(1, 4)):
            link(work, f"w{number}/{step}", step)
            work.commit(f"work {number}/{step}")
        main.merge(work)
    return [commit.id for commit in main.log()]


@pytest.mark.parametrize("first_parent", [False, True])
@pytest.mark.parametrize("remembers", [False, True])
def test_pages_of_a_log_are_the_whole(
    main: Branch, merged: list[str], first_parent: bool, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [commit.id for commit in main.log(first_parent=first_parent)]
    walked = 0
    steps = history.Walk.__iter__

    def counted(self: history.Walk) -> object:
        nonlocal walked
        for commit in steps(self):
            walked += 1
            yield commit

    monkeypatch.setattr(history.Walk, "__iter__", counted)
    for amount in (1, 4, 1_000):
        walked = 0
        found: list[str] = []
        while page := [
            commit.id
            for commit in main.log(first_parent=first_parent, amount=amount, after=found[-1] if found else None)
        ]:
            assert len(page) <= amount
            found += page
            if not remembers:
                monkeypatch.setattr(history, "frontiers", type(history.frontiers)(1 << 20))
        assert found == whole
        if remembers:
            assert walked <= 3 * len(whole) + 3


def test_a_page_behind_a_commit_of_another_history_is_refused(
    repo: Repository, main: Branch, merged: list[str]
) -> None:
    work = repo.create_branch("aside")
    link(work, "x", 1)
    other = work.commit("aside").id
    with pytest.raises(RefNotFound, match="not in this history"):
        list(main.log(after=other))
    assert [commit.id for commit in main.log(after=merged[3][:12], amount=2)] == merged[4:6]
    (last,) = main.log(after=merged[3], amount=1)
    assert [commit.id for commit in main.log(after=last, amount=1)] == merged[5:6]
    assert [commit.id for commit in main.log(after="main~1", paths="m0")]
