"""Each rule can fail: under its mutation its test does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutants

MUTANTS = Mutants(Path(__file__).parent / "mutations", [])


@pytest.mark.mutation
@pytest.mark.parametrize("patch", MUTANTS.patches, ids=[patch.stem for patch in MUTANTS.patches])
def test_a_rule_notices_its_mutation(patch: Path) -> None:
    assert MUTANTS.verdict(patch) == ""
