"""Nodes of trees in collections, checks and backups: told by where they are, and nothing goes while one is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from strandline.errors import Corrupted, NothingToCommit
from strandline.ids import new_id
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.tree.files import TreeFiles
from strandline.tree.store import NODES_FOLDER, TreeStore
from tests.tree.trees import small_ranges

PATHS = [f"k{n:03d}" for n in range(200)]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with small_ranges(2, 5, flat_max=3), strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake


@pytest.fixture
def main(repo: Repository) -> Branch:
    main = repo.branch("main")
    main.put_many({path: path for path in PATHS})
    main.commit("all")
    return main


def parts(branch: Branch) -> TreeFiles:
    """The parts of the head's tree, as a process reads them that knows none of them."""
    trees = TreeStore(branch._core.stores.trees.blobs)
    found = TreeFiles(trees)
    found.add(trees.tree(branch.get_commit().tree_ref))
    return found


def collect(repo: Repository) -> None:
    repo.gc.run(grace_days=0)
    repo.gc.run(grace_days=0)


def stored(repo: Repository, folder: str) -> set[str]:
    return set(repo._core.stores.trees.blobs.list_keys(folder))


def test_what_no_tree_needs_goes_and_the_rest_stays(repo: Repository, main: Branch) -> None:
    main.put("k100", "else")
    main.compact()
    main.put("k001", "else too")
    main.commit("two")  # not the tree that was compacted
    before = stored(repo, NODES_FOLDER)
    collect(repo)
    left = stored(repo, NODES_FOLDER)
    assert left < before
    assert parts(main).nodes.keys() <= left
    assert (main.read("k100"), main.read("k001")) == (b"else", b"else too")
    assert repo.ref("main~1").read("k100") == b"k100"
    assert repo.fsck(content=True).is_sound


def test_two_nodes_of_one_id_keep_the_files_of_both(repo: Repository, main: Branch) -> None:
    """The same entries were written twice: a mark by ids would keep the files of one, and delete those of the other."""
    trees = repo._core.stores.trees
    tree = trees.tree(main.get_commit().tree_ref)
    entries = [(path, trees.find(tree, path)) for path in PATHS]
    again = repo.create_branch("again", "main")
    again.delete_many(PATHS)
    again.commit("nothing")
    again.stage_each([(path, found) for path, found in entries if found is not None])
    again.commit("all of it")
    one, other = parts(main), parts(again)
    assert {node.id for node in one.nodes.values()} == {node.id for node in other.nodes.values()}
    assert one.nodes.keys().isdisjoint(other.nodes)
    assert one.ranges.keys().isdisjoint(other.ranges)
    collect(repo)
    for branch in (main, again):
        assert len(parts(branch).ranges) == len(one.ranges)
        assert [branch.read(path) for path in PATHS] == [path.encode() for path in PATHS]
    assert repo.fsck(content=True).is_sound


@pytest.mark.parametrize("damage", ["gone", "broken"])
def test_nothing_is_deleted_while_a_node_is_damaged(
    damage: str, lake: Lake, repo: Repository, main: Branch, tmp_path: Path
) -> None:
    main.put("k100", "else")
    main.commit("one")
    main.hard_reset("main~1")
    found = parts(main)
    node = next(node for node in found.nodes.values() if node.height == 1 and node.max_path >= "k150")
    (file,) = (tmp_path / "lake").rglob(node.address.rpartition("/")[2])
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-9])
    everything = stored(repo, "")
    for run in (lambda: repo.gc.run(grace_days=0), lambda: repo.gc.plan(grace_days=0)):
        with pytest.raises(Corrupted, match=node.id) as refused:
            run()
        assert refused.value.safe == "Nothing was deleted."
    assert stored(repo, "") == everything
    audit = repo.fsck()
    assert not audit.is_sound
    assert any(node.id in problem for problem in audit.problems)
    file.write_bytes(content)
    collect(repo)
    assert repo.fsck(content=True).is_sound


def test_an_unreachable_commit_whose_node_is_gone_makes_the_check_incomplete(repo: Repository, main: Branch) -> None:
    work = repo.create_branch("work", "main")
    work.put_many(dict.fromkeys(PATHS, "else"))
    work.commit("else")
    mine, others = parts(work).nodes, parts(main).nodes
    repo.delete_branch("work")
    assert repo.fsck().is_complete
    repo._core.stores.trees.blobs.delete_many([next(address for address in mine if address not in others)])
    audit = repo.fsck()
    assert (audit.unreachable, audit.is_complete) == (1, False)
    assert audit.is_sound  # nothing needs it


@pytest.mark.parametrize("with_data", [True, False])
def test_backups_hold_the_nodes(with_data: bool, lake: Lake, repo: Repository, main: Branch, tmp_path: Path) -> None:
    lake.backup(tmp_path / "saved", data=with_data)
    with strandline.open(tmp_path / "other", create=True, synced=False) as other:
        (restored,) = other.restore(tmp_path / "saved")
        branch = restored.branch("main")
        assert [branch.read(path) for path in PATHS] == [path.encode() for path in PATHS]
        assert parts(branch).nodes
        assert restored.fsck(content=True).is_sound


def test_a_node_that_nothing_lists_is_an_orphan(repo: Repository, main: Branch) -> None:
    blobs = repo._core.stores.trees.blobs
    node = next(iter(parts(main).nodes.values()))
    blobs.put(f"{NODES_FOLDER}/{node.id}-{new_id()}.parquet", blobs.get(node.address), "create")
    assert repo.fsck().orphans == 1
    collect(repo)
    assert repo.fsck(content=True).orphans == 0


def test_a_lake_for_older_versions_keeps_its_trees_flat(tmp_path: Path) -> None:
    """`max_format` says so; a tree that has nodes is made flat by the next change of it, and neither is a change."""
    with small_ranges(2, 5, flat_max=3):
        for max_format, next_format in ((5, 8), (8, 5)):
            folder = tmp_path / f"lake{max_format}"
            with strandline.open(folder, create=True, synced=False, max_format=max_format) as lake:
                main = lake.repository("nyc", create=True).branch("main")
                main.put_many({path: path for path in PATHS})
                main.commit("all")
                assert bool(parts(main).nodes) == (max_format == 8)
            with strandline.open(folder, synced=False, max_format=next_format) as lake:
                main = lake.repository("nyc").branch("main")
                before = main.commit_id
                main.put("new", "x")
                main.compact()  # so that the same content is there with levels, and without
                main.delete("new")
                with pytest.raises(NothingToCommit):
                    main.commit("of nothing")
                assert main.commit_id == before
                main.put("new", "x")
                main.commit("one")
                assert bool(parts(main).nodes) == (next_format == 8)
                assert [change.path for change in main.diff("main~1")] == ["new"]
                assert [main.read(path) for path in PATHS] == [path.encode() for path in PATHS]
