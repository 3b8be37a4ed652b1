"""A planted secret is looked for in everything that people and programs get to see."""

from __future__ import annotations

import logging
import pickle
import string
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.cli import run
from strandline.errors import InvalidSettings, StrandlineError
from strandline.fs import StrandlineFileSystem
from strandline.kv import open_store
from strandline.lake import Lake
from strandline.operations import operation, warning
from strandline.redaction import Secret, SecretUrl, redacted, without_secrets
from strandline.server.shards import ShardApp

PLANTED = "hunter2"
ADDRESSES = [
    f"postgresql://u:{PLANTED}@127.0.0.1:1/x",
    f"postgresql://127.0.0.1:1/x?user=u&password={PLANTED}",
    f"postgresql//u:{PLANTED}@127.0.0.1:1/x",
    f"postgresql:/u:{PLANTED}@127.0.0.1:1/x",
    f"postgresql:u:{PLANTED}@127.0.0.1:1/x",
    f"u:{PLANTED}@127.0.0.1/x",
    f"postgresql://u:a/{PLANTED}@127.0.0.1:1/x",
    f"postgresql://u:a@{PLANTED}@127.0.0.1:1/x",
    f"postgresql://u:a?{PLANTED}@127.0.0.1:1/x",
    f"postgresql://u:{PLANTED}/x",
    f"redis://:{PLANTED}@127.0.0.1:1",
    f"redis://:{PLANTED}@127.0.0.1:notaport",
    f"redis://:{PLANTED}@127.0.0.1:1?bogus=1",
    f"redis://127.0.0.1:1?password={PLANTED}",
    f"nobody://u:{PLANTED}@h",
]
BUCKETS = [
    f"s3://AK:{PLANTED}@bucket/x",
    f"s3://bucket/x?secret_access_key={PLANTED}",
    f"s3://bucket/x?endpoint=http://u:{PLANTED}@127.0.0.1:1",
    f"s3://bucket/x?endpoint=http%3A%2F%2Fu%3A{PLANTED}%40h",
    f"gs://u:{PLANTED}@bucket",
    f"az://container/x?sig={PLANTED}",
    f"az://container/x?sas_token={PLANTED}",
    f"ftp://u:{PLANTED}@h/x",
]


def all_of(error: BaseException) -> str:
    """What a program that fails prints, and what a log of it holds."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))


@pytest.mark.parametrize("kv", ADDRESSES)
def test_no_error_of_a_key_value_store_shows_a_secret(kv: str, tmp_path: Path) -> None:
    with pytest.raises(StrandlineError) as failed:
        strandline.open(kv=kv, blob=str(tmp_path / "data"), create=True)
    assert PLANTED not in all_of(failed.value)


@pytest.mark.parametrize("url", BUCKETS)
@pytest.mark.parametrize(
    "call",
    [
        lambda lake, url: lake.repository("nyc").branch("main").import_objects(url, "in/"),
        lambda lake, url: lake.backup(url),
        lambda lake, url: lake.restore(url),
        lambda lake, url: lake.create_repository("other", namespace=url),
        lambda lake, url: lake.repository("nyc").branch("main").export(url),
        lambda lake, url: lake.repository("nyc").branch("main").range_jobs.load("in/", url, job="j", owner="ring"),
        lambda _, url: strandline.open(kv="memory://", blob=url, create=True),
    ],
    ids=["import", "backup", "restore", "namespace", "export", "range load", "open"],
)
def test_an_object_store_takes_no_credentials_from_its_address(
    url: str, call: Callable[[Lake, str], object], tmp_path: Path
) -> None:
    """They would be written into metadata that every reader of the lake reads."""
    with strandline.open(tmp_path / "lake", create=True) as lake:
        repo = lake.repository("nyc", create=True)
        repo.lock_owners.register("ring", "a test")
        with pytest.raises(StrandlineError) as failed:
            call(lake, url)
        assert PLANTED not in all_of(failed.value)
        assert isinstance(failed.value, InvalidSettings)
        assert "credentials" in failed.value.what
    assert not any(PLANTED.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("address", [*ADDRESSES, *BUCKETS])
@pytest.mark.parametrize(
    "command", ["init {}", "import {} nyc/main/in", "backup {}", "restore {}", "export nyc/main {}"]
)
def test_no_command_shows_a_secret(
    address: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_LAKE", str(tmp_path / "lake"))
    assert run(["init", "lake"]) == 0
    assert run(["repo", "create", "nyc"]) == 0
    capsys.readouterr()
    run([address if word == "{}" else word for word in command.split()])
    shown = capsys.readouterr()
    assert PLANTED not in shown.out + shown.err


def test_a_settings_file_keeps_its_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lake.toml"
    file.write_text(f'kv = "postgresql://u:{PLANTED}@127.0.0.1:1/x"\nblob = "data"\n')
    assert run(["init", str(file)]) == 9
    assert run(["ls", "nyc/main", "--lake", str(file)]) == 9
    shown = capsys.readouterr()
    assert PLANTED not in shown.out + shown.err


def test_handles_of_a_server_hold_no_secret_that_shows(postgres_url: str) -> None:
    """`vars`, `repr` and a pickle of everything between a lake and its connections."""
    kv = postgres_url.replace("test@", f"test:{PLANTED}@")
    assert PLANTED in kv
    with strandline.open(kv=kv, blob="memory://secrets", tenant="secrets", create=True) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        seen, todo = set(), [lake, main, lake._kv, main._core]
        while todo:
            one = todo.pop()
            if id(one) in seen or not type(one).__module__.startswith("strandline"):
                continue
            seen.add(id(one))
            held = getattr(one, "__dict__", {})
            assert PLANTED not in repr(one) + str(one) + repr(held)
            todo += [
                *held.values(),
                *(getattr(one, name, None) for name in getattr(one, "__slots__", ()) if name != "_revealed"),
            ]
        assert len(seen) > 5
        assert PLANTED.encode() not in pickle.dumps(lake) + pickle.dumps(main)
    file_system = StrandlineFileSystem(kv=kv, blob="memory://secrets", tenant="secrets")
    assert PLANTED not in repr(vars(file_system)) + file_system.to_json()
    assert PLANTED.encode() not in pickle.dumps(file_system)


def test_the_token_of_a_service_does_not_show(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        assert PLANTED not in repr(vars(ShardApp(lake, PLANTED)))


def test_logs_and_spans_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    url = f"s3://AK:{PLANTED}@bucket/x"
    with caplog.at_level(logging.DEBUG, "strandline"), operation("export", url):
        warning("%s failed: %s", url, ValueError(url))
    assert len(caplog.records) == 3
    assert PLANTED not in caplog.text


def test_a_closed_type_for_secrets() -> None:
    for secret in (Secret(PLANTED), SecretUrl(f"redis://:{PLANTED}@h")):
        copy = pickle.loads(pickle.dumps(secret))
        assert PLANTED in secret.reveal()
        assert PLANTED not in f"{secret} {secret!r} {copy.reveal()}"
        assert secret == type(secret)(secret.reveal())
        assert secret != Secret("another")
    assert str(Secret("")) == ""


@given(
    password=st.text(string.ascii_letters + string.digits + ":/?#@!$&'()*+,;=%[]~-._", min_size=1, max_size=12),
    user=st.text(string.ascii_lowercase, max_size=4),
    scheme=st.sampled_from(["postgresql://", "redis://", "s3://", "postgresql//"]),
)
def test_whatever_a_password_holds_it_is_hidden(password: str, user: str, scheme: str) -> None:
    marked = f"\N{SNOWMAN}{password}\N{SNOWMAN}"
    url = f"{scheme}{user}:{marked}@host:5432/db"
    assert "\N{SNOWMAN}" not in without_secrets(url)
    assert "\N{SNOWMAN}" not in str(InvalidSettings(f"{url!r} is not right.", next=f"Not {url}, please."))


@pytest.mark.parametrize(
    "text",
    [
        f"password = {PLANTED}",
        f"db_password={PLANTED}",
        f"password=.{PLANTED}",
        f"PGPASSWORD={PLANTED} psql",
        f"token={PLANTED}",
        f"s3://bucket/x?X-Amz-Signature={PLANTED}&a=1",
        f"s3://bucket/x?X-Amz-Security-Token={PLANTED}",
        f'{{"password": "{PLANTED}", "a": 1}}',
        f"password: {PLANTED}",
        f"Authorization: Bearer {PLANTED}{PLANTED}",
        f"redis://h?pass%77ord={PLANTED}",
        f"password='it\\'s {PLANTED}'",
        f"postgresql://u:it's{PLANTED}@h",
        "x" * 10_000 + PLANTED,
    ],
)
def test_a_secret_is_hidden_wherever_a_driver_writes_it(text: str) -> None:
    assert PLANTED not in str(StrandlineError(f"It failed: {text}"))
    assert PLANTED not in without_secrets(text.split()[0])


@pytest.mark.parametrize(
    "text", ["%2f%2f" * 20_000, "secret" * 20_000, "a." * 40_000, "//h/" + "=//" * 2_000, "pass" * 9_000 + "="]
)
def test_hostile_texts_are_redacted_at_once(text: str) -> None:
    """No recursion, and no time that grows with the square of a length: each error goes through here."""
    began = time.process_time()
    assert len(redacted(text)) < 10_000
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/data/a@b.csv",
        "http://127.0.0.1:9000/bucket/a@b",
        "http://[::1]:80/x",
        "s3://bucket/x?endpoint=http://127.0.0.1:9000&region=us-east-1",
        "s3://bucket//a//b@c",
        "file:///home/me/lake/data",
        "'x=1' is not key=value.",
        "nyc/main/a/b:c@d",
        "Write token=… with the append.",
        "The token: see the documents.",
        "3 tokens: swept.",
        "The shard service of lake listens on http://127.0.0.1:8420.",
        "Is it (postgresql://db.example:5432/lake), or http://[::1]:80?",
        "Start with http://127.0.0.1:8420, then s3://bucket:80; or s3://bucket.",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text
    assert text in str(StrandlineError(text))


def test_a_driver_says_why_without_the_secret() -> None:
    with pytest.raises(StrandlineError, match="did not answer|not a valid|cannot be") as failed:
        open_store(f"postgresql://u:{PLANTED}@127.0.0.1:1/x")
    assert "127.0.0.1" in str(failed.value)
