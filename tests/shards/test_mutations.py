"""Each law of shards can fail: under the mutation of its number it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutants

HERE = Path(__file__).parent
FILES = (
    "../blob/test_conformance.py",
    "test_consensus.py",
    "test_writes.py",
    "test_states.py",
    "test_reads.py",
    "test_holders.py",
    "test_leases.py",
    "test_upkeep.py",
    "test_service.py",
)
MUTANTS = Mutants(HERE / "mutations", [HERE / name for name in FILES])


@pytest.mark.mutation
@pytest.mark.parametrize("patch", MUTANTS.patches, ids=[patch.stem for patch in MUTANTS.patches])
def test_a_law_notices_its_mutation(patch: Path) -> None:
    assert MUTANTS.verdict(patch) == ""
