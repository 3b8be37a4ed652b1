"""Every kind of error: what happened, what is safe, what to do next; one table for exit codes and statuses."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import strandline
from strandline import errors
from strandline.core.record import PARTITION, RepositoryRecord
from strandline.envelope import NEWEST_FORMAT, decode, encode
from strandline.errors import TABLE, NewerFormat, StrandlineError, kind_of
from strandline.ids import RepositoryId
from strandline.kv import open_store
from strandline.kv.memory import MemoryStore
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository


def all_kinds(cls: type[StrandlineError] = StrandlineError) -> Iterator[type[StrandlineError]]:
    """The errors that a library's caller can meet; a server has statuses of its own (`strandline.server.refusals`)."""
    if cls.__module__ != StrandlineError.__module__:
        return
    yield cls
    for child in cls.__subclasses__():
        yield from all_kinds(child)


@pytest.mark.parametrize("cls", sorted(set(all_kinds()), key=str))
def test_every_kind_has_a_row_of_its_own_and_is_public(cls: type[StrandlineError]) -> None:
    assert cls in TABLE
    row = kind_of(cls)
    assert 1 <= row.exit_code <= 125
    assert 400 <= row.http_status <= 599
    assert getattr(strandline, cls.__name__) is cls
    assert cls.__doc__


def test_kinds_are_distinct() -> None:
    kinds = [row.kind for row in TABLE.values()]
    assert len(set(kinds)) == len(kinds)


def make(cls: type[StrandlineError]) -> StrandlineError:
    if issubclass(cls, errors.StoreUnavailable) and cls is not errors.OutcomeUnknown:
        return cls("It happened.", happened="no", next="Do this.")
    return cls("It happened.", next="Do this.")


@pytest.mark.parametrize("cls", sorted(set(all_kinds()), key=str))
def test_a_message_has_three_parts_and_survives_pickling(cls: type[StrandlineError]) -> None:
    error = make(cls)
    assert error.what == "It happened."
    assert error.safe
    assert str(error) == f"It happened. {error.safe} Do this."
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.safe) == (cls, str(error), error.safe)


def broken_record(kv: object, branch: Branch, value: bytes) -> None:
    stores = branch._core.stores
    stores.kv.set(stores.refs, b"main", value)
    branch._cell._last = None


def test_a_corrupted_record_is_refused_and_not_overwritten(main: Branch, repo: Repository) -> None:
    stores = main._core.stores
    good = stores.kv.get(stores.refs, b"main")
    assert good is not None
    for bad in (
        b"",
        b"\xc1",
        b"garbage",
        good[:-5],
        encode(RepositoryRecord(id=RepositoryId("x"), name="y", namespace="", default_branch="", created_at=0)),
    ):
        broken_record(stores.kv, main, bad)
        for call in (
            lambda: main.put("a", b"1"),
            lambda: main.commit("c"),
            lambda: repo.ref("main"),
            lambda: main.commit_id,
        ):
            with pytest.raises(errors.Corrupted, match="backup"):
                call()
        assert stores.kv.get(stores.refs, b"main") == bad


def test_a_record_of_a_newer_format_is_refused_and_not_overwritten(main: Branch, repo: Repository) -> None:
    stores = main._core.stores
    seen = main._cell.read()
    newer = encode(seen.branch, version=NEWEST_FORMAT + 1)
    broken_record(stores.kv, main, newer)
    for call in (lambda: main.put("a", b"1"), lambda: main.commit("c"), lambda: repo.ref("main")):
        with pytest.raises(NewerFormat, match="Upgrade"):
            call()
    assert stores.kv.get(stores.refs, b"main") == newer


def test_a_newer_record_may_have_any_shape(main: Branch) -> None:
    with pytest.raises(NewerFormat):
        decode(RepositoryRecord, msgspec.msgpack.encode((NEWEST_FORMAT + 1, "something else")), "it")


def test_a_lake_of_a_newer_format_is_not_opened(tmp_path: Path) -> None:
    with strandline.open(tmp_path, create=True) as lake:
        lake._kv.set(b"lake", b"format", msgspec.msgpack.encode((NEWEST_FORMAT + 1, {})))
    with pytest.raises(NewerFormat):
        strandline.open(tmp_path)


def test_a_corrupted_staged_entry_or_commit_is_refused(main: Branch) -> None:
    main.put("a", b"1")
    stores = main._core.stores
    token = main._cell.read().branch.staging_token
    stores.kv.set(stores.staging(token), b"a", b"\xc1")
    for call in (lambda: main.read("a"), lambda: list(main.list()), lambda: main.commit("c")):
        with pytest.raises(errors.Corrupted, match="staged entry"):
            call()
    main.discard()
    main.put("a", b"1")
    commit = main.commit("c")
    key = b"commit/" + commit.id.encode()
    raw = stores.kv.get(stores.records, key)
    assert raw is not None
    stores.kv.set(stores.records, key, raw.replace(b"tester", b"forger"))
    main._core.commits._cache = type(main._core.commits._cache)(1 << 20)
    with pytest.raises(errors.Corrupted, match="something else than was written"):
        main.log().first()


def test_a_corrupted_repository_record_is_refused(lake: Lake, repo: Repository) -> None:
    lake._kv.set(PARTITION, b"nyc", b"\x92\x01\x80")
    with pytest.raises(errors.Corrupted):
        lake.repository("nyc")


def test_a_lake_folder_without_permission_says_so(tmp_path: Path, as_somebody_else: Callable[[], None]) -> None:
    folder = tmp_path / "lake"
    strandline.open(folder, create=True).close()
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    folder.chmod(0o500)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    as_somebody_else()
    with pytest.raises(errors.StoreUnavailable, match="may not use the folder"):
        strandline.open(folder)
    with pytest.raises(errors.StoreUnavailable, match="may not use the folder"):
        strandline.open(locked / "new", create=True)


def test_a_full_disk_in_the_middle_of_a_commit_loses_nothing(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    main.put("a", b"1")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(errors.StoreUnavailable, match="Free some space") as failed:
            main.commit("c")
        assert failed.value.happened == "no"
        assert "everything that was staged still is" in failed.value.safe
    assert [change.path for change in main.uncommitted()] == ["a"]
    main.commit("c")
    assert [
        path.name for path in (Path(main._core.resolver.namespace.url[7:]) / ".strandline-incoming").iterdir()
    ] == []


def test_a_full_database_says_so_and_writes_nothing(tmp_path: Path) -> None:
    from strandline.kv.sqlite import SqliteStore

    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"v")
        assert store._writer is not None
        store._writer.execute("PRAGMA max_page_count = 10")
        for call in (
            lambda: store.set(b"p", b"big", b"x" * 1_000_000),
            lambda: store.set_many(b"p", [(b"k%d" % i, b"x" * 1000) for i in range(1000)]),
            lambda: store.set_if(b"p", b"k", b"x" * 1_000_000, b"v"),
        ):
            with pytest.raises(errors.StoreUnavailable, match="Free some space") as failed:
                call()
            assert failed.value.happened == "no"
        assert list(store.scan(b"p")) == [(b"k", b"v")]


def test_a_closed_lake_says_so(tmp_path: Path) -> None:
    lake = strandline.open(tmp_path, create=True)
    main = lake.repository("nyc", create=True).branch("main")
    lake.close()
    for call in (lambda: main.put("a", b"1"), lambda: main.read("a")):
        with pytest.raises(errors.StoreUnavailable):
            call()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://x", "No key-value store is known"),
        ("sqlite:///tmp/x.db?speed=11", "option that SQLite does not know"),
        ("redis://127.0.0.1:1/0", "did not answer"),
        ("postgresql://127.0.0.1:1/x?connect_timeout=2", "did not answer"),
        ("sqlite:///nonexistent/folder/x.db", "could not use"),
    ],
)
def test_a_store_that_cannot_be_opened_says_why(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.kv.postgres.POOL_TIMEOUT_S", 1.0)
    with pytest.raises(StrandlineError, match=words):
        open_store(url)


@pytest.mark.server
def test_a_redis_that_does_not_sync_is_refused_unless_told() -> None:
    from tests.harness import servers

    with servers.redis(synced=False) as url:
        with pytest.raises(errors.InvalidSettings, match="appendfsync always"):
            open_store(url)
        open_store(f"{url}?sync=relaxed").close()


@pytest.mark.server
def test_a_postgres_that_does_not_sync_is_refused_unless_told(postgres_url: str) -> None:
    url = f"{postgres_url}?options=-csynchronous_commit%3Doff"
    with pytest.raises(errors.InvalidSettings, match="synchronous_commit"):
        open_store(url)
    open_store(f"{url}&async=allow").close()


@pytest.mark.server
def test_a_postgres_that_goes_away_is_unavailable_and_comes_back() -> None:
    from tests.harness import servers

    with servers.postgres() as url:
        store = open_store(url)
        store.set(b"p", b"k", b"v")
    with pytest.raises(errors.StoreUnavailable, match="PostgreSQL did not answer"):
        store.set(b"p", b"k", b"w")
    store.close()


def test_plug_ins_are_found_by_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        name = "custom"

        def load(self) -> Callable[[str], MemoryStore]:
            return lambda url: MemoryStore()

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Plugin()] if group == "strandline.kv" else [])
    assert isinstance(open_store("custom://x"), MemoryStore)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("no", name="psycopg")

    monkeypatch.setattr("strandline.kv.import_module", missing)
    with pytest.raises(errors.InvalidSettings, match=r"pip install 'strandline\[postgres\]'"):
        open_store("postgresql://x")
