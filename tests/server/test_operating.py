"""What operators rely on: TLS and its renewal, proxies, other sites' pages, several workers, metrics, limits."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import strandline
from strandline.errors import InvalidSettings
from strandline.server.configuration import configure
from strandline.server.observing import all_metrics
from strandline.server.rest import face
from strandline.server.serve import raise_open_files
from strandline.server.services import Options
from strandline.tree.cache import ByteBoundedCache
from strandline.tree.store import TreeStore
from tests.harness.serving import Served, serving
from tests.server.inside import BASE, Asked, Inside, body_of, inside, run

pytestmark = pytest.mark.server


def make_certificate(folder: Path, serial: int) -> None:
    """A certificate of localhost, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(serial).not_valid_before(datetime.now(UTC) - timedelta(1))
    made = made.not_valid_after(datetime.now(UTC) + timedelta(1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(private)


def serial_of(served: Served) -> int:
    """The serial number of the certificate that a server shows."""
    port = int(served.address.rpartition(":")[2])
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", port)).encode()).serial_number


def test_tls_and_its_renewal(folder: Path) -> None:
    make_certificate(folder, 1)
    with serving(folder, "lake", "--cert", "cert.pem", "--key", "key.pem") as served:
        assert served.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        place = served.address.replace("127.0.0.1", "localhost")
        with urllib.request.urlopen(f"{place}/_health", context=context) as response:
            assert response.status == 200
        with pytest.raises(OSError):
            urllib.request.urlopen(served.address.replace("https", "http") + "/_health", timeout=5)
        assert serial_of(served) == 1
        (folder / "cert.pem").write_text("no certificate")
        served.process.send_signal(signal.SIGHUP)  # what cannot be used changes nothing
        time.sleep(0.5)
        assert serial_of(served) == 1
        make_certificate(folder, 2)
        served.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 10
        while serial_of(served) != 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert serial_of(served) == 2


def test_a_certificate_that_cannot_be_used_leaves_nothing_behind(folder: Path) -> None:
    """The keys of the first admin are shown once: they must not be made by a start that fails."""
    (folder / "c.pem").write_text("no certificate")
    command = [sys.executable, "-m", "strandline.cli", "serve", "lake", "--cert", "c.pem", "--key", "c.pem"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2
    assert "cannot be used" in done.stderr
    assert not (folder / "lake").exists()


def code_of(request: urllib.request.Request | str) -> int:
    try:
        with urllib.request.urlopen(request) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_name_that_is_not_the_servers_is_refused(served: Served) -> None:
    """Another site's page can make a browser ask this machine, under that site's name."""
    for host, expected in (("evil.example", 421), ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200)):
        for path in ("/_health", "/openapi.json"):
            request = urllib.request.Request(served.address + path, headers={"Host": host})
            assert code_of(request) == expected, host


def test_hosts_below_the_domain_of_buckets_are_the_servers() -> None:
    async def test(server: Inside) -> None:
        for host, expected in (("nyc.lake.example", 403), ("lake.example", 200), ("other.example", 421)):
            response = await server.ask("GET", "/_health", headers={"host": host}, login=None)
            assert response.status == expected, host

    with inside(Options(hosts=frozenset({"localhost"}), s3_domain="lake.example")) as server:
        run(test(server))


def test_pages_of_some_sites_may_read_answers(folder: Path) -> None:
    with serving(folder, "lake", "--cors", "https://app.example") as served:

        def ask(method: str, origin: str) -> Any:
            headers = {"Origin": origin, "Access-Control-Request-Method": "PUT"}
            request = urllib.request.Request(f"{served.address}/openapi.json", headers=headers, method=method)
            with urllib.request.urlopen(request) as response:
                return response.status, response.headers

        status, headers = ask("OPTIONS", "https://app.example")
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, "https://app.example")
        assert "PUT" in headers["Access-Control-Allow-Methods"]
        assert "Access-Control-Allow-Credentials" not in headers
        assert ask("GET", "https://app.example")[1]["Access-Control-Allow-Origin"] == "https://app.example"
        assert "Access-Control-Allow-Origin" not in ask("GET", "https://other.example")[1]
        with pytest.raises(urllib.error.HTTPError):
            ask("OPTIONS", "https://other.example")


@pytest.mark.parametrize("http", ["own", "plain"])
def test_a_proxys_word_counts_if_it_is_trusted(folder: Path, http: str) -> None:
    options = ("--trusted-proxies", "127.0.0.0/8", "--access-log", "--http", http)
    with serving(folder, "lake", *options) as served:
        for forwarded in ("203.0.113.7", "10.0.0.1, ::ffff:203.0.113.8", "nonsense"):
            request = urllib.request.Request(f"{served.address}/_health", headers={"X-Forwarded-For": forwarded})
            assert code_of(request) == 200
        served.process.terminate()
        assert served.process.stderr is not None
        lines = [json.loads(line) for line in served.process.stderr.read().splitlines() if line.startswith("{")]
        assert [line["peer"] for line in lines] == ["203.0.113.7", "203.0.113.8", "nonsense"]
        assert all(line["id"] and line["ms"] > 0 for line in lines)


def test_metrics_of_workers_are_added_up(tmp_path: Path) -> None:
    text = (
        "# HELP strandline_requests_total Requests\n# TYPE strandline_requests_total counter\n"
        'strandline_requests_total{operation="an \\"odd\\" one",status="200"} 3.0\n'
        "# HELP process_open_fds Files\n# TYPE process_open_fds gauge\nprocess_open_fds 7.0\n"
    )
    for number in (1, 2):  # two other workers, one of which has died
        (tmp_path / f"{number}.prom").write_text(text)
    found = all_metrics(tmp_path).decode()
    assert 'strandline_requests_total{operation="an \\"odd\\" one",status="200"} 6.0' in found
    assert "process_open_fds" not in found
    assert (tmp_path / f"{os.getpid()}.prom").exists()


def test_workers_that_never_begin_are_not_started_for_ever() -> None:
    script = (
        "from strandline.server import supervisor; supervisor.BACKOFF_S = 0.01; supervisor.BACKOFF_MAX_S = 0.02\n"
        "from strandline.errors import StoreUnavailable\n"
        "def work(begun):\n    raise SystemExit(3)\n"
        "try:\n    supervisor.Supervisor(2, work).run(lambda: print('ready'))\n"
        "except StoreUnavailable as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "No worker could be started" in done.stdout
    assert "ready" not in done.stdout


def test_connections_are_as_many_as_files_can_be_opened() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        most = raise_open_files()
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert now == min(16_384, before[1]) > 256
        assert 64 <= most < now
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_trailers_are_bounded(served: Served) -> None:
    """Nobody has to show a key to send them."""
    host, port = served.host.split(":")
    with socket.create_connection((host, int(port)), 10) as link:
        link.sendall(
            b"POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: a"
        )
        sent = 0
        with pytest.raises(OSError):
            for _ in range(2_000):
                link.sendall(b"a" * 65_536)
                sent += 65_536
                if b" 431 " in _peeked(link):
                    raise ConnectionError
        assert sent < 64 << 20


def _peeked(link: socket.socket) -> bytes:
    link.setblocking(False)
    try:
        return link.recv(4096)
    except BlockingIOError:
        return b""
    finally:
        link.setblocking(True)


def test_a_large_document_keeps_no_small_body_out(served: Served) -> None:
    """Documents of 64 MiB that are nearly there have bounds of their own."""
    host, port = served.host.split(":")
    import base64

    login = base64.b64encode(f"{served.key}:{served.secret}".encode()).decode()
    head = (
        f"POST /api/v1/repositories/none/branches/main/objects/stage HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Basic {login}\r\nContent-Length: {64 << 20}\r\n\r\n"
    ).encode()
    links = [socket.create_connection((host, int(port)), 30) for _ in range(2)]
    try:
        fills = [
            threading.Thread(target=link.sendall, args=(head + b" " * ((63 << 20) + 1_000_000),)) for link in links
        ]
        for one in fills:
            one.start()
        for one in fills:
            one.join(60)
        request = urllib.request.Request(
            f"{served.address}/api/v1/auth/users", b'{"id": "beside"}', {"Authorization": f"Basic {login}"}
        )
        assert code_of(request) in (201, 409)
    finally:
        for link in links:
            link.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trusted_proxies = 5", "trusted_proxies"),
        ("lake = 5", "lake"),
        ("port = true", "port"),
        ("workers = 1.5", "workers"),
        ("[lake]\nkv = 5", "kv"),
    ],
)
def test_odd_types_in_a_file_are_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(InvalidSettings, match=said):
        configure(tmp_path / "lake", file=tmp_path / "server.toml", environment={})


def test_large_objects_may_be_forbidden() -> None:
    async def test(server: Inside) -> None:
        server.lake.create_repository("repo")
        target = f"{BASE}/repositories/repo/branches/main/objects?path=x"
        data = b"x" * 3_000_000
        assert (await server.ask("POST", target, data)).status == 413
        chunked = {"transfer-encoding": "chunked"}
        assert (await server.ask("POST", target, data, chunked)).status == 413
        assert (await server.sign("PUT", "/repo/main/x", data)).status == 400
        assert not server.lake.repository("repo").branch("main").exists("x")

    with inside(Options(object_max_bytes=2_000_000)) as server:
        run(test(server))


def test_the_event_loop_reads_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a quick request needs and is not in memory is read by a thread: others are served meanwhile."""
    real, readers = TreeStore._load, list[str]()

    def load(self: TreeStore, key: str, what: str) -> bytes:
        data = real(self, key, what)
        readers.append(threading.current_thread().name)
        return data

    held, forgets = ByteBoundedCache.get, [False]
    monkeypatch.setattr(TreeStore, "_load", load)
    monkeypatch.setattr(ByteBoundedCache, "get", lambda self, key: None if forgets[0] else held(self, key))

    async def test(server: Inside) -> None:
        main = server.lake.create_repository("repo").branch("main")
        for n in range(30):
            main.put(f"{n % 7}/{n}", b"x")
        commit = main.commit("first").id
        repo = f"{BASE}/repositories/repo"
        quick = (
            f"{repo}/refs/main/objects/stat?path=1/1",
            f"{repo}/refs/{commit}/objects/ls?delimiter=/",
            f"{repo}/refs/main/objects/ls",
            f"{repo}/refs/main/objects?path=2/2",
        )
        await server.ask("GET", f"{repo}/branches/main")  # handles are opened
        for target in quick:
            before = len(readers)
            forgets[0] = True
            cold = await server.ask("GET", target)
            forgets[0] = False
            assert cold.status == 200
            assert len(readers) > before, target
            assert body_of(await server.ask("GET", target)) == body_of(cold)
        assert threading.main_thread().name not in readers

    with inside(lake=strandline.open(tmp_path, create=True, synced=False)) as server:
        run(test(server))


def test_a_large_list_is_read_beside_the_loop_and_not_for_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "DECODED_HERE_MAX_BYTES", 100)
    names = list[str]()

    async def test(server: Inside) -> None:
        server.lake.create_repository("repo")
        one = {"physical_address": "s3://elsewhere/x", "checksum": "x", "size_bytes": 1}
        body = json.dumps({"objects": [{**one, "path": f"a/{n}"} for n in range(50)]}).encode()
        target = f"{BASE}/repositories/repo/branches/main/objects/stage"
        assert (await server.ask("POST", target, body)).status == 200
        assert (await server.ask("POST", target, body[:-3])).status == 400
        stranger = server.user("stranger", "FSReadAll")
        monkeypatch.setattr(Asked, "collect", lambda *_: names.append("its body was taken"))
        assert (await server.ask("POST", target, body, login=stranger)).status == 401
        assert names == []

    with inside() as server:
        run(test(server))
