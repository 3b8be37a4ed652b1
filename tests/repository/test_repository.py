"""Repositories, branches, tags and settings, and what is refused about them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.errors import (
    AlreadyExists,
    BranchGone,
    BranchProtected,
    InvalidName,
    NotAllowed,
    RefNotFound,
    RepositoryNotFound,
    RepositoryReadOnly,
    StrandlineError,
    UsageError,
)
from strandline.ids import check_path, check_paths
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.testing.kv_conformance import in_threads
from strandline.tree.rows import Entry


def test_a_new_repository_has_a_branch_with_one_empty_commit(repo: Repository) -> None:
    main = repo.branch("main")
    assert [commit.message for commit in main.log()] == ["Repository created"]
    assert list(main.list()) == []
    assert repo.default_branch.name == "main"


def test_repositories_are_listed_opened_and_not_made_by_accident(lake: Lake) -> None:
    for name in ("zoo", "abc", "n-1"):
        lake.repository(name, create=True)
    assert [record.name for record in lake.repositories()] == ["abc", "n-1", "zoo"]
    with pytest.raises(RepositoryNotFound, match="create=True"):
        lake.repository("nope")
    with pytest.raises(AlreadyExists):
        lake.create_repository("zoo")
    assert lake.repository("zoo", create=True).name == "zoo"


@pytest.mark.parametrize("name", ["", "ab", "Upper", "-dash", "a" * 64, "a/b", "a_b", "ümlaut", "a.b", "a b", "abc\n"])
def test_a_repository_name_that_breaks_the_rule_is_refused_in_words(lake: Lake, name: str) -> None:
    with pytest.raises(InvalidName, match="lower-case letters, digits"):
        lake.repository(name, create=True)


@pytest.mark.parametrize("name", ["", "a/b", "-x", ".x", "a b", "a~1", "a^", "a@{1}", "x" * 257, "ü", "a" * 40, "x\n"])
def test_a_branch_or_tag_name_that_breaks_the_rule_is_refused_in_words(
    main: Branch, repo: Repository, name: str
) -> None:
    with pytest.raises(InvalidName, match="letters, digits"):
        main.create_branch(name)
    with pytest.raises(InvalidName, match="tag name"):
        repo.create_tag(name, main)


@pytest.mark.parametrize("path", ["", "x" * 1025, "é" * 513, "a\0b", "\ud800", 7, None])
def test_a_path_that_breaks_the_rule_is_refused_in_words(main: Branch, path: object) -> None:
    calls: list[Any] = [main.find, main.delete, lambda p: main.put(p, b"x"), lambda p: main.copy(p, "y")]
    for call in calls:
        with pytest.raises(UsageError, match="1 to 1024 bytes|must be a str|expects a text"):
            call(path)


@pytest.mark.parametrize("at", [0, 1, 700])
@pytest.mark.parametrize("path", ["", "x" * 1025, "é" * 513, "a\0b", "\ud800", 7, None])
def test_one_bad_path_of_many_refuses_them_all(main: Branch, path: Any, at: int) -> None:
    paths: list[Any] = [f"p{i}" for i in range(701)]
    assert check_paths(paths) == [check_path(one) for one in paths]
    paths[at] = path
    with pytest.raises(UsageError, match="1 to 1024 bytes|must be a str|expects"):
        main.delete_many(paths)
    entry = Entry("data/x", 1, "blake3:00", 0)
    with pytest.raises(UsageError, match="1 to 1024 bytes|must be a str|expects"):
        main.stage_each([(one, entry) for one in paths])
    assert not list(main.uncommitted())


@pytest.mark.parametrize("at", [0, 511, 512, 1_100])
def test_one_bad_entry_of_many_refuses_them_all(main: Branch, at: int) -> None:
    entries = [(f"p{i:04d}", Entry("data/x", i, "blake3:00", 0)) for i in range(1_101)]
    entries[at] = (entries[at][0], Entry("data/x", "1", "blake3:00", 0))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot hold what it was given"):
        main.stage_each(entries)
    assert not list(main.uncommitted())
    entries[at] = (entries[at][0], Entry("data/x", 1, "blake3:00", 0))
    assert main.stage_each(entries) == 1_101


def test_odd_paths_are_kept_as_they_are(main: Branch) -> None:
    odd = ["/", "//", " ", "a//b", "../x", "é" * 512, "x" * 1024, "日本/語", "new\nline", "~", "a\x01"]
    for path in odd:
        assert check_path(path)
        main.put(path, path.encode())
    main.commit("odd")
    assert sorted(info.path.encode() for info in main.list()) == sorted(path.encode() for path in odd)
    assert all(main.read(path) == path.encode() for path in odd)


def test_two_that_create_a_repository_at_once_get_one(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        made, refused = [], []

        def create() -> None:
            try:
                made.append(lake.create_repository("nyc"))
            except AlreadyExists as error:
                refused.append(error)

        in_threads(create)
        assert len(made) == 1
        assert len(refused) == 7
        made[0].branch("main").put("a", b"1")
        assert lake.repository("nyc").branch("main").read("a") == b"1"


def test_processes_that_create_one_repository_at_once_all_get_it(tmp_path: Path) -> None:
    strandline.open(tmp_path / "lake", create=True).close()
    script = (
        "import sys, strandline\n"
        "lake = strandline.open(sys.argv[1])\n"
        "main = lake.repository('nyc', create=True, namespace=sys.argv[2]).branch('main')\n"
        "main.put(sys.argv[3], b'1')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lake"), str(tmp_path / "bytes")]
    processes = [subprocess.Popen([*command, f"p{i}"], stderr=subprocess.PIPE) for i in range(4)]
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    with strandline.open(tmp_path / "lake") as lake:
        assert [info.path for info in lake.repository("nyc").branch("main").list()] == ["p0", "p1", "p2", "p3"]


def test_a_namespace_in_use_or_overlapping_is_refused(lake: Lake, tmp_path: Path) -> None:
    lake.create_repository("one", namespace=str(tmp_path / "data" / "one"))
    for other in ("data/one", "data/one/inner", "data"):
        with pytest.raises(AlreadyExists, match="namespace"):
            lake.create_repository("two", namespace=str(tmp_path / other))
    lake.create_repository("two", namespace=str(tmp_path / "data" / "one-more"))
    with strandline.open(tmp_path / "another lake", create=True) as another:
        with pytest.raises(AlreadyExists, match="belongs to a repository already"):
            another.create_repository("three", namespace=str(tmp_path / "data" / "one"))
    with pytest.raises(RepositoryNotFound):
        lake.repository("three")


def test_a_deleted_repository_is_gone_and_its_name_is_free(lake: Lake) -> None:
    old = lake.repository("nyc", create=True)
    handle = old.branch("main")
    handle.put("a", b"1")
    handle.commit("a")
    lake.delete_repository("nyc")
    with pytest.raises(RepositoryNotFound):
        lake.repository("nyc")
    with pytest.raises(RepositoryNotFound):
        lake.delete_repository("nyc")
    new = lake.repository("nyc", create=True)
    assert list(new.branch("main").list()) == []
    for call in (lambda: handle.put("b", b"1"), lambda: handle.commit("late"), lambda: handle.create_branch("x")):
        with pytest.raises(StrandlineError):
            call()
    with pytest.raises(BranchGone):
        handle.find("a")
    assert list(new.branch("main").list()) == []


def test_a_deletion_that_was_interrupted_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.repository.names import repositories as catalog

    lake.repository("nyc", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "sweep", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lake.delete_repository("nyc")
    with pytest.raises(RepositoryNotFound, match="being deleted"):
        lake.repository("nyc")
    with pytest.raises(AlreadyExists):
        lake.create_repository("nyc")
    lake.delete_repository("nyc")
    lake.repository("nyc", create=True)


def test_a_branch_is_made_from_any_ref(repo: Repository, main: Branch) -> None:
    for value in "123":
        main.put("a", value)
        main.commit(value)
    repo.create_tag("v2", "main~1")
    assert repo.create_branch("b1", "main~2").read("a") == b"1"
    assert repo.create_branch("b2", "v2").read("a") == b"2"
    assert repo.create_branch("b3", repo.ref("main").commit_id[:10]).read("a") == b"3"
    assert repo.create_branch("b4").read("a") == b"3"
    assert [ref.name for ref in repo.branches()] == ["b1", "b2", "b3", "b4", "main"]
    assert [ref.name for ref in repo.branches("b")] == ["b1", "b2", "b3", "b4"]


def test_staged_changes_stay_behind_when_a_branch_is_made(main: Branch) -> None:
    main.put("a", b"1")
    assert list(main.create_branch("b").list()) == []


def test_a_taken_name_is_refused_for_both_kinds(repo: Repository, main: Branch) -> None:
    main.create_branch("b")
    repo.create_tag("t", main)
    for call in (
        lambda: main.create_branch("b"),
        lambda: main.create_branch("t"),
        lambda: main.create_branch("t", exist_ok=True),
        lambda: repo.create_tag("b", main),
        lambda: repo.create_tag("t", main),
    ):
        with pytest.raises(AlreadyExists):
            call()
    assert main.create_branch("b", exist_ok=True).name == "b"


def test_a_branch_and_a_tag_of_one_name_made_at_once_do_not_both_win(repo: Repository, main: Branch) -> None:
    won: list[str] = []
    turn = threading.Lock()

    def make() -> None:
        with turn:
            kind = "branch" if len(won) % 2 else "tag"
        try:
            main.create_branch("x") if kind == "branch" else repo.create_tag("x", main)
            won.append(kind)
        except AlreadyExists:
            pass

    in_threads(make)
    assert len(won) == 1
    assert [ref.name for ref in repo.branches("x")] + [ref.name for ref in repo.tags("x")] == ["x"]


def test_deleted_names_can_be_taken_again_by_either_kind(repo: Repository, main: Branch) -> None:
    main.create_branch("x")
    repo.delete_branch("x")
    with pytest.raises(RefNotFound, match="was deleted"):
        repo.branch("x")
    repo.create_tag("x", main)
    repo.delete_tag("x")
    main.create_branch("x")
    with pytest.raises(RefNotFound):
        repo.delete_tag("x")
    with pytest.raises(RefNotFound):
        repo.delete_branch("nope")
    with pytest.raises(RefNotFound, match="not a branch"):
        repo.create_tag("t", main)
        repo.branch("t")


def test_the_default_branch_cannot_be_deleted_until_another_is_the_default(repo: Repository, main: Branch) -> None:
    with pytest.raises(NotAllowed, match="default branch"):
        repo.delete_branch("main")
    main.create_branch("trunk")
    repo.set_default_branch("trunk")
    repo.delete_branch("main")
    assert repo.default_branch.name == "trunk"
    with pytest.raises(RefNotFound):
        repo.set_default_branch("nope")


def test_a_protected_branch_takes_merges_and_nothing_else(repo: Repository, main: Branch) -> None:
    main.put("before", b"1")
    work = main.create_branch("work")
    work.put("a", b"1")
    work.commit("work")
    repo.protect("ma*")
    for call in (
        lambda: main.put("x", b"1"),
        lambda: main.put("x", b"1", create=True),
        lambda: main.delete("before"),
        lambda: main.put_many({"x": b"1"}),
        lambda: main.rename("before", "after"),
        lambda: main.commit("x"),
        lambda: main.revert("main", parent=1),
        lambda: main.hard_reset("main@", force=True),
        lambda: main.open("x", "wb"),
    ):
        with pytest.raises((BranchProtected, UsageError)):
            call()
    assert [info.path for info in main.list()] == ["before"]
    main.discard()  # what was staged before can be thrown away
    main.merge("work")
    assert main.read("a") == b"1"
    assert [rule.pattern for rule in repo.protections] == ["ma*"]
    repo.unprotect("ma*")
    main.put("x", b"1")


def test_protection_holds_for_branches_made_later_and_for_other_handles(
    repo: Repository, main: Branch, lake: Lake
) -> None:
    main.put("warm", b"1")
    other = lake.repository("nyc").branch("main")
    repo.protect("release-*", ["delete", "merge"])
    release = main.create_branch("release-1")
    release.put("a", b"1")
    release.commit("fine")
    with pytest.raises(BranchProtected):
        repo.delete_branch("release-1")
    with pytest.raises(BranchProtected):
        release.merge("main")
    repo.protect("main", ["stage"])
    with pytest.raises(BranchProtected):
        other.put("a", b"1")
    with pytest.raises(UsageError, match="stage, commit"):
        repo.protect("x", ["fly"])
    with pytest.raises(UsageError):
        repo.protect("x", [])


def test_a_read_only_repository_changes_in_no_way(repo: Repository, main: Branch, lake: Lake) -> None:
    main.put("a", b"1")
    main.commit("a")
    repo.create_tag("t", main)
    repo.set_read_only()
    for call in (
        lambda: main.put("b", b"1"),
        lambda: main.delete("a"),
        lambda: main.commit("x", allow_empty=True),
        lambda: main.create_branch("b"),
        lambda: repo.create_tag("u", main),
        lambda: repo.delete_tag("t"),
        lambda: main.merge("t"),
        lambda: main.discard(),
        lambda: main.hard_reset("main~1"),
    ):
        with pytest.raises(RepositoryReadOnly):
            call()
    with pytest.raises(NotAllowed):
        lake.delete_repository("nyc")
    assert main.read("a") == b"1"
    repo.set_read_only(False)
    main.put("b", b"1")


def test_settings_survive_each_other(repo: Repository) -> None:
    in_threads(lambda: repo.protect(f"p{threading.get_ident()}"))
    repo.set_read_only()
    assert len(repo.protections) >= 1
    assert repo.settings.read_only
