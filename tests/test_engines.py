"""The one door to engines: by name, ours first, then those of installed packages."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest

from strandline import engines
from strandline.errors import UsageError


def test_an_engine_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = EntryPoint("mine", "tests.test_engines:marker", engines.ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [mine] if group == mine.group else [])
    assert engines.load("mine") is marker
    with pytest.raises(UsageError, match="No engine is known by the name 'other'"):
        engines.load("other")


def marker(session: object) -> object:
    return session


def test_an_engine_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyspark")

    monkeypatch.setattr(engines, "import_module", missing)
    with pytest.raises(UsageError, match=r"'pyspark', which is not installed.*pip install 'strandline\[spark\]'"):
        engines.engine("spark")


def test_our_engines_have_what_the_protocols_name() -> None:
    spark = engines.engine("spark")
    assert all(
        callable(getattr(spark, name))
        for name in ("read_table", "write_table", "surveyor", "copier", "folder", "tree_workers", "mover", "exporter")
    )
