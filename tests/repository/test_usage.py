"""What the objects of a repository take: each file once in each row, whoever refers to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.errors import UsageError
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.repository.upkeep.usage import StorageRow
from tests.tree.trees import small_ranges


def told(repo: Repository, depth: int = 1) -> dict[tuple[str, str], tuple[int, int]]:
    return {(row.part, row.name): (row.objects, row.bytes) for row in repo.storage_use(depth=depth)}


def test_each_file_counts_once(repo: Repository, main: Branch, tmp_path: Path) -> None:
    with small_ranges(4, 9, flat_max=3):
        main.put_many({f"a/{n:02d}": "x" * 10 for n in range(20)} | {"b/c/d": "y" * 7})
        main.commit("first")
        main.put("a/00", "z" * 3)
        main.copy("b/c/d", "e\nf")
        main.commit("second")
        dev = main.create_branch("dev")
        dev.put("only", "w" * 5)
        dev.commit("on dev")
        repo.create_tag("v1", "main~1")
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "file").write_bytes(b"not counted")
        main.import_objects(tmp_path / "outside", "imported/")
        main.put("staged", "not counted either")
        assert told(repo) == {
            ("all", ""): (23, 200 + 7 + 3 + 5),
            ("ref", "main"): (21, 200 - 10 + 7 + 3),
            ("ref", "dev"): (22, 200 - 10 + 7 + 3 + 5),
            ("ref", "v1"): (21, 207),
            ("ref alone", "dev"): (1, 5),
            ("ref alone", "v1"): (1, 10),
            ("prefix", "a/"): (21, 203),
            ("prefix", "b/"): (1, 7),
            ("prefix", ""): (2, 12),
        }
        assert ("prefix", "b/c/") in told(repo, depth=2)
        assert told(repo, depth=0)["prefix", ""] == told(repo)["all", ""]
        repo.delete_tag("v1")
        assert told(repo)["history alone", ""] == (1, 10)
        repo.delete_branch("dev")
        assert told(repo)["all", ""] == (22, 200 + 7 + 3)


def test_nothing_takes_nothing(repo: Repository) -> None:
    assert list(repo.storage_use()) == [StorageRow("all", "", 0, 0)]
    assert "all" in repr(repo.storage_use())


@pytest.mark.parametrize("depth", [-1, 101])
def test_a_depth_that_is_none_is_refused(repo: Repository, depth: int) -> None:
    with pytest.raises(UsageError, match="depth"):
        repo.storage_use(depth=depth)
