"""Small lakes that earlier versions wrote: every later version reads them. Never write one anew; add another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline import Repository
from strandline.branch.cell import BranchCell
from strandline.core.condemned import write_part
from strandline.core.promises import Condemned, refuse_condemned, write_condemned_parts
from strandline.core.upload import upload
from strandline.errors import NotAllowed, ObjectMissing
from strandline.tree.node_file import NodeInfo

GOLDEN = (
    "golden_lake",
    "golden_lake_2",
    "golden_lake_3",
    "golden_lake_4",
    "golden_lake_5",
    "golden_lake_6",
    "golden_lake_7",
    "golden_lake_8",
    "golden_lake_9",
    "golden_lake_10",
)
NOW = GOLDEN[-6:]
"""Formats 6 to 9 are written only for what needs them, beside format 5. The ninth has tree files of format 2, the tenth
records of format 9."""
GARBAGE = [f"data/{'0' * 20}/{number:020x}" for number in range(4)]
ENDS = [3_867, 15_008, 16_869, 29_679, 30_683, 34_111, 38_032, 48_211, 69_020, 69_044, 76_382, 2_985_387, 3_907_624]
WIDE = [f"wide/{n}" for n in ENDS]
"""A range ends after each of these paths, and a node after the last two."""
FOLDERS = [Path(__file__).parent / name for name in GOLDEN]


def build(folder: Path) -> None:
    """How the lakes in the repository were made; the first by a version without `compact`, two without transactions."""
    with strandline.open(folder, create=True, committer="golden") as lake:
        repo = lake.repository("golden", create=True)
        main = repo.branch("main")
        main.put_many({f"data/{i:03d}.txt": f"object {i}" for i in range(40)})
        main.put("described.txt", "x", content_type="text/plain", metadata={"key": "välue"})
        main.commit("first", metadata={"job": "1"})
        work = main.create_branch("work")
        work.delete("data/000.txt")
        work.rename("data/001.txt", "renamed.txt")
        work.commit("on work")
        main.merge(work, "merge")
        with work.transaction("golden", "in a transaction", token="today", position="7") as tx:  # since the third one
            tx.put("by a transaction", b"x")
        work.transaction("golden", "never published").begin()
        repo.lock_owners.register("golden", "to be read by later versions")  # since the fourth one
        work.locks.take([("a", "b"), "renamed"], owner="golden")
        repo.gc.set_retention(30, {"release-*": None})
        repo.create_tag("v1", "main~1")
        repo.create_branch("gone")
        repo.delete_branch("gone")
        repo.protect("release-*")
        main.put("staged.txt", "not committed")
        main.delete("data/002.txt")
        main.compact()  # in the first one: main.reset("nothing"), which left such a tree too
        main.put("staged too.txt", "not committed either")
        unseen = repo.create_branch("unseen", "v1", hidden=True)  # since the sixth one
        for name in "ab":  # ETags, since the seventh one
            key = unseen._new_key(name)
            unseen.stage(f"tagged/{name}", upload(unseen._core, key, name, name, None, None, with_etag=True))
            if name == "a":
                unseen.commit("tagged")
        once = repo.create_branch("once", "v1", hidden=True)
        for number in range(20):  # since the eighth one
            path = f"once/{number}"
            once.publish({path: b"x"}, f"once {number}", expected={path: None}, token=f"token {number}")
        with pytest.MonkeyPatch.context() as patch:  # since the ninth one; a tree with nodes that is small all the same
            patch.setattr("strandline.tree.levels.FLAT_MAX", 2)
            wide = repo.create_branch("wide", "v1", hidden=True)
            wide.put_many({path: path for path in WIDE})
            wide.commit("wide")
        condemn(repo)  # since the tenth one
        expected = {
            "head": main.commit_id,
            "tree": repo.ref("main@").get_commit().tree_id,
            "log": [[commit.id, commit.message] for commit in main.log()],
        }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def condemn(repo: Repository) -> None:
    """Garbage that a run has condemned in two parts, and died."""
    stores = repo._core.stores
    for key in GARBAGE:
        stores.trees.blobs.put(key, b"garbage")
    record = Condemned("0" * 20, len(GARBAGE), 7 * len(GARBAGE), 0, in_parts=True)
    halves = [pa.array(half) for half in (GARBAGE[:2], GARBAGE[2:])]
    parts = [write_part(stores.trees.blobs, record.folder, half, pa.array([7, 7])) for half in halves]
    write_condemned_parts(stores, record, parts)


@pytest.mark.parametrize("made", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_a_golden_lake_is_read_and_written(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(made, folder)
    expected = json.loads((folder / "expected.json").read_text())
    with strandline.open(folder, synced=False) as lake:
        repo = lake.repository("golden")
        main = repo.branch("main")
        assert main.commit_id == expected["head"]
        assert repo.ref("main@").get_commit().tree_id == expected["tree"]
        assert [[commit.id, commit.message] for commit in main.log()] == expected["log"]
        assert [ref.name for ref in repo.branches()] == ["main", "work"]
        hidden = ["unseen"] if made.name in GOLDEN[5:] else []  # the first format with them
        if made.name in GOLDEN[7:]:  # the first one with tokens of one-shot publications, on their branch and off it
            hidden = ["once", *hidden]
            once = repo.branch("once")
            head = once.commit_id
            for number in range(20):
                path = f"once/{number}"
                done = once.publish({path: b"x"}, "again", expected={path: None}, token=f"token {number}")
                assert done.message == f"once {number}"
            assert once.commit_id == head
        if made.name in GOLDEN[8:]:  # the first one with nodes, in tree files of format 2
            hidden = [*hidden, "wide"]
            wide = repo.branch("wide")
            trees = wide._core.stores.trees
            tree = trees.tree(wide.get_commit().tree_ref)
            nodes = [trees.parts_of(node) for node in tree.parts if isinstance(node, NodeInfo)]
            assert [[(part.height, part.count) for part in parts] for parts in nodes] == [[(1, 45), (1, 5)], [(1, 4)]]
            assert [info.path for info in wide.list("wide/")] == sorted(WIDE)
            assert [wide.read(path) for path in WIDE] == [path.encode() for path in WIDE]
            wide.put("wide/0", b"x")
            wide.commit("by a later version")  # a small tree: it has no nodes now
            assert [change.path for change in wide.diff("wide~1")] == ["wide/0"]
        assert [ref.name for ref in repo.branches(hidden=True)] == sorted(["main", *hidden, "work"])
        if made.name in GOLDEN[6:]:  # the first one with ETags, committed and staged, in a range file of format 2
            shown = repo.branch("unseen").list("tagged/").to_arrow()
            tags = dict(zip(shown["path"].to_pylist(), shown["etag"].to_pylist(), strict=True))
            assert tags == {
                "tagged/a": "0cc175b9c0f1b6a831c399e269772661",
                "tagged/b": "92eb5ffee6ae2fec3ad71c777531578f",
            }
        assert [rule.pattern for rule in repo.protections] == ["release-*"]
        staged = [(change.kind, change.path) for change in main.uncommitted()]
        assert staged == [("removed", "data/002.txt"), ("added", "staged too.txt"), ("added", "staged.txt")]
        assert main.read("renamed.txt") == b"object 1"
        assert repo.ref("v1").read("data/001.txt") == b"object 1"
        described = main.stat("described.txt")
        assert (described.content_type, described.metadata) == ("text/plain", {"key": "välue"})
        for info in main.list():
            assert main.read(info.path)
        main.commit("by a later version")
        assert len(list(main.list())) == 41
        moves = [move.verb for move in main.reflog()]
        assert moves == (["commit"] if made.name == "golden_lake" else ["commit", "merge", "commit", "create"])
        work = repo.branch("work")
        if made.name in GOLDEN[2:]:
            assert (work.writers["golden"].position, work.writers["golden"].open) == ("7", 2)
            assert [found.state for found in work.transactions] == ["committed", "open"]
            assert repo.gc.retention.days_of("main") == 30
        with work.transaction("golden", token="today") as tx:
            tx.put("again", b"x")
        assert tx.is_repeat == (made.name in GOLDEN[2:])
        assert repo.fsck().is_sound


@pytest.mark.parametrize("made", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_a_golden_lake_is_upgraded(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(made, folder)
    is_old = made.name not in NOW
    expected = {"branch": 2, "tag": 1, "deleted": 1, "repository": 1, "lake": 1, "namespace": 1} if is_old else {}
    with strandline.open(folder, synced=False) as lake:
        before = (folder / "metadata.db").read_bytes()
        would = lake.upgrade(dry_run=True)
        assert {kind: count for kind, count in would.written.items() if count} == expected
        assert (folder / "metadata.db").read_bytes() == before
        assert lake.upgrade() == would
        assert not any(lake.upgrade().written.values())
        repo = lake.repository("golden")
        assert repo.branch("main").commit_id == json.loads((folder / "expected.json").read_text())["head"]
        assert [change.path for change in repo.branch("main").uncommitted()] == [
            "data/002.txt",
            "staged too.txt",
            "staged.txt",
        ]
        assert repo.fsck().is_sound


@pytest.mark.parametrize("made", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_a_golden_lake_is_collected_once_its_namespace_knows_its_lake(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(made, folder)
    with strandline.open(folder, synced=False) as lake:
        repo = lake.repository("golden")
        if made.name not in NOW:
            with pytest.raises(NotAllowed, match="names no lake") as refused:
                repo.gc.run()
            assert "strandline upgrade" in refused.value.next
        lake.upgrade()
        before = [info.path for info in repo.branch("main").list()]
        if made.name in GOLDEN[9:]:  # the first one with lists of a collection in parts
            with pytest.raises(ObjectMissing, match="being collected"):
                refuse_condemned(repo._core.stores, GARBAGE[3:])
        done = repo.gc.run(grace_days=0)
        assert done.resumed == (len(GARBAGE) if made.name in GOLDEN[9:] else 0)
        repo.gc.run(grace_days=0)
        assert not any(repo._core.stores.trees.blobs.exists(key) for key in GARBAGE)
        assert [info.path for info in repo.branch("main").list()] == before
        assert repo.fsck(content=True).is_sound


@pytest.mark.parametrize("data", [True, False], ids=["with bytes", "without"])
@pytest.mark.parametrize("made", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_a_backup_of_a_golden_lake_restores(made: Path, data: bool, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(made, folder)
    expected = json.loads((folder / "expected.json").read_text())
    with strandline.open(folder, synced=False) as lake:
        lake.backup(tmp_path / "saved", data=data)
    with strandline.open(tmp_path / "other", create=True, synced=False) as other:
        (repo,) = other.restore(tmp_path / "saved")
        assert repo.branch("main").commit_id == expected["head"]
        assert repo.fsck(content=True).is_sound


def test_an_upgrade_and_a_writer_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(FOLDERS[0], folder)
    with strandline.open(folder, synced=False) as lake, strandline.open(folder, synced=False) as other:
        branch = other.repository("golden").branch("main")
        swap = BranchCell.swap
        done: list[object] = []

        def first(cell: BranchCell, *arguments: Any) -> Any:
            if not done:
                done.append(branch.commit("meanwhile") if cell.name == "main" else None)
            return swap(cell, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "strandline.repository.upkeep.upgrade.BranchCell", type("Cell", (BranchCell,), {"swap": first})
            )
            lake.upgrade()
        assert lake.repository("golden").branch("main").get_commit().message == "meanwhile"
        assert not any(lake.upgrade().written.values())
