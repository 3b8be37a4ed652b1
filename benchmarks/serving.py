"""How many requests a second does `strandline serve` answer, and what does one cost?

One worker on SQLite and local files without syncs, beside 100,000 committed objects, with clients in a process of their
own that keep their connections: Basic for REST, signatures for S3. The targets are what lakeFS 1.84 answered on two
cores, which does not sync either (issue 20).
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import http.client
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import uvloop
from blake3 import blake3

import strandline
from benchmarks.harness import Result, fill, folder, result
from strandline.blob.local import LocalBlobStore

CLIENTS = (1, 8, 32, 128)
SECONDS = 2.0
ROUNDS = 3
OBJECTS = 100_000
SETTING = "one worker, unsynced"
Numbers = tuple[float | None, ...]
TARGETS: dict[str, Numbers] = {
    "stat of a committed object": (None, 11_600, 11_800, 10_500),
    "stat of a staged object": (22_000, 22_000, 22_000, 22_000),
    "stage": (6_000, 11_760, 11_595, 15_169),
    "upload of 1 KiB by REST": (3_412, 9_060, 10_273, 11_413),
    "upload of 1 KiB by S3": (3_237, 7_221, 9_759, 10_350),
}
PROCESSOR_US = {"stage": 70.0, "upload of 1 KiB by REST": 110.0}
P99_MS = 20.0
LIST_TARGET = 292_000.0
BULK_TARGET = 50_000.0
STARTED_WITHIN_S = 1.0
RSS_MIB = 300.0
STREAM_BYTES = 1 << 30
PART_BYTES = 256 << 20
PARTS = 20
AT_ONCE = 4
OF_HASHES, OF_STORE = 0.8, 0.6
MIB = 1 << 20


def run() -> list[Result]:
    with folder() as place:
        with strandline.open(place / "lake", create=True, synced=False) as lake:
            main = lake.repository("bench", create=True).branch("main")
            fill(main, OBJECTS, prefix="data")
        server = Server(place)
        try:
            return [*_requests(server), *_lists(server), *_bulk(server), *_streams(server, place), *_ends(server)]
        finally:
            server.stop()


class Server:
    """A server in a process of its own."""

    def __init__(self, place: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "strandline.cli",
            "serve",
            str(place / "lake"),
            "--no-sync",
            "--port",
            "0",
            "--json",
        ]
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        keys = json.loads(self.process.stdout.readline())
        self.address = json.loads(self.process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{self.address}/_health") as response:
            assert response.status == 200
        self.started_s = time.perf_counter() - began
        self.key, self.secret = keys["access_key_id"], keys["secret_access_key"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request of REST, and its answer from JSON."""
        token = base64.b64encode(f"{self.key}:{self.secret}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/api/v1{path}", data, headers, method=method)
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def processor_s(self) -> float:
        """The processor time that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """The memory that the server holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def _requests(server: Server) -> list[Result]:
    commit = server.ask("GET", "/repositories/bench/branches/main")["commit_id"]
    rates: dict[tuple[str, int], list[float]] = {}
    costs: dict[tuple[str, int], list[float]] = {}
    late: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):  # in turn, so that a slow moment of the machine meets all alike
        for clients in CLIENTS:
            for kind in TARGETS:
                before = server.processor_s()
                count, wall_s, p99_ms = _load(server, kind, clients, commit)
                rates.setdefault((kind, clients), []).append(count / wall_s)
                costs.setdefault((kind, clients), []).append((server.processor_s() - before) / count * 1e6)
                late.setdefault((kind, clients), []).append(p99_ms)
    found = []
    for kind, targets in TARGETS.items():
        for clients, target in zip(CLIENTS, targets, strict=True):
            setting = f"{SETTING}, {clients} clients"
            best = [max(rates[kind, clients])]
            found.append(result(kind, best, "1/s", target, "more", setting))
            if clients == 32:
                wanted = PROCESSOR_US.get(kind)
                found.append(result(f"{kind}: processor", [min(costs[kind, 32])], "µs", wanted, "less", setting))
                found.append(result(f"{kind}: p99", [min(late[kind, 32])], "ms", P99_MS, "less", setting))
    return found


def _load(server: Server, kind: str, clients: int, commit: str) -> tuple[int, float, float]:
    arguments = [server.address, server.key, server.secret, kind, str(clients), commit]
    command = [sys.executable, "-m", "benchmarks.serving", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    count, wall_s, p99_ms = json.loads(done.stdout)
    return count, wall_s, p99_ms


def _lists(server: Server) -> list[Result]:
    commit = server.ask("GET", "/repositories/bench/branches/main")["commit_id"]
    best = 0.0
    for _ in range(ROUNDS):
        count, wall_s, _ = _load(server, "list", 8, commit)
        best = max(best, 1_000 * count / wall_s)
    return [result("list pages of 1,000", [best], "entries/s", LIST_TARGET, "more", f"{SETTING}, 8 clients")]


def _bulk(server: Server) -> list[Result]:
    one = {"physical_address": "s3://elsewhere/x", "checksum": "x", "size_bytes": 1}
    objects = [{**one, "path": f"bulk/{number:06d}"} for number in range(20_000)]
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        server.ask("POST", "/repositories/bench/branches/main/objects/stage", {"objects": objects})
        best = max(best, len(objects) / (time.perf_counter() - began))
    return [result("stage in bulk", [best], "entries/s", BULK_TARGET, "more", SETTING)]


def _streams(server: Server, place: Path) -> list[Result]:
    """One large object in one request; and 5 GiB in parts, four at a time, beside what the disk takes by itself."""
    best, client_s = 0.0, 0.0
    for number in range(ROUNDS):
        wall_s, used_s = _push(server, f"/bench/main/large/{number}", STREAM_BYTES)
        if STREAM_BYTES / wall_s > best:
            best, client_s = STREAM_BYTES / wall_s, used_s
    hashes = max(_hash_rate() for _ in range(ROUNDS))
    written = max(_write_rate(place / f"own-{number}") for number in range(2))
    os.sync()
    target = "/bench/main/parts/one"
    upload = _s3(server, "POST", f"{target}?uploads=").split("<UploadId>")[1].split("<")[0]
    peak = [server.rss_mib()]
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        parts = [f"{target}?partNumber={number}&uploadId={upload}" for number in range(1, PARTS + 1)]
        running = [pool.submit(_push, server, part, PART_BYTES) for part in parts]
        while not all(one.done() for one in running):
            peak.append(server.rss_mib())
            time.sleep(0.05)
    wall_s = time.perf_counter() - began
    md5 = hashlib.md5(bytes(PART_BYTES)).hexdigest()
    listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{md5}</ETag></Part>" for n in range(1, PARTS + 1))
    began = time.perf_counter()
    _s3(server, "POST", f"{target}?uploadId={upload}", f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>")
    completed_s = time.perf_counter() - began
    rate = PARTS * PART_BYTES / wall_s
    return [
        result("one stream of 1 GiB", [best / MIB], "MiB/s", None, "more", SETTING),
        result("one stream ÷ MD5 and BLAKE3 alone", [best / hashes], "×", OF_HASHES, "more", SETTING),
        result("one stream: the client's processor", [client_s], "s", None, "less", SETTING),
        result("5 GiB in 4 parts at a time", [rate / MIB], "MiB/s", None, "more", SETTING),
        result("4 parts at a time ÷ the disk alone", [rate / written], "×", OF_STORE, "more", SETTING),
        result("completing 5 GiB", [completed_s], "s", None, "less", SETTING),
        result("memory of a worker while 5 GiB come", [max(peak)], "MiB", RSS_MIB, "less", SETTING),
    ]


def _push(server: Server, target: str, size: int) -> tuple[float, float]:
    """Send so many bytes from a process of its own; how long it took, and what processor time the client used."""
    command = [sys.executable, "-m", "benchmarks.serving", "push", server.address, server.key, server.secret]
    done = subprocess.run([*command, target, str(size)], stdout=subprocess.PIPE, text=True, check=True)
    wall_s, used_s = json.loads(done.stdout)
    return wall_s, used_s


def _hash_rate() -> float:
    """Bytes a second of the two hashes of an upload, in one thread."""
    data, md5, digest = os.urandom(MIB), hashlib.md5(), blake3()
    began = time.perf_counter()
    for _ in range(256):
        md5.update(data)
        digest.update(data)
    return 256 * MIB / (time.perf_counter() - began)


def _write_rate(folder: Path) -> float:
    """Bytes a second that the disk takes without a server: as many parts, from as many threads, into one file.

    It has to be all 5 GiB: the first of them go into memory, at twenty times the disk's speed.
    """
    store = LocalBlobStore(folder, synced=False)
    os.sync()  # what was written before is not paid for here
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda n: store.put_at("x", n * PART_BYTES, cast("BinaryIO", Zeros(PART_BYTES))), range(PARTS)))
    wall_s = time.perf_counter() - began
    shutil.rmtree(folder)
    return PARTS * PART_BYTES / wall_s


class Zeros:
    """A file of zeros."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        taken = bytes(min(self.left, MIB if size < 0 else size))
        self.left -= len(taken)
        return taken


def _s3(server: Server, method: str, target: str, body: str = "") -> str:
    """A request of S3 with a small body."""
    host, _, port = server.address.partition("://")[2].partition(":")
    link = http.client.HTTPConnection(host, int(port), timeout=600)
    link.request(method, target, body.encode(), unsigned(f"{host}:{port}", server.key, server.secret, method, target))
    answer = link.getresponse()
    shown = answer.read().decode()
    if answer.status != 200:
        raise RuntimeError(shown)
    return shown


def unsigned(host: str, key: str, secret: str, method: str, target: str) -> dict[str, str]:
    """Headers that sign a request of S3 whose body is not signed."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    path, _, query = target.partition("?")
    canonical_query = "&".join(sorted(query.split("&"))) if query else ""
    names = "host;x-amz-content-sha256;x-amz-date"
    head = f"host:{host}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:{date}\n"
    canonical = f"{method}\n{path}\n{canonical_query}\n{head}\n{names}\nUNSIGNED-PAYLOAD"
    scope = f"{date[:8]}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(_signing_key(secret, date[:8]), text.encode(), hashlib.sha256).hexdigest()
    credential = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {"Authorization": credential, "x-amz-date": date, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}


def push(address: str, key: str, secret: str, target: str, size: int) -> tuple[float, float]:
    """Send a body of zeros."""
    place = address.partition("://")[2]
    host, _, port = place.partition(":")
    link = http.client.HTTPConnection(host, int(port), timeout=600, blocksize=MIB)
    headers = unsigned(place, key, secret, "PUT", target) | {"Content-Length": str(size)}
    began, used = time.perf_counter(), time.process_time()
    link.request("PUT", target, Zeros(size), headers)
    answer = link.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read())
    return time.perf_counter() - began, time.process_time() - used


def _ends(server: Server) -> list[Result]:
    return [
        result("from the start to health", [server.started_s], "s", STARTED_WITHIN_S, "less", SETTING),
        result("memory of a worker after all of it", [server.rss_mib()], "MiB", RSS_MIB, "less", SETTING),
    ]


# --- the clients ------------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Sends the next request when the last one was answered."""

    def __init__(self, make: Callable[[], bytes], until: float, took: list[float]) -> None:
        self.make, self.until, self.took = make, until, took
        self.held = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.at = time.perf_counter()
        if self.at > self.until:
            self.transport.close()
            self.ended.set_result(None)
            return
        self.transport.write(self.make())

    def data_received(self, data: bytes) -> None:
        self.held += data
        end = self.held.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.held.find(b"Content-Length: ", 0, end + 2)
        length = int(self.held[at + 16 : self.held.index(b"\r", at)]) if at >= 0 else 0
        if len(self.held) < end + 4 + length:
            return
        if self.held[9:10] != b"2":
            raise RuntimeError(self.held[:400])
        self.held = b""
        self.took.append(time.perf_counter() - self.at)
        self.send()


def a_path(most: int = OBJECTS) -> str:
    """One of the first committed objects (`harness.entries`)."""
    number = random.randrange(most)
    return f"data/{number // 1000:05d}/part-{number:08d}.parquet"


def maker(address: str, key: str, secret: str, kind: str, commit: str) -> Callable[[], bytes]:
    """Makes the requests of a kind."""
    host = address.partition("://")[2]
    basic = base64.b64encode(f"{key}:{secret}".encode()).decode()
    head = f" HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {basic}\r\n".encode()
    run, numbers, body = os.urandom(4).hex(), itertools.count(), os.urandom(1024)
    base = b"/api/v1/repositories/bench/"

    def stat(ref: str) -> bytes:
        place = f"refs/{ref}/objects/stat?path={a_path()}".encode()
        return b"GET " + base + place + head + b"\r\n"

    def listed() -> bytes:
        place = f"refs/{commit}/objects/ls?amount=1000&after={a_path(OBJECTS - 2_000)}".encode()
        return b"GET " + base + place + head + b"\r\n"

    def upload() -> bytes:
        place = f"branches/main/objects?path=up/{run}/{next(numbers):08d}".encode()
        return b"POST " + base + place + head + b"Content-Length: 1024\r\n\r\n" + body

    def sign() -> bytes:
        return signed(host, key, secret, f"/bench/main/s3/{run}/{next(numbers):08d}", body)

    if kind == "stage":
        return staging(address, key, secret, head, base, run)
    kinds: dict[str, Callable[[], bytes]] = {
        "stat of a committed object": lambda: stat(commit),
        "stat of a staged object": lambda: stat("main"),
        "list": listed,
        "upload of 1 KiB by REST": upload,
        "upload of 1 KiB by S3": sign,
    }
    return kinds[kind]


def staging(address: str, key: str, secret: str, head: bytes, base: bytes, run: str) -> Callable[[], bytes]:
    """Links objects whose bytes are there already, each again and again."""
    token = base64.b64encode(f"{key}:{secret}".encode()).decode()
    place = f"{address}{base.decode()}branches/main/staging/backing?path=st/{run}"
    requests = []
    for number in range(64):
        asked = urllib.request.Request(f"{place}/{number}&presign=true", headers={"Authorization": f"Basic {token}"})
        with urllib.request.urlopen(asked) as response:
            location = json.load(response)
        with urllib.request.urlopen(urllib.request.Request(location["presigned_url"], b"bytes", method="PUT")):
            pass
        given = {"staging": {"physical_address": location["physical_address"]}, "checksum": "x", "size_bytes": 5}
        body = json.dumps(given).encode()
        path = f"branches/main/staging/backing?path=st/{run}/{number}".encode()
        requests.append(b"PUT " + base + path + head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    turns = itertools.cycle(requests)
    return lambda: next(turns)


def signed(host: str, key: str, secret: str, path: str, body: bytes) -> bytes:
    """A put of S3, signed by version 4."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    sha = hashlib.sha256(body).hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"PUT\n{path}\n\nhost:{host}\nx-amz-content-sha256:{sha}\nx-amz-date:{date}\n\n{names}\n{sha}"
    scope = f"{date[:8]}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(_signing_key(secret, date[:8]), text.encode(), hashlib.sha256).hexdigest()
    credential = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    head = f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {credential}\r\nx-amz-date: {date}\r\n"
    return f"{head}x-amz-content-sha256: {sha}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


_keys: dict[str, bytes] = {}


def _signing_key(secret: str, day: str) -> bytes:
    if day not in _keys:
        found = f"AWS4{secret}".encode()
        for part in (day, "us-east-1", "s3", "aws4_request"):
            found = hmac.new(found, part.encode(), hashlib.sha256).digest()
        _keys[day] = found
    return _keys[day]


async def load(address: str, make: Callable[[], bytes], clients: int) -> tuple[int, float, float]:
    """Requests of so many clients; how many there were, how long it took, and the slowest of a hundred."""
    host, _, port = address.partition("://")[2].partition(":")
    loop = asyncio.get_running_loop()
    took: list[float] = []
    began = time.perf_counter()
    made = [
        (await loop.create_connection(lambda: Client(make, began + SECONDS, took), host, int(port)))[1]
        for _ in range(clients)
    ]
    await asyncio.gather(*(one.ended for one in made))
    wall_s = time.perf_counter() - began
    took.sort()
    return len(took), wall_s, took[int(len(took) * 0.99)] * 1_000


if __name__ == "__main__" and sys.argv[1] == "push":
    address, key, secret, target, size = sys.argv[2:]
    print(json.dumps(push(address, key, secret, target, int(size))))
elif __name__ == "__main__":
    address, key, secret, kind, clients, commit = sys.argv[1:]
    print(json.dumps(uvloop.run(load(address, maker(address, key, secret, kind, commit), int(clients)))))
