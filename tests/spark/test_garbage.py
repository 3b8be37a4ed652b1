"""What Spark lists, marks, judges and deletes is what this process would."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline import Branch, GarbagePlan, Lake, Repository, Transaction
from strandline.core import promises
from strandline.core.condemned import ListPart
from strandline.core.shapes import OWN
from strandline.envelope import encode
from strandline.errors import Corrupted, ObjectMissing, StrandlineError
from strandline.iceberg import Catalog
from strandline.ids import new_id
from strandline.progress import no_progress
from strandline.spark import garbage

pytestmark = [pytest.mark.spark]
ROWS = pa.table({"k": pa.array([1, 2, 3], pa.int64())})


def test_spark_follows_the_tables_that_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        main = repo.branch("main")
        catalog = Catalog(main)
        catalog.create_namespace("db")
        for name in ("db.a", "db.b"):
            table = catalog.create_table(name, ROWS.schema)
            for _ in range(3):
                table.append(ROWS)
        main.table("plain").write(ROWS, message="native")
        main.table("plain").to_iceberg("db.taken")
        main.delete_prefix("plain/")
        main.commit("only Iceberg's now")
        dev = main.create_branch("dev")
        Catalog(dev).load_table("db.a").append(ROWS)
        repo.delete_branch("dev")  # its files are garbage, those that it shares are not
        plans = [repo.gc.plan(grace_days=0), repo.gc.plan(grace_days=0, spark=spark)]
        assert plans[0] == plans[1]
        assert plans[0].files > 0
        repo.gc.run(grace_days=0)
        assert repo.fsck().is_sound
        for name, count in (("db.a", 9), ("db.b", 9), ("db.taken", 3)):
            assert catalog.load_table(name).scan().to_arrow().num_rows == count
        place = Path(catalog.load_table("db.b").inspect.manifests()["path"].to_pylist()[0].removeprefix("file://"))
        place.write_bytes(b"broken")
        there = set((tmp_path / "lake").rglob("*.parquet"))
        with pytest.raises(Corrupted, match=place.name) as caught:
            repo.gc.run(grace_days=0, spark=spark)
        assert "Nothing was deleted" in str(caught.value)
        assert "backup" in str(caught.value)
        assert set((tmp_path / "lake").rglob("*.parquet")) == there


@pytest.mark.parametrize("damage", ["other rows", "gone", "no range"])
def test_a_range_that_is_not_what_was_written_stops_the_mark(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "lake[1]"  # Spark takes brackets for a pattern
    with strandline.open(place, create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        main = repo.branch("main")
        for name in ("a", "b"):
            main.put(name, b"live")
            main.commit(name)
        main.put("staged", b"live")
        assert repo.gc.plan(grace_days=0, spark=spark).files == 0
        (first, second) = place.rglob("_strandline/ranges/*.parquet")
        other = second.read_bytes()
        first.chmod(0o644)
        if damage == "gone":
            first.unlink()
        else:
            first.write_bytes(other if damage == "other rows" else b"PAR1")
        before = {path for path in place.rglob("data/*/data/**/*") if path.is_file()}
        assert before
        with pytest.raises((Corrupted, ObjectMissing)) as caught:
            repo.gc.run(grace_days=0, spark=spark)
        assert "deleted" in str(caught.value)
        assert first.name[:40] in str(caught.value)
        assert {path for path in place.rglob("data/*/data/**/*") if path.is_file()} == before


def test_what_is_marked_is_read_although_a_session_skips_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        repo.branch("main").put("staged", b"live")
        write = garbage._SurveyOnSpark._write_marked

        def lose(survey: garbage._SurveyOnSpark) -> None:
            write(survey)
            for key in survey._marked:
                survey._blobs.put(key, b"PAR1 is all that is left")

        monkeypatch.setattr(garbage._SurveyOnSpark, "_write_marked", lose)
        names = [f"spark.sql.files.ignore{what}Files" for what in ("Corrupt", "Missing")]
        for name in names:
            spark.conf.set(name, "true")
        try:
            with pytest.raises(StrandlineError, match="Spark could not"):
                repo.gc.run(grace_days=0, spark=spark)
        finally:
            for name in names:
                spark.conf.unset(name)
        assert repo.branch("main").read("staged") == b"live"


# --- judging, and lists in parts --------------------------------------------------------------------------------------


@pytest.fixture
def lake(lake_url: str) -> Iterator[Lake]:
    with strandline.open(lake_url, create=True) as lake:
        yield lake


@pytest.fixture
def repo(lake: Lake) -> Repository:
    """A repository with files of every fate, all of which count as old with a grace of 0."""
    repo = lake.create_repository("nyc")
    main = repo.branch("main")
    for number in range(30):
        main.put(f"a/{number:02}", b"x" * number)
    main.commit("objects")
    for number in range(0, 30, 2):
        main.put(f"a/{number:02}", b"written over before a commit")
        main.put(f"a/{number:02}", b"y" * number)
    main.commit("more objects")
    main.put("staged", b"stays")
    dev = main.create_branch("dev")
    for number in range(40):
        dev.put(f"b/{number:02}", b"gone with its branch")
    repo.delete_branch("dev")
    begun(main, "open").put("t/open", b"stays")
    with main.transaction("kept", message="with leftovers") as tx:
        for _ in range(3):
            tx.put("t/committed", b"all but the last are leftovers")
    begun(main, "dead").put("t/rejected", b"goes")
    main.writers.retire("dead")
    begun(main, "doomed").put("t/doomed", b"stays: somebody may still write")
    begun(main, "doomed").put("t/after", b"stays")
    blobs = repo._core.stores.trees.blobs
    for key in (f"data/{new_id()}/{new_id()}.csv", f"_strandline/ranges/{'0' * 40}-{new_id()}.parquet"):
        blobs.put(key, b"an orphan")
    for key in FOREIGN:
        blobs.put(key, b"mine")
    while blobs.head(FOREIGN[-1]).modified_at_us >= repo.gc._collector(0, False, no_progress, None)._now:
        pass  # file systems date files by a clock that ticks every few milliseconds
    return repo


def begun(branch: Branch, writer: str) -> Transaction:
    """A transaction that nobody ends."""
    tx = branch.transaction(writer)
    tx.begin()
    return tx


FOREIGN = ("data/readme.txt", "elsewhere/x", "data/new line", "data/sl_branch=mine/x")


def in_order(plan: GarbagePlan) -> GarbagePlan:
    """Places of as many bytes come in any order."""
    return msgspec.structs.replace(plan, places=tuple(sorted(plan.places, key=lambda p: (-p.bytes, p.prefix, p.why))))


@pytest.mark.everywhere
@pytest.mark.parametrize("grace_days", [0, 1])
def test_a_plan_on_spark_is_that_of_one_process(spark: SparkSession, repo: Repository, grace_days: float) -> None:
    here, there = (repo.gc.plan(grace_days=grace_days, spark=session) for session in (None, spark))
    assert in_order(there) == in_order(here)
    assert here.rejected == 1
    assert here.dead == 2
    assert here.unknown == len(FOREIGN)
    assert (here.files > 50) == (grace_days == 0)
    assert (here.young > 50) == (grace_days == 1)


@pytest.mark.everywhere
def test_lists_in_parts_are_deleted_in_tasks(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "PART_KEYS", 10)
    monkeypatch.setattr(garbage, "ONE_LIST_KEYS", 10)
    blobs, stores = repo._core.stores.trees.blobs, repo._core.stores
    spared = next(key for key in blobs.list_keys("data/") if blobs.get(key) == b"gone with its branch")
    before = set(blobs.list_keys())
    plan = repo.gc.plan(grace_days=0)
    monkeypatch.setattr(garbage, "LINKS_PER_GROUP", 1)
    ends = [f"data/{end * 20}/x" for end in "0f"]
    promises.announce_links(stores, [ends[0], spared, ends[1]])  # somebody is about to refer to it
    done = repo.gc.run(grace_days=0, spark=spark)
    assert (done.files, done.bytes) == (plan.files, plan.bytes)
    gone = before - set(blobs.list_keys())
    assert spared not in gone
    assert len(gone) == plan.files - 1
    assert all(re.match(OWN, key) for key in gone)
    assert repo.fsck(content=True).is_sound
    (left,) = promises.condemned(stores)  # until no attempt of an executor can delete any more
    assert left.is_over
    assert left.until > stores.clock.now_us()
    assert left.count == plan.files - 1
    with pytest.raises(ObjectMissing, match="being collected"):
        promises.announce_links(stores, [min(gone)])
    promises.announce_links(stores, [spared])
    again = repo.gc.run(grace_days=0)  # waits for nobody, and lets the record lie
    assert again.files == 1
    assert blobs.exists(spared)
    assert promises.condemned(stores) == [left]
    raw = encode(msgspec.structs.replace(left, until=1))
    stores.kv.set(stores.records, promises.CONDEMNED + left.run.encode(), raw)
    repo.gc.run(grace_days=0)
    assert promises.condemned(stores) == []
    assert not list(blobs.list_keys("_strandline/gc/"))


@pytest.mark.parametrize("session", [True, False])
def test_a_run_in_parts_that_died_is_ended_by_the_next_one(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch, session: bool
) -> None:
    monkeypatch.setattr(garbage, "PART_KEYS", 10)
    monkeypatch.setattr(garbage, "ONE_LIST_KEYS", 10)
    plan = repo.gc.plan(grace_days=0)

    def dies(*_: object) -> list[ListPart]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(garbage._SurveyorOnSpark, "delete", dies)
        with pytest.raises(KeyboardInterrupt):
            repo.gc.run(grace_days=0, spark=spark)
    stores = repo._core.stores
    (left,) = promises.condemned(stores)
    raw = encode(msgspec.structs.replace(left, at=0))  # long ago
    stores.kv.set(stores.records, promises.CONDEMNED + left.run.encode(), raw)
    done = repo.gc.run(grace_days=0, spark=spark if session else None)
    assert done.resumed == plan.files
    assert done.files == 0
    assert repo.gc.plan(grace_days=0).files == 0
    assert repo.fsck(content=True).is_sound


def test_an_older_format_gets_one_list(spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PART_KEYS", 10)
    monkeypatch.setattr(garbage, "ONE_LIST_KEYS", 10)
    monkeypatch.setattr(repo._core, "max_format", 8)
    repo.gc.run(grace_days=0, spark=spark)
    assert promises.condemned(repo._core.stores) == []
    assert repo.gc.plan(grace_days=0).files == 0


def test_what_lies_behind_a_link_stays(spark: SparkSession, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        outside = tmp_path / "outside"
        outside.mkdir()
        place = Path(str(repo._core.stores.trees.blobs.local_path("data/x"))).parent
        place.mkdir(exist_ok=True)
        os.symlink(outside, place / new_id())
        (outside / new_id()).write_text("somebody else's")
        os.utime(next(outside.iterdir()), (1, 1))
        here, there = (repo.gc.plan(grace_days=0, spark=session) for session in (None, spark))
        assert in_order(here) == in_order(there)
        assert here.linked == 1
        repo.gc.run(grace_days=0, spark=spark)
        assert len(list(outside.iterdir())) == 1


def test_a_missing_range_deletes_nothing(spark: SparkSession, repo: Repository) -> None:
    blobs = repo._core.stores.trees.blobs
    (info,) = repo._core.stores.trees.ranges(repo._core.commits.tree(repo.branch("main").commit_id))
    blobs.delete_many([info.address])
    before = set(blobs.list_keys())
    with pytest.raises(StrandlineError, match="Nothing was deleted"):
        repo.gc.run(grace_days=0, spark=spark)
    assert set(blobs.list_keys()) == before
