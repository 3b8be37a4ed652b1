"""Each law of range locks can fail: under the mutation of its number it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutants

HERE = Path(__file__).parent
MUTANTS = Mutants(HERE / "mutations", [HERE / name for name in ("test_laws.py", "test_laws_of_keeping.py")])


@pytest.mark.mutation
@pytest.mark.parametrize("patch", MUTANTS.patches, ids=[patch.stem for patch in MUTANTS.patches])
def test_a_law_notices_its_mutation(patch: Path) -> None:
    assert MUTANTS.verdict(patch) == ""
