"""Nothing reaches the key-value store that does not decode to what was meant."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.branch.commits import Commit
from strandline.branch.reflog import Block
from strandline.branch.rules.record import BranchRecord, Deleted, HeadMove, LockRecord, TagRecord, Waiting, WriterRecord
from strandline.branch.token_queue import QueueItem
from strandline.branch.transactions import Repeat, TransactionRecord
from strandline.core.promises import Condemned, Expired, Link, Pin
from strandline.core.record import LockOwner, Protection, RepositoryRecord
from strandline.core.retention import Retention
from strandline.envelope import decode, encode
from strandline.errors import StrandlineError, UsageError
from strandline.ids import BranchId, CommitId, StagingToken
from strandline.lake import Lake
from strandline.opening import LakeRecord
from strandline.tree.rows import Entry, check_one, check_staged, decode_staged

pytestmark = pytest.mark.beside

KINDS = (
    Block,
    BranchRecord,
    Commit,
    Condemned,
    Deleted,
    Expired,
    HeadMove,
    LakeRecord,
    Link,
    LockRecord,
    LockOwner,
    Pin,
    Protection,
    QueueItem,
    Repeat,
    RepositoryRecord,
    Retention,
    TagRecord,
    TransactionRecord,
    Waiting,
    WriterRecord,
)
WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers(), max_size=2),
    st.tuples(st.text()),
    st.dictionaries(st.text(), st.integers(), max_size=2),
    st.just("\ud800"),
    st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    st.just(object()),
    st.just(2**64),
)


def of_type(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that an annotation of a record allows."""
    while hasattr(annotation, "__supertype__"):
        annotation = annotation.__supertype__
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return of_type(inner[0])
    if annotation is str:
        return st.text(max_size=8)
    if annotation is int:
        return st.integers(-(2**63), 2**63 - 1)
    if annotation is float:
        return st.floats(allow_nan=False)
    if annotation is bool:
        return st.booleans()
    if annotation is type(None):
        return st.none()
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return st.lists(of_type(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(of_type, inner))
    if origin in (dict, Mapping):
        return st.dictionaries(of_type(inner[0]), of_type(inner[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return structs(annotation)
    return st.one_of(*map(of_type, inner))


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    types = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: of_type(types[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_a_record_allows_decodes_to_an_equal_value(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    record = data.draw(structs(kind))
    assert decode(kind, encode(record), "a record") == record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_a_record_does_not_allow_never_leaves(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """One field of any kind of value: either it is refused, or it decodes to what it was."""
    record = data.draw(structs(kind))
    name = data.draw(st.sampled_from(kind.__struct_fields__))
    wrong = msgspec.structs.replace(record, **{name: data.draw(WRONG)})
    try:
        raw = encode(wrong)
    except UsageError:
        return
    assert decode(kind, raw, "a record") == wrong


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_change_is_checked_as_strictly_as_a_whole_record(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """A value of any kind as a field, or among the items of one, of which the record before held the others."""
    record = data.draw(structs(kind))
    name = data.draw(st.sampled_from(kind.__struct_fields__))
    value, wrong = getattr(record, name), data.draw(WRONG)
    if isinstance(value, tuple):
        wrong = data.draw(st.sampled_from([wrong, (wrong, *value), (*value, *value)]))
    elif isinstance(value, dict):
        others = [wrong, {**value, data.draw(st.text()): wrong}]
        others += [{**value, data.draw(st.sampled_from(sorted(value))): wrong}] if value else []
        wrong = data.draw(st.sampled_from(others))
    changed = msgspec.structs.replace(record, **{name: wrong})
    assert encoded(changed, before=record) == encoded(changed, before=None)


@pytest.mark.parametrize("name", ["etl", "new"])
def test_a_wrong_item_beside_right_ones_never_leaves(name: str) -> None:
    before = BranchRecord(
        branch_id=BranchId("b"),
        head=CommitId("c"),
        staging_token=StagingToken("t"),
        created_at=1,
        writers={"etl": WriterRecord(started=1), "other": WriterRecord(started=2)},
        publishers=("etl",),
    )
    wrong: Any = "7"
    writers = {**before.writers, name: WriterRecord(started=wrong)}
    for changes in ({"writers": writers}, {"publishers": ("etl", 7)}):
        with pytest.raises(UsageError, match="cannot hold what it was given"):
            encode(msgspec.structs.replace(before, **changes), before=before)


def encoded(record: msgspec.Struct, before: msgspec.Struct | None) -> bytes | None:
    """None if it is refused."""
    try:
        return encode(record, before=before)
    except UsageError:
        return None


@given(fields=st.tuples(WRONG, WRONG, WRONG, WRONG, WRONG, WRONG))
def test_a_staged_entry_is_refused_or_decodes_to_what_it_was(fields: tuple[Any, ...]) -> None:
    entry = Entry(*fields)
    try:
        (raw,) = check_staged([entry])
    except UsageError:
        with pytest.raises(UsageError):
            check_one(entry)
        return
    assert decode_staged(raw) == entry
    assert check_one(entry) == raw


@pytest.mark.parametrize(
    "wrong",
    [
        Entry("a", -1, "c", 1),
        Entry("a", 2**63, "c", 1),
        Entry("a", 1, "c", 2**63),
        Entry("a", 1, 5, 1),  # type: ignore[arg-type]
        Entry("a", 1, "c", 1, 5),  # type: ignore[arg-type]
        Entry("a", 1, "c", 1, "\ud800"),
        {"size": 1},
        None,
    ],
    ids=repr,
)
def test_entries_that_no_column_holds_are_refused(lake: Lake, wrong: Any) -> None:
    main = lake.repository("nyc", create=True).branch("main")
    main.put("before", b"1")
    calls: list[Callable[[], object]] = [
        lambda: main.stage("a", wrong),
        lambda: main.stage_each([("a", wrong)]),
        lambda: main.stage_atomically([("a", wrong)]),
        lambda: main.link_many([("a", wrong)]),
    ]
    for call in calls:
        with pytest.raises(StrandlineError):
            call()
    assert [info.path for info in main.list()] == ["before"]
    main.commit("it can be committed")


# --- what made a lake unreadable for ever


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake


def is_readable(lake: Lake) -> None:
    """Everything that a record is behind."""
    repo = lake.repository("nyc")
    main = repo.branch("main")
    main.put("again", b"1")
    main.commit("again")
    assert list(repo.branches())
    assert list(main.log())
    assert repo.fsck(content=True).is_sound
    repo.gc.plan()
    repo.create_branch("other").put("x", b"1")
    repo.delete_branch("other")


WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    "content_type=1": lambda repo: repo.branch("main").put("a", b"1", content_type=1),
    "content_type=surrogate": lambda repo: repo.branch("main").put("a", b"1", content_type="\ud800"),
    "committer=5": lambda repo: repo.branch("main").commit("m", committer=5, allow_empty=True),
    "committer=b''": lambda repo: repo.branch("main").merge("main", committer=b"x"),
    "metadata=5": lambda repo: repo.branch("main").commit("m", metadata=5, allow_empty=True),
    "metadata value": lambda repo: repo.branch("main").commit("m", metadata={"a": 1}, allow_empty=True),
    "metadata surrogate": lambda repo: repo.branch("main").commit("m", metadata={"a": "\udfff"}, allow_empty=True),
    "message surrogate": lambda repo: repo.branch("main").commit("\ud800", allow_empty=True),
    "date=5": lambda repo: repo.branch("main").commit("m", date=5, allow_empty=True),
    "protect(5)": lambda repo: repo.protect(5),
    "protect(list)": lambda repo: repo.protect(["main", "x"]),
    "protect(block=str)": lambda repo: repo.protect("main", "stage"),
    "protect(block=[1])": lambda repo: repo.protect("main", [1]),
    "protect(writers=str)": lambda repo: repo.protect("main", writers="nightly"),
    "read_only=1": lambda repo: repo.set_read_only(1),
    "read_only='no'": lambda repo: repo.set_read_only("no"),
    "read_only=None": lambda repo: repo.set_read_only(None),
    "retention=True": lambda repo: repo.gc.set_retention(True),
    "retention=nan": lambda repo: repo.gc.set_retention(math.nan),
    "retention branches": lambda repo: repo.gc.set_retention(30, {"a": True}),
    "retention branches list": lambda repo: repo.gc.set_retention(30, ["a"]),
    "lock owner": lambda repo: repo.lock_owners.register("me", 5),
    "lock owner name": lambda repo: repo.lock_owners.register(5, "x"),
    "tag": lambda repo: repo.create_tag(5),
    "branch": lambda repo: repo.create_branch(5),
    "default": lambda repo: repo.set_default_branch(5),
    "link size": lambda repo: repo.branch("main").link("a", "data/x", size="1", checksum="c"),
    "link checksum": lambda repo: repo.branch("main").link("a", "data/x", size=1, checksum=5),
    "writer node": lambda repo: repo.branch("main").writers.assign("w", 5),
    "token": lambda repo: repo.branch("main").transaction("w", "m", token=5).begin(),
    "position": lambda repo: repo.branch("main").transaction("w", "m", position=5).begin(),
}


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=list(WRONG_CALLS))
def test_no_argument_makes_a_record_unreadable(lake: Lake, call: Callable[[Any], object]) -> None:
    repo = lake.repository("nyc", create=True)
    repo.branch("main").put("staged", b"1")
    before = list(repo.branch("main").log())
    with pytest.raises(UsageError) as refused:
        call(repo)
    assert "Nothing was changed" in str(refused.value)
    assert list(repo.branch("main").log()) == before
    is_readable(lake)


@pytest.mark.parametrize("days", ["x", True, math.inf, math.nan, -1, 0, 1e300, None])
def test_a_pin_that_is_none_breaks_nobodys_collection(lake: Lake, days: Any) -> None:
    repo = lake.repository("nyc", create=True)
    with pytest.raises(UsageError):
        with repo.branch("main").pin(days=days):
            pass
    is_readable(lake)


@pytest.mark.parametrize("committer", [5, b"x", "\ud800", "x" * 300, ""])
def test_a_lake_is_not_opened_for_a_committer_that_is_none(tmp_path: Path, committer: Any) -> None:
    strandline.open(tmp_path / "lake", create=True).close()
    if committer == "":
        strandline.open(tmp_path / "lake", committer=committer).close()  # the user's name
        return
    with pytest.raises(UsageError):
        strandline.open(tmp_path / "lake", committer=committer)


# --- a lake that an earlier version made unreadable


def broken(lake: Lake, repo: Any, kind: str) -> None:
    """Write, past the gate, what earlier versions wrote."""
    stores = repo._core.stores
    kv = lake._kv

    def rewrite(partition: bytes, key: bytes, change: Callable[[Any], None]) -> None:
        raw = kv.get(partition, key)
        assert raw is not None
        version, held = msgspec.msgpack.decode(raw)
        change(held)
        kv.set(partition, key, msgspec.msgpack.encode((version, held)))

    main = repo.branch("main")
    token = main._cell.read().branch.staging_token
    if kind == "repository":

        def rules(held: dict[str, Any]) -> None:
            held["read_only"] = "no"
            held["protections"] = [
                {"pattern": 5, "blocked": ["stage"], "writers": []},
                {"pattern": "keep-*", "blocked": ["stage"], "writers": []},
            ]
            held["retention"] = {"days": True, "branches": {"a": True, "b": 5.0}}

        rewrite(b"repositories", b"nyc", rules)
    elif kind == "commit":
        head = main.commit_id
        raw = kv.get(stores.records, b"commit/" + head.encode())
        assert raw is not None
        version, held = msgspec.msgpack.decode(raw)
        held["committer"] = 5
        kv.set(stores.records, b"commit/" + head.encode(), msgspec.msgpack.encode((version, held)))

        def move(held: dict[str, Any]) -> None:
            held["moves"][0][2] = 5

        rewrite(stores.refs, b"main", move)
    elif kind == "staged":
        held = main.stat("b")
        kv.set(
            stores.staging(token), b"a", msgspec.msgpack.encode([held.physical_address, 1, held.checksum, 1, 5, None])
        )
    elif kind == "pin":
        kv.set(
            stores.records, b"pin/x/y", msgspec.msgpack.encode((4, {"commit": main.commit_id, "days": "x", "why": "w"}))
        )


@pytest.mark.parametrize("kind", ["repository", "commit", "staged", "pin"])
def test_what_an_earlier_version_broke_is_mended_after_a_question(tmp_path: Path, kind: str) -> None:
    import subprocess
    import sys

    place = tmp_path / "lake"
    with strandline.open(place, create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        main.put("a", b"1")
        main.commit("first")
        main.put("b", b"1")
        repo.create_tag("v1")
        broken(lake, repo, kind)

    def command(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        full = [sys.executable, "-m", "strandline.cli", *arguments, "--lake", str(place)]
        return subprocess.run(full, input=answer, capture_output=True, text=True)

    before = (place / "metadata.db").read_bytes()
    looked = command("upgrade", "--repair", "--dry-run")
    assert looked.returncode == 0, looked.stderr
    assert "is broken" in looked.stdout
    refused = command("upgrade", "--repair", answer="n\n")
    assert "Nothing was changed" in refused.stdout
    assert (place / "metadata.db").read_bytes() == before
    mended = command("upgrade", "--repair", answer="y\n")
    assert mended.returncode == 0, mended.stderr
    assert "Mended" in mended.stdout
    assert "Every record can be read" in command("upgrade", "--repair").stdout
    with strandline.open(place) as lake:
        repo = lake.repository("nyc")
        if kind == "repository":
            assert repo.settings.read_only  # the safe side
            assert [rule.pattern for rule in repo.protections] == ["keep-*"]
            assert repo.gc.retention == Retention(None, {"a": None, "b": 5.0})
            repo.set_read_only(False)
        if kind == "commit":
            assert repo.branch("main").get_commit().committer == "5"
            assert repo.ref("v1").commit_id == repo.branch("main").commit_id
        assert [info.path for info in repo.branch("main").list()] == ["a", "b"]
        is_readable(lake)


def test_what_cannot_be_mended_is_named_and_left(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        key = b"commit/" + b"0" * 40
        lake._kv.set(repo._core.stores.records, key, b"\x92\x04\xc1")
        (found,) = lake.repair()
        assert not found.is_mended
        assert lake._kv.get(repo._core.stores.records, key) == b"\x92\x04\xc1"


@pytest.mark.parametrize("days", [math.inf, math.nan, -3.0])
def test_a_pin_of_an_earlier_version_with_days_that_are_none_holds_a_while(lake: Lake, days: float) -> None:
    repo = lake.repository("nyc", create=True)
    record = msgspec.msgpack.encode((4, {"commit": repo.branch("main").commit_id, "days": days, "why": "w"}))
    lake._kv.set(repo._core.stores.records, b"pin/x/y", record)
    repo.gc.run()
    repo.gc.run()
    assert lake._kv.get(repo._core.stores.records, b"pin/x/y") is not None


def spoil(lake: Lake, repo: Any, commit: str) -> None:
    """Write a commit as an earlier version could: with a message that is none."""
    key = b"commit/" + commit.encode()
    raw = lake._kv.get(repo._core.stores.records, key)
    assert raw is not None
    version, held = msgspec.msgpack.decode(raw)
    held["message"] = 5
    lake._kv.set(repo._core.stores.records, key, msgspec.msgpack.encode((version, held)))


def test_a_mended_commit_takes_its_children_along(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        ids = []
        for number in range(2):
            main.put("a", b"%d" % number)
            ids.append(main.commit(f"{number}").id)
            spoil(lake, repo, ids[-1])
    with strandline.open(tmp_path / "lake", synced=False) as lake:
        assert all(one.is_mended for one in lake.repair())
        repo = lake.repository("nyc")
        log = list(repo.branch("main").log())
        assert [commit.message for commit in log[:2]] == ["5", "5"]
        assert len(log) == 3
        assert not {commit.id for commit in log} & set(ids)


def test_a_commit_that_a_readable_one_names_is_left_and_named(tmp_path: Path) -> None:
    """It cannot get another id: whoever made its child knows it by this one."""
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        main.put("a", b"1")
        parent = main.commit("parent").id
        main.put("a", b"2")
        child = main.commit("child").id
        spoil(lake, repo, parent)
        key = b"commit/" + parent.encode()
        before = lake._kv.get(repo._core.stores.records, key)
        (found,) = lake.repair()
        assert not found.is_mended
        assert child[:12] in str(found.fields)
        assert lake._kv.get(repo._core.stores.records, key) == before
        assert repo.branch("main").commit_id == child
