"""Each rule can fail: under its mutation a test does, or the simulator meets a broken promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations.mutants import HERE, LAWS, SIMULATOR, Mutants, name_of, patches


@pytest.fixture(scope="module")
def mutants(request: pytest.FixtureRequest) -> Iterator[Mutants]:
    """Those that this run asks for, all begun at once."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == Path(__file__)]
    tried = Mutants([call.params["patch"] for call in calls if call is not None and "patch" in call.params])
    yield tried
    tried.close()


@pytest.mark.mutation
@pytest.mark.timeout(1_200)  # they wait for one another
@pytest.mark.parametrize("patch", patches(), ids=name_of)
def test_a_mutation_is_noticed(patch: Path, mutants: Mutants) -> None:
    assert mutants.verdict(patch) == ""


def test_each_mutation_belongs_to_a_family() -> None:
    assert {path.parent.name for path in HERE.rglob("*.patch")} == {*LAWS, "rules", SIMULATOR}
    assert all("\ntests: " in patch.read_text() for patch in patches() if patch.parent.name == "rules")
