"""The shard service as a process: its clients, its tokens, its ends, and what is not one."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

import strandline
from strandline.envelope import decode, encode
from strandline.errors import (
    InvalidSettings,
    NotAllowed,
    OutcomeUnknown,
    ShardNotFound,
    StoreUnavailable,
)
from strandline.server.shards import ShardApp, serve
from strandline.shards.deciding.service import (
    TOKEN_VARIABLE,
    Decided,
    Refused,
    Request,
    ShardService,
)
from strandline.shards.state.state import ShardId, WriterId
from strandline.shards.state.transitions import Append, TooMuchInline, UpperIs
from strandline.testing.clock import ManualClock

SCHEMA = pa.schema([("x", pa.int64())])


def start(folder: Path, *options: str, token: str = "") -> tuple[subprocess.Popen[str], str]:
    """A service in a process of its own, and its address."""
    command = [sys.executable, "-m", "strandline.cli", "shard", "serve", "--lake", str(folder / "lake"), "--json"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | {TOKEN_VARIABLE: token}
    if "--port" not in options:
        options = ("--port", "0", *options)
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    return process, line.split('"url": "')[1].split('"')[0]


@contextmanager
def service(folder: Path, *options: str, token: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    process, url = start(folder, *options, token=token)
    try:
        yield process, url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        lake.repository("nyc", create=True).shard("it", SCHEMA)
    return tmp_path


@pytest.mark.server
def test_the_address_that_a_service_prints_is_its_address(folder: Path) -> None:
    """In the sentence for people too: nothing of it is taken for a secret."""
    command = [sys.executable, "-m", "strandline.cli", "shard", "serve", "--lake", str(folder / "lake"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].rstrip(".")
        with urllib.request.urlopen(f"{url}/health") as answer:
            assert answer.status == 200
    finally:
        process.terminate()
        process.wait()


def values(folder: Path) -> Counter[int]:
    with strandline.open(folder / "lake") as lake:
        found = lake.repository("nyc").shard("it").snapshot().to_arrow()
    return Counter(dict(zip(found.column("x").to_pylist(), found.column("_diff").to_pylist(), strict=True)))


@pytest.mark.server
def test_clients_of_a_service_swap_nothing_and_lose_nothing(folder: Path) -> None:
    with (
        service(folder) as (_, url),
        strandline.open(folder / "lake", shard_service=url, compaction=False) as lake,
        strandline.open(folder / "lake", shard_service=url, compaction=False) as other,
    ):
        shards = [one.repository("nyc").shard("it") for one in (lake, other)]

        def write(number: int) -> None:
            with shards[number % 2].writer() as writer:
                for at in range(20):
                    writer.append_next([((number * 100 + at, ()), 0, 1)])

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        upper = shards[0].upper.bound
        # only that each writer comes and goes is decided by the clients
        assert sum(shard.counts["consensus append"].requests for shard in shards) < 80
    assert upper == 160
    assert values(folder) == Counter({number * 100 + at: 1 for number in range(8) for at in range(20)})


@pytest.mark.server
@pytest.mark.timeout(200)
def test_a_service_that_is_killed_again_and_again_loses_and_doubles_nothing(folder: Path) -> None:
    """Two copies; one after the other is killed at random moments while four threads append."""
    rnd = random.Random(5)
    running = [start(folder) for _ in range(2)]
    urls = ",".join(url for _, url in running)
    acknowledged: list[int] = []
    unknown: list[int] = []
    failed: list[BaseException] = []
    is_over = threading.Event()
    with strandline.open(folder / "lake", shard_service=urls, compaction=False) as lake:
        shard = lake.repository("nyc").shard("it")

        def write(number: int) -> None:
            try:
                with shard.writer() as writer:
                    at = number * 1_000_000
                    while not is_over.is_set():
                        at += 1
                        try:
                            writer.append_next([((at, ()), 0, 1)])
                            acknowledged.append(at)
                        except OutcomeUnknown:
                            unknown.append(at)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(4):
                before = len(acknowledged)
                while len(acknowledged) < before + rnd.randrange(30, 80) and not failed:
                    is_over.wait(0.01)
                victim, url = running[number % 2]
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                running[number % 2] = start(folder, "--port", url.rpartition(":")[2])
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
            for process, _ in running:
                process.kill()
                process.wait()
    assert failed == []
    found = values(folder)
    assert all(count == 1 for count in found.values())
    assert set(acknowledged) <= set(found) <= set(acknowledged) | set(unknown)
    assert len(acknowledged) > 120


@pytest.mark.server
def test_a_second_service_compacts(folder: Path) -> None:
    with (
        service(folder) as (_, upkeep),
        service(folder, "--upkeep", upkeep) as (_, url),
        strandline.open(folder / "lake", shard_service=url) as lake,
    ):
        shard = lake.repository("nyc").shard("it")
        with shard.writer() as writer:
            for number in range(120):
                writer.append_next([((number, ()), 0, 1)])
            for _ in range(200):
                if len(shard.state.batches) < 30 and shard.state.rollups:
                    break
                writer.append_next([((1_000, ()), 0, 1)])
        state = shard.state
        assert len(state.batches) < 30
        assert state.rollups
        assert "blob put" not in shard.counts  # not by the client


@pytest.mark.server
def test_whoever_has_no_token_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(folder, token="secret") as (_, url), strandline.open(folder / "lake", shard_service=url) as lake:
        writer = lake.repository("nyc").shard("it").writer()
        for token in ("", "wrong"):
            monkeypatch.setenv(TOKEN_VARIABLE, token)
            with pytest.raises(NotAllowed, match="does not take the token"):
                writer.append_next([((1, ()), 0, 1)])
        for token in ("secret\n", "geheim!ä", "two words"):
            monkeypatch.setenv(TOKEN_VARIABLE, token)
            with pytest.raises(InvalidSettings, match="blanks, line ends or letters beyond ASCII"):
                writer.append_next([((1, ()), 0, 1)])
        monkeypatch.setenv(TOKEN_VARIABLE, "secret")
        assert writer.append_next([((1, ()), 0, 1)]) == 0


@pytest.mark.server
def test_what_a_service_is_not_made_for_is_refused(folder: Path) -> None:
    import urllib3

    pool = urllib3.PoolManager(retries=False)
    with service(folder) as (process, url), strandline.open(folder / "lake", shard_service=url) as lake:
        for path in ("/v1/health", "/health", "/healthz", "/livez", "/readyz"):
            assert pool.request("GET", url + path).status == 200
        assert pool.request("GET", f"{url}/v1/decide").status == 405
        assert pool.request("POST", f"{url}/elsewhere", body=b"").status == 404
        reply = pool.request("POST", f"{url}/v1/decide", body=b"nonsense")
        assert isinstance(decode(Decided | Refused, reply.data, "it"), Refused)
        client = ShardService([url], ManualClock())
        nothing = Append(WriterId("w"), 60, "token", 0, 1)
        with pytest.raises(ShardNotFound, match="is not the one that was opened"):
            client.decide(Request("nyc", "it", ShardId("another"), 1, 5.0, nothing))
        with pytest.raises(ShardNotFound, match="There is no shard 'nothing'"):
            client.decide(Request("nyc", "nothing", ShardId("another"), 1, 5.0, nothing))
        assert lake.repository("nyc").shard("it").upper.bound == 0


@pytest.mark.server
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_when_it_is_told_to(folder: Path, how: signal.Signals) -> None:
    with service(folder) as (process, url), strandline.open(folder / "lake", shard_service=url) as lake:
        lake.repository("nyc").shard("it").writer().append_next([((1, ()), 0, 1)])
        process.send_signal(how)
        process.wait(20)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert values(folder) == Counter({1: 1})


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Something that listens, and answers every request with the same."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def run() -> None:
            while True:
                try:
                    taken, _ = other.accept()
                except OSError:
                    return
                with taken:
                    taken.recv(65_536)
                    taken.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{other.getsockname()[1]}"
        other.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>",
        b"",
        b"nonsense",
    ],
    ids=["404", "502", "503", "a page", "nothing", "nonsense"],
)
def test_what_is_no_shard_service_is_left_alone(folder: Path, answer: bytes) -> None:
    """Whatever stands at the address: appends are done once, here."""
    with answering(answer) as url, strandline.open(folder / "lake", shard_service=url, compaction=False) as lake:
        with lake.repository("nyc").shard("it").writer() as writer:
            for number in range(3):
                assert writer.append_next([((number, ()), 0, 1)]) == number
            writer.compare_and_append([((7, ()), 3, 1)], 3, 4)
            assert lake.repository("nyc").shard("it").durable_reader("d").claim("me").bound == 0
    assert values(folder) == Counter({0: 1, 1: 1, 2: 1, 7: 1})


def test_serving_other_machines_needs_a_token(folder: Path) -> None:
    with strandline.open(folder / "lake") as lake:
        for host in ("0.0.0.0", "::"):
            with pytest.raises(InvalidSettings, match="STRANDLINE_SERVICE_TOKEN"):
                serve(lake, host, 0, "", lambda url: None)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(StoreUnavailable, match="Nobody can listen"):
                serve(lake, "127.0.0.1", taken.getsockname()[1], "", lambda url: None)


def test_commands_survive_their_journey(folder: Path) -> None:
    with strandline.open(folder / "lake") as lake:
        shard = lake.repository("nyc").shard("it")
        with shard.writer() as writer:
            batch = writer._written([((1, ()), 0, 1)], 0, 1)
        command = Append(writer.id, 60, "token", 0, 1, batch)
        request = Request("nyc", "it", shard.id, 1, 5.0, command)
        assert decode(Request, encode(request), "it") == request
        app = ShardApp(lake)
        first, again, other = (
            decode(Decided | Refused, app.decide(encode(one), time.monotonic() + 5), "it")
            for one in (
                request,
                request,
                Request("nyc", "it", shard.id, 1, 5.0, Append(WriterId("x"), 60, "t", 0, 1)),
            )
        )
    assert isinstance(first, Decided)
    assert [seqno for seqno, _ in first.records] == [2]
    assert isinstance(again, Decided)
    assert isinstance(other, Decided)
    assert isinstance(other.outcome, UpperIs)
    assert not isinstance(first.outcome, TooMuchInline)
    app.close()


def test_a_command_that_waited_too_long_is_not_decided(folder: Path) -> None:
    with strandline.open(folder / "lake") as lake:
        shard = lake.repository("nyc").shard("it")
        request = Request("nyc", "it", shard.id, 1, 5.0, Append(WriterId("w"), 60, "token", 0, 1))
        app = ShardApp(lake)
        for late in (request, replace(request, timeout_s=-1.0)):
            until = time.monotonic() + (-1 if late is request else 5)
            found = decode(Decided | Refused, app.decide(encode(late), until), "it")
            assert isinstance(found, Refused)
            assert found.kind == "Contention"
        assert shard.upper.bound == 0
        app.close()


@pytest.mark.server
def test_threads_that_share_a_writer_meet_a_service_that_dies(folder: Path) -> None:
    """All threads append through one handle; what none of them can tell is said, and nothing is there twice."""
    process, url = start(folder)
    acknowledged: list[int] = []
    unknown: list[int] = []
    with strandline.open(folder / "lake", shard_service=url, compaction=False) as lake:
        with lake.repository("nyc").shard("it").writer() as writer:

            def write(number: int) -> None:
                for at in range(number * 100, number * 100 + 40):
                    try:
                        writer.append_next([((at, ()), 0, 1)])
                        acknowledged.append(at)
                    except OutcomeUnknown:
                        unknown.append(at)

            threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            while len(acknowledged) < 60:
                time.sleep(0.005)
            process.kill()
            process.wait()
            for thread in threads:
                thread.join()
    assert len(acknowledged) + len(unknown) == 240
    found = values(folder)
    assert all(count == 1 for count in found.values())
    assert set(acknowledged) <= set(found) <= set(acknowledged) | set(unknown)
