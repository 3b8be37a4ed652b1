"""PyIceberg's own tests of catalogs, against ours: `make pyiceberg-suite`, which fetches the release that they are in.

What fails is listed with its reason; the list may only shrink.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import strandline
from tests.harness.serving import serving

pytestmark = pytest.mark.suite
PLACES = "the test asks for a location of its own, and where files lie is the lake's to decide"
WORDS = "it wants the very words of PyIceberg's SQL catalog"
EXPECTED = {
    "test_create_table_location_override": PLACES,
    "test_create_table_removes_trailing_slash_from_location": PLACES,
    "test_create_tables_idempotency": "the SQL catalog makes tables of its own in its database",
    "test_register_table": "it registers metadata that lies outside of the repository",
    "test_register_existing_table": "it registers metadata that lies outside of the repository",
    "test_table_writes_metadata_to_custom_location": PLACES,
    "test_table_metadata_writes_reflect_latest_path": PLACES,
    "test_delete_metadata_multiple": "no client deletes metadata: other branches and commits need it",
    "test_create_table_without_namespace": "a name without a namespace is malformed",
    "test_concurrent_commit_table": WORDS,
    "test_create_namespace_with_null_properties": "it wants an error of SQLAlchemy's",
    "test_create_namespace_with_empty_identifier": "an empty name is malformed, not one that is missing",
    "test_table_properties_raise_for_none_value": "properties without a value are refused in other words",
    "test_load_empty_namespace_properties": "the SQL catalog keeps a property of its own",
    "test_get_namespace_metadata_raises_error_when_namespace_does_not_exist": WORDS,
    "test_update_namespace_metadata_raises_error_when_namespace_does_not_exist": WORDS,
    "test_drop_namespace_raises_error_when_namespace_not_empty": WORDS,
    "test_catalog_commit_table_applies_schema_updates": "it names an id for a schema, which the catalog draws",
}
"""Of the tests of behaviour, by name: why each fails."""
FIXTURE = """
import pytest
import strandline
from strandline.iceberg import Catalog


@pytest.fixture
def catalog(tmp_path):
    with strandline.open(tmp_path / "lake", create=True, synced=False, committer="tester") as lake:
        found = Catalog(lake.create_repository("nyc").branch("main"))
        found.name = "ours"  # the tests make names of tables of it
        yield found
"""


@pytest.fixture
def tests_of_pyiceberg() -> Path:
    place = os.environ.get("STRANDLINE_TEST_PYICEBERG", "")
    assert place, "run `make pyiceberg-suite`, which fetches the tests"
    return Path(place)


def outcomes(place: Path, *arguments: str, **environment: str) -> tuple[set[str], int]:
    """The names of the tests that fail, and how many pass."""
    command = [str(place / "venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    run = subprocess.run(
        [*command, *arguments], cwd=place, env={**os.environ, **environment}, capture_output=True, text=True
    )
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None, run.stdout[-3_000:] + run.stderr[-3_000:]
    return set(re.findall(r"^(?:FAILED|ERROR) .*::(test_\w+)", run.stdout, re.M)), int(passed[1])


@pytest.mark.timeout(600)
def test_the_suite_of_rest_catalogs(tests_of_pyiceberg: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "lake", "--no-sync") as served:
        with strandline.open(served.folder, synced=False) as lake:
            lake.create_repository("nyc")
        uri = f"{served.address}/iceberg"
        prefix = "PYICEBERG_CATALOG__OURS__"
        failed, passed = outcomes(
            tests_of_pyiceberg,
            "tests/integration/test_catalog.py",
            "-k",
            "rest_test_catalog",
            PYICEBERG_TEST_CATALOG="ours",
            **{
                f"{prefix}TYPE": "rest",
                f"{prefix}URI": uri,
                f"{prefix}WAREHOUSE": "nyc/main",
                f"{prefix}CREDENTIAL": f"{served.key}:{served.secret}",
                f"{prefix}OAUTH2_SERVER_URI": f"{uri}/v1/oauth/tokens",
            },
        )
    assert failed == set()
    assert passed >= 38


@pytest.mark.timeout(600)
def test_the_suite_of_catalogs_in_process(tests_of_pyiceberg: Path) -> None:
    (tests_of_pyiceberg / "tests/catalog/conftest.py").write_text(FIXTURE)
    failed, passed = outcomes(tests_of_pyiceberg, "tests/catalog/test_catalog_behaviors.py")
    assert failed == set(EXPECTED)
    assert passed > 190
