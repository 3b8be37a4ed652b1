"""Hidden branches: left out of lists, else as any; and the one feature that needs format 6 of records."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline
from strandline import envelope
from strandline.errors import AlreadyExists, InvalidSettings, NewerFormat, NotAllowed
from strandline.settings import find_settings


def test_a_hidden_branch_is_a_branch_as_any(tmp_path: Path) -> None:
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        repo = lake.repository("repo", create=True)
        hidden = repo.create_branch("work", hidden=True)
        assert [one.name for one in repo.branches()] == ["main"]
        assert [one.name for one in repo.branches(hidden=True)] == ["main", "work"]
        assert [one.name for one in repo.branches("w", hidden=True, amount=1)] == ["work"]
        hidden.put("a", b"1")
        commit = hidden.commit("on it")
        repo.branch("main").merge("work")
        assert repo.branch("main").read("a") == b"1"
        assert repo.ref("work").commit_id == commit.id
        assert [one.name for one in repo.branches()] == ["main"]  # commits keep it as it is
        with pytest.raises(AlreadyExists):
            repo.create_branch("work")
        repo.protect("main", block=["delete"])
        repo.delete_branch("work")
        shown = repo.create_branch("work")
        assert [one.name for one in repo.branches()] == ["main", shown.name]


def formats(lake: strandline.Lake) -> dict[str, int]:
    """The formats of a repository's refs."""
    stores = lake.repository("repo")._core.stores
    return {key.decode(): envelope.version_of(value) for key, value in stores.kv.scan(stores.refs)}


def test_only_hidden_branches_are_of_the_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        repo = lake.repository("repo", create=True)
        repo.create_branch("work", hidden=True).put("a", b"1")
        repo.branch("work").commit("x")
        assert formats(lake) == {"main": 5, "work": 6}
        repo.delete_branch("work")
        assert formats(lake) == {"main": 5, "work": 5}
        repo.create_branch("again", hidden=True)
    # the release before reads what it can, and refuses the rest before it writes
    monkeypatch.setattr(envelope, "_NEWEST", bytes([5]))
    monkeypatch.setattr(envelope, "NEWEST_FORMAT", 5)
    with strandline.open(tmp_path, synced=False) as lake:
        repo = lake.repository("repo")
        repo.branch("main").put("b", b"2")
        repo.branch("main").commit("by the release before")
        for call in (lambda: repo.branch("again"), lambda: list(repo.branches()), lambda: repo.delete_branch("again")):
            with pytest.raises(NewerFormat, match="Upgrade"):
                call()
        with pytest.raises(NewerFormat):
            repo.gc.run()  # it would not know what the branch leads to


def test_a_lake_can_stay_with_the_older_format(tmp_path: Path) -> None:
    with strandline.open(tmp_path, create=True, max_format=5) as lake:
        repo = lake.repository("repo", create=True)
        with pytest.raises(NotAllowed, match="max_format"):
            repo.create_branch("work", hidden=True)
        repo.create_branch("work")
        assert formats(lake) == {"main": 5, "work": 5}
    (tmp_path / "strandline.toml").write_text("max_format = 5\n")
    assert find_settings(tmp_path).max_format == 5
    for wrong in ("4", "10", "true", '"5"'):
        (tmp_path / "strandline.toml").write_text(f"max_format = {wrong}\n")
        with pytest.raises(InvalidSettings):
            find_settings(tmp_path)
