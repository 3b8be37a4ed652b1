"""Reading a file of SQLite where nothing can be written: without the right to, and on a full disk."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline
from strandline import errors
from strandline.kv.sqlite import SqliteStore
from strandline.kv.sqlite_reading import Unchanged, connect_reading
from strandline.kv.store import ABSENT

FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can become longer, as on a full disk
from strandline.cli import main
main()
"""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Path]:
    """With a commit and something staged; this user owns it, and others may look."""
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    place = tmp_path / "lake"
    with strandline.open(place, create=True) as made:
        main = made.repository("nyc", create=True).branch("main")
        main.put("a", b"1")
        main.commit("one")
        main.put("b", b"2")
    yield place


def _only_readable(lake: Path) -> None:
    for path in (lake, *lake.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)


def _look(place: Path, expected: list[str]) -> None:
    with strandline.open(place) as lake:
        main = lake.repository("nyc").branch("main")
        assert [info.path for info in main.list()] == expected
        assert main.read("a") == b"1"
        assert next(commit.message for commit in main.log()) == "one"
        assert [change.path for change in main.uncommitted()] == ["b"]
        assert lake.repository("nyc").fsck().problem_count == 0
        plan = lake.repository("nyc").gc.plan  # which seals what is staged, so that it cannot grow unseen
        for call in (
            lambda: main.put("c", b"3"),
            lambda: main.commit("two"),
            lambda: lake.create_repository("other"),
            plan,
        ):
            with pytest.raises(errors.StorageError) as refused:
                call()
            assert getattr(refused.value, "happened", "no") == "no"


def test_a_user_who_may_only_read_reads(lake: Path, as_somebody_else: Callable[[], None]) -> None:
    _only_readable(lake)
    as_somebody_else()
    assert not os.access(lake, os.W_OK, effective_ids=True)
    _look(lake, ["a", "b"])


def test_a_user_who_may_only_read_reads_beside_a_writer(lake: Path, as_somebody_else: Callable[[], None]) -> None:
    """The writer holds the log and its index open, which the reader then uses as they are."""
    writer = strandline.open(lake)
    main = writer.repository("nyc").branch("main")
    main.put("b", b"2")
    _only_readable(lake)
    as_somebody_else()
    _look(lake, ["a", "b"])


def test_what_is_only_in_the_log_is_not_left_out(lake: Path, as_somebody_else: Callable[[], None]) -> None:
    """A process died with writes in the log: a reader that cannot read them refuses to read at all."""
    killed = (
        "import os, strandline, signal; main = strandline.open(sys.argv[1]).repository('nyc').branch('main');"
        "main.put('late', b'3'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", f"import sys; {killed}", str(lake)])
    assert (lake / "metadata.db-wal").stat().st_size
    (lake / "metadata.db-shm").unlink()
    _only_readable(lake)
    as_somebody_else()
    with pytest.raises(errors.StoreUnavailable, match="its log") as refused:
        strandline.open(lake)
    assert "let a user with that right open the lake once" in refused.value.next


def test_a_lake_that_nobody_may_read_says_so(lake: Path, as_somebody_else: Callable[[], None]) -> None:
    (lake / "metadata.db").chmod(0)
    as_somebody_else()
    with pytest.raises(errors.StoreUnavailable, match="could not use"):
        strandline.open(lake)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["ls", "nyc/main"], 0),
        (["log", "nyc/main"], 0),
        (["status", "nyc/main"], 0),
        (["cat", "nyc/main/b"], 0),
        (["gc", "plan", "nyc"], 9),
        (["fsck", "nyc"], 0),
        (["put", "-", "nyc/main/c"], 9),
        (["commit", "nyc/main", "-m", "two"], 9),
        (["branch", "create", "nyc/main", "dev"], 9),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_a_full_disk_stops_writers_only(lake: Path, command: list[str], code: int) -> None:
    before = (lake / "metadata.db").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL, *command, "--lake", str(lake)], input=b"3", capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout != b"") == (code, code == 0), done.stderr
    assert b"Traceback" not in done.stderr
    assert (lake / "metadata.db").read_bytes() == before


def test_a_file_that_somebody_writes_is_read_anew(tmp_path: Path) -> None:
    """Read as one that nobody changes, while somebody does: each read is of what is there when it ends."""
    path = tmp_path / "db"
    with SqliteStore(path) as writer:
        writer.set(b"p", b"k", b"0")
    with SqliteStore(path) as reader:
        session = reader._local.session
        session.connection.close()
        session.connection, session.unchanged = _frozen(path)
        assert reader.get(b"p", b"k") == b"0"
        for number in range(1, 20):
            with SqliteStore(path) as writer:
                writer.set(b"p", b"k", b"%d" % number)
                writer.set_if(b"p", b"n%d" % number, b"x", ABSENT)
            session.connection.close()
            session.connection, session.unchanged = _frozen(path)
            assert reader.get(b"p", b"k") == b"%d" % number  # which SQLite keeps, and never looks at again
            with SqliteStore(path) as writer:
                writer.set(b"p", b"k", b"%d!" % number)
            assert reader.get(b"p", b"k") == b"%d!" % number
            assert len(list(reader.scan(b"p", b"n"))) == number


def test_pages_of_two_states_are_not_taken_for_damage(tmp_path: Path) -> None:
    """What SQLite keeps of the file and what it reads of the new one do not fit together."""
    path = tmp_path / "db"
    with SqliteStore(path) as writer:
        writer.set_many(b"p", [(b"%05d" % key, b"x" * 400) for key in range(5_000)])
    with SqliteStore(path) as reader:
        session = reader._local.session
        for number in range(3):
            session.connection.close()
            session.connection, session.unchanged = _frozen(path)
            assert reader.get(b"p", b"00000") is not None
            with SqliteStore(path) as writer:
                writer.delete_many(b"p", [b"%05d" % key for key in range(1, 5_000) if key % (number + 2)])
                writer._writer.execute("VACUUM")  # type: ignore[union-attr]
            assert len(list(reader.scan(b"p"))) == len([key for key in range(5_000) if _is_left(key, number)])


def _is_left(key: int, number: int) -> bool:
    return key == 0 or all(key % (step + 2) == 0 for step in range(number + 1))


def test_a_reader_beside_a_busy_writer_sees_no_torn_page(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with SqliteStore(path) as store:
        store.set_many(b"p", [(b"%04d" % key, b"0") for key in range(2_000)])
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with SqliteStore(path, synced=False) as store:
                store.set_many(b"p", [(b"%04d" % key, b"%d" % number) for key in range(2_000)])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with SqliteStore(path) as reader:
            for _ in range(200):
                found = Unchanged.now(path)
                if found is None:
                    continue
                session = reader._local.session
                session.connection.close()
                session.connection, session.unchanged = _immutable(path), found
                rows = reader.scan_page(b"p", limit=5_000)
                assert len(set(rows.values)) == 1, "a part of a write"
                assert len(rows.keys) == 2_000
    finally:
        stop.set()
        thread.join()


def _immutable(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False)


def _frozen(path: Path) -> tuple[sqlite3.Connection, Unchanged]:
    unchanged = Unchanged.now(path)
    assert unchanged is not None
    return _immutable(path), unchanged


def test_a_reader_of_a_live_file_relies_on_nothing(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"v")
        connection, unchanged = connect_reading(tmp_path / "db", 1.0)
        connection.close()
        assert unchanged is None


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be looked at" * 20, os.urandom(5_000)])
def test_a_file_that_is_no_database_is_damaged(tmp_path: Path, content: bytes) -> None:
    """Repeating the call would not help."""
    place = tmp_path / "lake"
    strandline.open(place, create=True).close()
    (place / "metadata.db").write_bytes(content)
    with pytest.raises(errors.Corrupted, match="not a database") as failed:
        strandline.open(place)
    assert failed.value.exit_code == 11
    assert "restore" in failed.value.next
    assert (place / "metadata.db").read_bytes() == content


def test_a_damaged_page_is_damage_on_every_path(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        store.set_many(b"p", [(b"%06d" % key, b"x" * 200) for key in range(2_000)])
    raw = bytearray((tmp_path / "db").read_bytes())
    raw[4096:] = os.urandom(len(raw) - 4096)
    (tmp_path / "db").write_bytes(raw)
    with SqliteStore(tmp_path / "db") as store:
        for call in (lambda: list(store.scan(b"p")), lambda: store.set(b"p", b"000001", b"y")):
            with pytest.raises(errors.Corrupted):
                call()
