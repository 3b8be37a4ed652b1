"""fsck finds what is missing or damaged, and counts what nobody refers to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.testing.clock import ManualClock

METADATA = "_strandline"


@pytest.fixture
def filled(repo: Repository, main: Branch) -> Repository:
    main.put_many({f"a/{i:03d}": f"{i}" for i in range(50)})
    main.commit("base")
    work = main.create_branch("work")
    work.delete("a/001")
    work.commit("on work")
    repo.create_tag("v1", "main")
    main.put("staged", "x")
    main.delete("a/000")
    main.compact()
    main.put("staged too", "y")
    return repo


def files(lake: Lake, part: str) -> list[Path]:
    folder = lake._settings.folder
    assert folder is not None
    return sorted(path for path in folder.rglob("*") if path.is_file() and part in str(path))


def test_a_sound_repository_is_sound(filled: Repository) -> None:
    audit = filled.fsck()
    assert (audit.problems, audit.is_sound) == ([], True)
    assert (audit.branches, audit.tags, audit.commits) == (2, 1, 3)
    assert audit.trees == 3  # of two commits, and what is compacted
    assert (audit.objects, audit.staged) == (50 + 49 + 50, 1)
    assert audit.orphans == 0
    assert audit.waiting_tokens > 0


def test_what_only_the_reflog_leads_to_is_checked_and_is_no_orphan(repo: Repository, main: Branch) -> None:
    main.put("a", "1")
    first = main.commit("first")
    main.put("b", "2")
    second = main.commit("second")
    main.hard_reset(first.id)
    audit = repo.fsck()
    assert (audit.orphans, audit.commits, audit.unreachable) == (0, 3, 0)
    repo._core.resolver.namespace.delete_many([repo.ref(second.id).stat("b").physical_address])
    assert "bytes of 'b' are gone" in repo.fsck().problems[0]


def test_commits_of_a_deleted_branch_are_no_orphans(repo: Repository, main: Branch) -> None:
    work = main.create_branch("work")
    work.put("a", "1")
    head = work.commit("on work")
    assert repo.delete_branch("work") == head.id
    audit = repo.fsck()
    assert (audit.unreachable, audit.orphans, audit.is_sound) == (1, 0, True)
    assert repo.create_branch("work", head.id).read("a") == b"1"


def test_content_is_compared_on_request(lake: Lake, repo: Repository, main: Branch) -> None:
    for name in ("a", "b"):
        main.put(name, b"1234567")
    main.commit("ab")
    main._core.resolver.namespace.put(main.stat("a").physical_address, b"1234568")
    assert repo.fsck().is_sound
    audit = repo.fsck(content=True)
    assert "holds other bytes than were written" in audit.problems[0]
    assert (audit.problem_count, audit.is_complete) == (1, True)


def test_orphans_are_not_told_as_sure_where_metadata_is_damaged(lake: Lake, filled: Repository) -> None:
    files(lake, f"{METADATA}/ranges")[0].unlink()
    audit = filled.fsck()
    assert not audit.is_complete


def test_an_empty_repository_is_sound(repo: Repository) -> None:
    audit = repo.fsck()
    assert audit.is_sound
    assert (audit.commits, audit.objects, audit.orphans) == (1, 0, 0)


@pytest.mark.parametrize("kind", ["ranges", "metaranges"])
def test_a_missing_file_of_metadata_is_named(lake: Lake, filled: Repository, kind: str) -> None:
    for path in files(lake, f"{METADATA}/{kind}"):
        path.unlink()
        audit = filled.fsck()
        assert not audit.is_sound
        assert path.name.partition("-")[0] in " ".join(audit.problems)
        break


@pytest.mark.parametrize("kind", ["ranges", "metaranges"])
def test_a_damaged_file_of_metadata_is_named(lake: Lake, filled: Repository, kind: str) -> None:
    path = files(lake, f"{METADATA}/{kind}")[0]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-20])
    assert not filled.fsck().is_sound


def test_missing_bytes_of_an_object_are_named_by_its_path(lake: Lake, filled: Repository, main: Branch) -> None:
    for path in ("a/007", "staged", "staged too"):
        address = main.stat(path).physical_address
        next(found for found in files(lake, address)).unlink()
    audit = filled.fsck()
    text = " ".join(audit.problems)
    assert all(path in text for path in ("'a/007'", "'staged'", "'staged too'"))


def test_a_lost_commit_record_is_named(lake: Lake, filled: Repository) -> None:
    head = filled.ref("work").commit_id
    lake._kv.delete(filled._core.stores.records, b"commit/" + head.encode())
    audit = filled.fsck()
    assert [problem for problem in audit.problems if head in problem]


def test_orphans_are_counted_by_age(lake: Lake, filled: Repository, main: Branch, clock: ManualClock) -> None:
    main.put("again", "1")
    main.put("again", "22")
    main.discard()
    audit = filled.fsck()
    assert audit.is_sound
    # two puts that were reset, what was staged before, and the compacted tree with its range
    assert audit.orphans == 2 + 2 + 2
    assert audit.orphan_bytes > 3


def test_imported_objects_are_looked_at(repo: Repository, main: Branch, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("stays", "goes", "changes", "grows"):
        (folder / name).write_text("1")
    main.import_objects(folder)
    assert repo.fsck().is_sound
    (folder / "goes").unlink()
    os.utime(folder / "changes", (0, 0))
    (folder / "grows").write_text("12")
    audit = repo.fsck()
    assert (audit.problem_count, audit.imported, audit.is_complete) == (3, 4, True)
    told = " ".join(audit.problems)
    assert "The bytes of 'goes' are gone" in told
    assert "'changes' was changed at" in told
    assert "'grows' was changed at" in told


def test_a_truncated_object_is_named(lake: Lake, filled: Repository, main: Branch) -> None:
    path = files(lake, main.stat("a/010").physical_address)[0]
    path.chmod(0o644)
    path.write_bytes(b"")
    assert "'a/010' has 0 bytes instead of 2" in " ".join(filled.fsck().problems)


def test_an_object_that_many_commits_have_is_one_problem(lake: Lake, repo: Repository, main: Branch) -> None:
    info = main.put("lost", b"x")
    main.commit("one")
    for number in range(4):
        main.put(f"o{number}", b"y")
        main.commit("more")
    next(path for path in files(lake, info.physical_address)).unlink()
    report = repo.fsck()
    assert report.problem_count == 1
    assert "bytes of 'lost' are gone" in report.problems[0]
