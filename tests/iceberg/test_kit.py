"""Iceberg's REST Compatibility Kit against the catalog: what fails is listed with its reason, and nothing else may."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

import strandline
from tests.harness.serving import serving

pytestmark = pytest.mark.server
OUTSIDE = "it writes manifests to a place of its own, where no collection would find what they refer to"
NO_DELETION = "it has files deleted, and gc.enabled is false for every table"
TABLES = {
    "testRemoveUnusedSchemas [1]": NO_DELETION,
    "testRemoveUnusedSchemas [2]": NO_DELETION,
    "testRemoveUnusedSpec [1]": NO_DELETION,
    "testRemoveUnusedSpec [2]": NO_DELETION,
    "testCompleteReplaceTransaction": OUTSIDE,
    "testCompleteCreateOrReplaceTransactionReplace": OUTSIDE,
    "testMetadataFileLocationsRemovalAfterCommit": "it has old metadata deleted by clients",
    "testLoadTableWithMissingMetadataFile": "metadata never changes, so what was read of it is answered from memory",
}
VIEWS = {
    "createViewWithCustomMetadataLocation": "where a view's files lie is the lake's to decide",
}
ASSUMED = {
    "testTableNameWithSlash",
    "createTableInUniqueLocation",
    "testNamespaceWithSlash",
    "testListNestedNamespaces",
    "testDropNamespaceWithNestedNamespace",
    "createAndDropEmptyNamespace",
    "listTablesInEmptyNamespace",
    "listViewsInEmptyNamespace",
    "listNamespacesWithEmptyNamespace",
    "namespacePropertiesOnEmptyNamespace",
}
"""Cases that the kit itself leaves out for every catalog that is served."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "count", "known"),
    [("RESTCompatibilityKitCatalogTests", 106, TABLES), ("RESTCompatibilityKitViewCatalogTests", 51, VIEWS)],
)
def test_the_kit(name: str, count: int, known: dict[str, str], tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        lake.repository("nyc", create=True)
    with serving(tmp_path, "lake") as served:
        settings = {
            "uri": f"{served.address}/iceberg",
            "warehouse": "nyc/main",
            "credential": f"{served.key}:{served.secret}",
            "oauth2-server-uri": f"{served.address}/iceberg/v1/oauth/tokens",
            "rck.local": "false",
            "rck.requires-namespace-create": "true",
            "rck.overrides-requested-location": "true",
            "rck.supports-names-with-dot": "true",
            "rck.supports-serverside-retry": "true",
        }
        command = [
            os.path.join(os.environ["JAVA_HOME"], "bin", "java"),
            "-cp",
            os.path.join(os.environ["STRANDLINE_TEST_ICEBERG_KIT"], "*"),
            *(f"-D{key}={value}" for key, value in settings.items()),
            "org.junit.platform.console.ConsoleLauncher",
            "execute",
            "--disable-banner",
            f"--reports-dir={tmp_path}",
            f"--select-class=org.apache.iceberg.rest.{name}",
        ]
        subprocess.run(command, capture_output=True, text=True, timeout=280)
    failed, left_out, cases = outcomes(tmp_path / "TEST-junit-jupiter.xml")
    assert failed == set(known)
    assert left_out <= ASSUMED
    assert cases == count


def outcomes(report: Path) -> tuple[set[str], set[str], int]:
    """The cases that failed, those that were left out, and the number of all, from the report of the run."""
    failed: set[str] = set()
    left_out: set[str] = set()
    found = list(ElementTree.parse(report).getroot().iter("testcase"))
    for case in found:
        name = re.sub(r"\(.*?\)", " ", str(case.get("name"))).strip()
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is not None:
            left_out.add(name)
    return failed, left_out, len(found)
