"""The catalog over a lake that is open in this process: who may ask, how long it lives, what it shares."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import strandline
from strandline.engines import load
from strandline.errors import UsageError
from strandline.lake import Lake
from strandline.redaction import Secret
from strandline.server.embedded import Catalog, serve_catalog
from strandline.spark.session import configure, iceberg_package, iceberg_settings

ROWS = pa.table({"k": pa.array([1, 2], pa.int64())})
pytestmark = pytest.mark.server


def ask(catalog: Catalog, path: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{catalog.uri}{path}", headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def client(catalog: Catalog, warehouse: str) -> Any:
    return load_catalog("c", type="rest", uri=catalog.uri, warehouse=warehouse, token=catalog.token.reveal())


def test_only_the_holder_of_the_token_is_answered(lake: Lake) -> None:
    lake.create_repository("nyc")
    catalog = serve_catalog(lake)
    assert catalog.uri.startswith("http://127.0.0.1:")
    assert serve_catalog(lake) is catalog
    token = catalog.token.reveal()
    assert token not in repr(catalog)
    assert ask(catalog, "/v1/nyc/main/namespaces", token) == 200
    assert ask(catalog, "/v1/nyc/main/namespaces", None) == 401
    assert ask(catalog, "/v1/nyc/main/namespaces", token[:-1]) == 401
    assert ask(catalog, "/v1/nyc/main/namespaces", "") == 401
    plain = Catalog(catalog.uri.removesuffix("/iceberg"), Secret(""), 0)
    for other in ("/api/v1/repositories", "/metrics", "/openapi.json", "/nyc/main/x"):
        assert ask(plain, other, token) == 404  # nothing but the catalog is served
    request = urllib.request.Request(
        f"{catalog.uri}/v1/nyc/main/namespaces", headers={"Host": "evil.example", "Authorization": f"Bearer {token}"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 421


def test_it_ends_with_the_lake(tmp_path: Path) -> None:
    before = {one.name for one in threading.enumerate()}
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        lake.create_repository("nyc")
        catalog = serve_catalog(lake)
        assert ask(catalog, "/v1/nyc/main/namespaces", catalog.token.reveal()) == 200
    with pytest.raises(urllib.error.URLError):
        ask(catalog, "/v1/nyc/main/namespaces", catalog.token.reveal())
    assert "strandline-catalog" not in {one.name for one in threading.enumerate()} - before
    with strandline.open(tmp_path / "lake", synced=False) as again:
        assert serve_catalog(again) is not catalog


def test_open_transactions_of_the_process_are_warehouses(lake: Lake) -> None:
    main = lake.create_repository("nyc").branch("main")
    catalog = serve_catalog(lake)
    plain = client(catalog, "nyc/main")
    plain.create_namespace("db")
    with main.transaction("job") as tx:
        inside = client(catalog, "nyc/main@tx=job")
        inside.create_table("db.t", ROWS.schema).append(ROWS)
        assert not plain.table_exists("db.t")
        assert tx.exists("tables/db/t/_iceberg.metadata.json")
    assert plain.load_table("db.t").scan().to_arrow() == ROWS
    log = [commit.message for commit in main.log()]
    assert log == ["Transaction of job", "create namespace db", "Repository created"]
    with pytest.raises(Exception, match="has no transaction of 'other'"):
        client(catalog, "nyc/main@tx=other")


class Builder:
    """A builder of Spark sessions, as far as it is configured."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self


def test_a_session_gets_its_catalogs(lake: Lake) -> None:
    main = lake.create_repository("nyc").branch("main")
    tx = main.transaction("job").begin()
    builder = Builder()
    assert configure(builder, lake, catalogs={"main": main, "v1": "nyc/v1", "job": tx}) is builder
    held = builder.settings
    assert held["spark.sql.catalog.main.warehouse"] == "nyc/main"
    assert held["spark.sql.catalog.v1.warehouse"] == "nyc/v1"
    assert held["spark.sql.catalog.job.warehouse"] == f"nyc/main@tx=job@id={tx.id}"
    assert held["spark.sql.catalog.main.uri"] == serve_catalog(lake).uri
    assert held["spark.sql.catalog.main.token"] == serve_catalog(lake).token.reveal()
    assert held["spark.jars.packages"] == iceberg_package()
    bare = Builder()
    configure(bare, lake, catalogs={"main": main}, packages=False)
    assert "spark.jars.packages" not in bare.settings
    plain = Builder()
    configure(plain, lake)
    assert not [name for name in plain.settings if "catalog" in name]
    tx.abort()


def test_what_cannot_be_a_catalog(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Give the Lake itself"):
        configure(Builder(), "s3://lake", catalogs={"main": "nyc/main"})
    for name in ("", "a b", "1x", "a.b", "x" * 101):
        with pytest.raises(UsageError, match="name of a catalog"):
            iceberg_settings({name: "nyc/main"}, "http://x", Secret("t"))
    monkeypatch.setattr("pyspark.__version__", "9.9.0")
    with pytest.raises(UsageError, match="no runtime for Spark 9"):
        iceberg_package()
    assert load("catalog").serve_catalog is serve_catalog
