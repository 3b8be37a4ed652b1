"""Tables and namespaces on a branch: names, races, lost replies, and what others have done to the branch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.branch.commits import Draft
from strandline.errors import (
    AlreadyExists,
    BranchProtected,
    InvalidName,
    NotAllowed,
    ObjectMissing,
    RangeLocked,
    StoreUnavailable,
    UncommittedChanges,
)
from strandline.iceberg import names
from strandline.iceberg.landing import AmongStaged, Plan
from strandline.iceberg.names import check_identifier, new_metadata_key, pointer_of, table_key_of, version_of
from strandline.iceberg.namespaces import NoSuchNamespace, NotEmpty
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.tables import NoSuchTable, TableChange, Tables
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, failing_at
from tests.iceberg.making import added, field, listed, schema, snapshot

SCHEMA = schema(field(1, "k"), field(2, "s", "string"))
T = ("db", "t")


def on(client: Client) -> Tables:
    return Tables(client.main)


def made(client: Client, name: str = "t") -> Tables:
    tables = on(client)
    if ("db",) not in tables.namespaces():
        tables.create_namespace(["db"], {})
    tables.create(["db", name], {"schema": SCHEMA})
    return tables


def append(tables: Tables, id: int, name: str = "t", *, retries: bool = True) -> Any:
    """What a client does that appends: read, decide, commit, and begin anew if it was too late."""
    while True:
        held = tables.load(["db", name]).metadata
        current = held["current-snapshot-id"]
        parent = None if current == -1 else current
        steps = added(
            snapshot(
                id,
                held["last-sequence-number"] + 1,
                parent,
                **{"timestamp-ms": held["last-updated-ms"] + 1},
                **listed(tables, id),
            )
        )
        wanted = [
            {"type": "assert-table-uuid", "uuid": held["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
        ]
        try:
            return tables.commit([TableChange(("db", name), wanted, steps)])[0]
        except Stale:
            if not retries:
                raise


def ids(tables: Tables, name: str = "t") -> list[int]:
    return [one["snapshot-id"] for one in tables.load(["db", name]).metadata["snapshots"]]


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identifier",
    [
        ("t",),
        (),
        ("", "t"),
        ("db", ""),
        ("db", "."),
        ("..", "t"),
        ("db", "a/b"),
        ("db", "a\0b"),
        ("db", "a\nb"),
        ("db", "_strandline_x"),
        ("db", "_namespace.json"),
        ("db", "_iceberg.metadata.json"),
        ("db", "x" * 1_025),
        tuple("abcdefghijklmnopqrs"),
        ("db", 7),
    ],
)
def test_names_that_are_none(identifier: Any, one: Client) -> None:
    tables = on(one)
    before = one.main.commit_id
    for call in (
        lambda: check_identifier(identifier),
        lambda: tables.create(identifier, {"schema": SCHEMA}),
        lambda: tables.load(identifier),
        lambda: tables.rename(identifier, T),
    ):
        with pytest.raises(InvalidName):
            call()
    assert one.main.commit_id == before


def test_files_lie_where_the_lake_says() -> None:
    key = new_metadata_key("0123456789abcdef0123", "b" * 20, 3)
    assert key.startswith(f"ice/0123456789abcdef0123/{'b' * 20}/metadata/00003-")
    assert key.endswith(".metadata.json")
    assert (table_key_of(key), version_of(key)) == ("0123456789abcdef0123", 3)
    assert table_key_of("data/x") is None
    assert version_of("data/x.json") == -1


# --- namespaces ---------------------------------------------------------------------------------------------------


def test_namespaces_come_and_go(one: Client) -> None:
    tables = on(one)
    tables.create_namespace(["db"], {"owner": "ann"})
    tables.create_namespace(["db", "inner"], {})
    assert tables.namespaces() == [("db",)]
    assert tables.namespaces(["db"]) == [("db", "inner")]
    assert tables.update_namespace(["db"], ["owner", "nothing"], {"a": "1"}) == {"owner": "ann"}
    assert tables.namespace(["db"]) == {"a": "1"}
    before = one.main.commit_id
    assert tables.update_namespace(["db"], [], {"a": "1"}) == {"a": "1"}
    assert one.main.commit_id == before  # nothing changed
    for error, call in (
        (AlreadyExists, lambda: tables.create_namespace(["db"], {})),
        (NotEmpty, lambda: tables.drop_namespace(["db"])),
        (NoSuchNamespace, lambda: tables.drop_namespace(["other"])),
        (NoSuchNamespace, lambda: tables.namespaces(["other"])),
        (NoSuchNamespace, lambda: tables.namespace(["other"])),
        (NoSuchNamespace, lambda: tables.all_in(["other"])),
        (NoSuchNamespace, lambda: tables.create(["other", "t"], {"schema": SCHEMA})),
        (BadUpdate, lambda: tables.update_namespace(["db"], ["a"], {"a": "2"})),
        (BadUpdate, lambda: tables.create_namespace(["new"], {"a": 1})),  # type: ignore[dict-item]
    ):
        with pytest.raises(error):
            call()
    tables.drop_namespace(["db", "inner"])
    tables.drop_namespace(["db"])
    assert tables.namespaces() == []
    assert next(iter(one.main.reflog())).verb == "publish"


def test_native_tables_are_seen_and_not_touched(one: Client) -> None:
    one.main.put(names.folder_of(("db", "native")) + names.NATIVE, b"{}")
    one.main.commit("a native table")
    tables = on(one)
    assert tables.namespaces() == [("db",)]
    assert (tables.namespaces(["db"]), tables.all_in(["db"])) == ([], [])
    with pytest.raises(NoSuchTable, match="native"):
        tables.load(["db", "native"])
    with pytest.raises(AlreadyExists):
        tables.create(["db", "native"], {"schema": SCHEMA})


# --- tables -------------------------------------------------------------------------------------------------------


def test_a_table_is_made_loaded_renamed_dropped_and_registered(one: Client) -> None:
    tables = made(one)
    append(tables, 11)
    first = tables.load(T)
    assert first.metadata["properties"]["gc.enabled"] == "false"
    assert first.location.endswith(".metadata.json")
    assert first.metadata["location"].endswith(str(one.main.branch_id))
    tables.create_namespace(["other"], {})
    tables.rename(T, ["other", "u"])
    assert (tables.exists(T), tables.all_in(["other"])) == (False, [("other", "u")])
    assert tables.load(["other", "u"]) == first
    made(one, "second")
    for target, error in ((["nowhere", "u"], NoSuchNamespace), (["other", "u"], AlreadyExists)):
        with pytest.raises(error):
            tables.rename(["db", "second"], target)
    tables.drop(["other", "u"])
    for call in (tables.load, tables.drop):
        with pytest.raises(NoSuchTable):
            call(["other", "u"])
    back = tables.register(T, first.location)
    assert ids(tables) == [11]
    assert back.metadata["table-uuid"] == first.metadata["table-uuid"]
    for wrong in (
        "file:///etc/passwd",
        first.location + "x",
        first.location.replace("/ice/", "/ice/../ice/"),
        f"{first.location.partition('/ice/')[0]}/data/x.metadata.json",
        "",
    ):
        with pytest.raises(BadUpdate):
            tables.register(["db", "stolen"], wrong)
    with pytest.raises(ObjectMissing):
        tables.register(["db", "gone"], first.location.replace("/metadata/0", "/metadata/9"))
    messages = [commit.message for commit in one.main.log()]
    assert messages[0] == "register table db.t"
    assert {"rename table db.t to other.u", "append to db.t", "create table db.t", "create namespace db"} <= set(
        messages
    )


def test_what_is_forced_stays(one: Client) -> None:
    tables = made(one)
    before = one.main.commit_id
    for update in (
        {"action": "set-properties", "updates": {"gc.enabled": "true"}},
        {"action": "remove-properties", "removals": ["gc.enabled"]},
        {"action": "set-properties", "updates": {"write.data.path": "s3://elsewhere"}},
        {"action": "set-properties", "updates": {"write.metadata.path": "/tmp"}},
    ):
        with pytest.raises(BadUpdate):
            tables.commit([TableChange(T, [], [update])])
    with pytest.raises(BadUpdate):
        tables.create(["db", "u"], {"schema": SCHEMA, "properties": {"write.data.path": "/tmp"}})
    assert one.main.commit_id == before
    tables.commit([TableChange(T, [], [{"action": "set-location", "location": "s3://elsewhere"}])])
    assert one.main.commit_id == before  # ignored, and so nothing changed


def test_a_staged_creation_stores_nothing_until_its_commit(one: Client) -> None:
    tables = on(one)
    tables.create_namespace(["db"], {})
    before = one.main.commit_id
    staged = tables.create(T, {"schema": SCHEMA}, stages=True)
    assert (staged.location, one.main.commit_id, tables.exists(T)) == ("", before, False)
    held = staged.metadata
    steps = [
        {"action": "assign-uuid", "uuid": held["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": held["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": held["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": held["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": held["location"]},
        *added(snapshot(1, 1, **listed(tables, 1))),
    ]
    create = [{"type": "assert-create"}]
    (loaded,) = tables.commit([TableChange(T, create, steps)])
    assert loaded.metadata["location"] == held["location"]  # where its files were written meanwhile
    assert ids(tables) == [1]
    before = one.main.commit_id
    (again,) = tables.commit([TableChange(T, create, steps)])  # whose reply was lost
    assert (again.metadata["table-uuid"], one.main.commit_id) == (held["table-uuid"], before)
    rival = [{**one, "uuid": names.new_uuid()} if one["action"] == "assign-uuid" else one for one in steps]
    with pytest.raises(AlreadyExists):
        tables.commit([TableChange(T, create, rival)])
    other = [{**one, "location": "s3://elsewhere"} if one["action"] == "set-location" else one for one in steps]
    (loaded,) = tables.commit([TableChange(("db", "u"), create, other)])
    assert "elsewhere" not in loaded.metadata["location"]


def test_several_tables_change_together_or_not_at_all(one: Client) -> None:
    tables = made(one)
    made(one, "u")
    step = [{"action": "set-properties", "updates": {"a": "1"}}]
    wrong = [{"type": "assert-current-schema-id", "current-schema-id": 7}]
    before = one.main.commit_id
    with pytest.raises(Stale):
        tables.commit([TableChange(T, [], step), TableChange(("db", "u"), wrong, step)])
    with pytest.raises(NoSuchTable):
        tables.commit([TableChange(T, [], step), TableChange(("db", "nothing"), [], step)])
    for bad in ([], [TableChange(T, [], step), TableChange(T, [], step)]):
        with pytest.raises(BadUpdate):
            tables.commit(bad)
    assert one.main.commit_id == before
    assert not [key for key in one.repo._core.resolver.namespace.list_keys("ice/") if "/00001-" in key]
    tables.commit([TableChange(T, [], step), TableChange(("db", "u"), [], step)])
    assert one.main.get_commit().parents == (before,)
    assert one.main.get_commit().message == "set properties of db.t; set properties of db.u"


def test_the_same_commit_again_is_done(one: Client) -> None:
    tables = made(one)
    held = tables.load(T).metadata
    wanted = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
    change = TableChange(
        T, wanted, added(snapshot(5, 1, **{"timestamp-ms": held["last-updated-ms"] + 1}, **listed(tables, 5)))
    )
    first = tables.commit([change])
    append(tables, 6)
    assert tables.commit([change])[0].metadata["current-snapshot-id"] == 6
    assert ids(tables) == [5, 6]
    assert first[0].metadata["current-snapshot-id"] == 5


def test_a_repeated_commit_of_several_tables_is_done(one: Client) -> None:
    """It happened whole, though one of its tables shows nothing that would tell."""
    tables = made(one)
    made(one, "u")
    held = tables.load(T).metadata
    adds = added(snapshot(5, 1, **{"timestamp-ms": held["last-updated-ms"] + 1}, **listed(tables, 5)))
    wider = [{"action": "add-schema", "schema": schema(field(1, "k"), field(2, "s", "string"), field(3, "n"))}]
    wanted = [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}]
    both = [TableChange(T, [], adds), TableChange(("db", "u"), wanted, wider)]
    tables.commit(both)
    before = one.main.commit_id
    assert [loaded.metadata["last-column-id"] for loaded in tables.commit(both)] == [2, 3]
    assert one.main.commit_id == before


def test_names_are_taken_once_whoever_comes_between(one: Client, two: Client) -> None:
    tables = made(one)
    rival = on(two)
    one.before("set_if", 1, lambda: rival.create(["db", "late"], {"schema": SCHEMA}))
    tables.drop(T)
    tables.create_namespace(["empty"], {})
    one.before("set_if", 1, lambda: rival.create(["empty", "t"], {"schema": SCHEMA}))
    with pytest.raises(NotEmpty):
        tables.drop_namespace(["empty"])
    one.before("set_if", 1, lambda: rival.create(["db", "x"], {"schema": SCHEMA}))
    with pytest.raises(AlreadyExists):
        tables.create_namespace(["db", "x"], {})
    one.before("set_if", 1, lambda: rival.create_namespace(["db", "y"], {}))
    with pytest.raises(AlreadyExists):
        tables.create(["db", "y"], {"schema": SCHEMA})
    with pytest.raises(AlreadyExists):
        tables.create_namespace(["db", "x", "below"], {})
    tables.create_namespace(["gone"], {})
    one.before("set_if", 1, lambda: rival.drop_namespace(["gone"]))
    with pytest.raises(NoSuchNamespace):
        tables.create(["gone", "t"], {"schema": SCHEMA})


# --- others on the branch -----------------------------------------------------------------------------------------


def test_branches_have_tables_of_their_own(one: Client) -> None:
    tables = made(one)
    append(tables, 11)
    dev = one.main.create_branch("dev")
    on_dev = Tables(dev)
    append(on_dev, 12)
    assert (ids(tables), ids(on_dev)) == ([11], [11, 12])
    assert on_dev.load(T).metadata["location"].endswith(str(dev.branch_id))
    one.main.merge("dev")
    assert ids(tables) == [11, 12]
    assert tables.load(T).metadata["location"].endswith(str(one.main.branch_id))
    one.repo.create_tag("v1", "main~1")
    at_tag = Tables(one.repo.ref("v1"))
    assert ids(at_tag) == [11]
    for call in (
        lambda: append(at_tag, 13),
        lambda: at_tag.create(["db", "u"], {"schema": SCHEMA}),
        lambda: at_tag.drop(T),
        lambda: at_tag.create_namespace(["x"], {}),
    ):
        with pytest.raises(NotAllowed):
            call()


def test_what_is_staged_locked_or_protected(one: Client) -> None:
    tables = made(one)
    one.main.put("elsewhere", b"x")
    append(tables, 11)
    assert [change.path for change in one.main.uncommitted()] == ["elsewhere"]
    one.main.put(pointer_of(T), b"{}")
    with pytest.raises(UncommittedChanges):
        append(tables, 12)
    assert ids(tables) == [11]  # what is only staged is not the table
    one.main.discard(path=pointer_of(T))
    one.repo.lock_owners.register("repair", "repairs")
    lock = one.main.locks.take("tables/db/t/", owner="repair")
    with pytest.raises(RangeLocked):
        append(tables, 12)
    one.main.locks.release(lock.id)
    one.repo.protect("main")
    with pytest.raises(BranchProtected):
        append(tables, 12)
    one.repo.protect("main", writers=["iceberg"])
    append(tables, 12)
    assert ids(tables) == [11, 12]


def test_a_quarantined_table_is_not_read(one: Client) -> None:
    """Readers of a branch are stopped by a quarantine, as for any object; those of a commit are not."""
    tables = made(one)
    made(one, "u")
    one.repo.lock_owners.register("repair", "repairs")
    lock = one.main.locks.take("tables/db/t/", owner="repair", mode="quarantine")
    for call in (
        lambda: tables.load(T),
        lambda: tables.exists(T),
        lambda: tables.all_in(["db"]),
        lambda: tables.namespaces(["db"]),
        lambda: append(tables, 1),
    ):
        with pytest.raises(RangeLocked, match="quarantined"):
            call()
    assert tables.load(["db", "u"]).location
    assert tables.namespace(["db"]) == {}
    assert Tables(one.repo.ref(one.main.commit_id)).load(T).location
    one.main.locks.release(lock.id)
    assert tables.load(T).location


def test_what_was_stored_in_vain_is_deleted(one: Client, two: Client) -> None:
    tables = made(one)
    blobs = one.repo._core.resolver.namespace

    def files() -> int:
        return len(list(blobs.list_keys("ice/")))

    before = files()
    one.before("set_if", 1, lambda: append(on(two), 7))
    append(tables, 8)
    assert ids(tables) == [7, 8]
    assert files() == before + 4  # two manifest lists of clients, and two metadata files


def test_of_two_changes_that_are_staged_at_once_none_is_lost(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change comes between what a change was decided on and its own landing."""
    made(one)
    tables, rival = Tables(one.main, stages=True), Tables(two.main, stages=True)
    land = AmongStaged.land
    turns = iter([lambda: append(rival, 7)])

    def late(self: AmongStaged, plan: Plan, draft: Draft) -> Any:
        next(turns, lambda: None)()
        return land(self, plan, draft)

    monkeypatch.setattr(AmongStaged, "land", late)
    append(tables, 8)
    assert ids(tables) == [7, 8]


@pytest.mark.parametrize("outcome", [Outcome.DONE_BUT_LOST, Outcome.NOT_DONE, Outcome.LATE])
def test_no_lost_reply_makes_a_refusal_of_a_commit_that_happened(outcome: Outcome, one: Client, two: Client) -> None:
    """A client that gets a refusal deletes its files: it must surely not have happened."""
    made(two)
    for number in range(1, 16):
        one.next = failing_at(number, outcome)
        known = "done"
        try:
            append(on(one), 100 + number, retries=False)
        except StoreUnavailable as error:
            known = error.happened
        except Stale:
            known = "no"
        one.connect()
        is_there = 100 + number in ids(on(two))
        assert is_there == {"done": True, "no": False}.get(known, is_there), (number, known)
        append(on(two), 1_000 + number)


def test_racing_appends_are_all_there_once(tmp_path: Path) -> None:
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        main = lake.create_repository("repo").branch("main")
        tables = Tables(main)
        tables.create_namespace(["db"], {})
        tables.create(T, {"schema": SCHEMA})
        lock, acknowledged = threading.Lock(), list[int]()

        def work(worker: int) -> None:
            own = Tables(lake.repository("repo").branch("main"))
            for turn in range(8):
                number = 1_000 * (worker + 1) + turn
                append(own, number)
                with lock:
                    acknowledged.append(number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert sorted(ids(tables)) == sorted(acknowledged)
        assert len(acknowledged) == 32
        log = [commit.message for commit in main.log()]
        assert log.count("append to db.t") == 32
        assert len(list(main._core.resolver.namespace.list_keys("ice/"))) == 33 + 32  # nothing is left of lost races


def test_damaged_metadata_says_so(one: Client) -> None:
    tables = made(one)
    found = one.main.stat(pointer_of(T))
    blobs = one.repo._core.resolver.namespace
    for data in (b"{", b"[]", b'{"format-version": 2}'):
        blobs.put(found.physical_address, data)
        with pytest.raises(strandline.errors.Corrupted, match=r"db\.t"):
            tables.load(T)
    blobs.delete_many([found.physical_address])
    with pytest.raises(strandline.errors.ObjectMissing, match=r"db\.t"):
        tables.load(T)
