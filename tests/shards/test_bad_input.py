"""What users give by mistake: refused before anything is changed, with what would have been right."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline
from strandline.errors import (
    ReaderFenced,
    SchemaMismatch,
    ShardNotFound,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.shards.cost import Plan
from strandline.shards.shard import Shard
from strandline.shards.sources import Bindings, bindings_schema
from strandline.testing.faults import Outcome
from tests.shards.stage import Process, Stage

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("v", pa.float64())])


@pytest.fixture
def wide() -> Process:
    return Stage(schema=SCHEMA, key=["k"]).process()


@pytest.mark.parametrize(
    "updates",
    [
        [(("a", (1.9, 2.0)), 0, 1)],
        [(("a", (1, 2.0)), 0.9, 1)],
        [(("a", (1, 2.0)), 0, 1.5)],
        [(("a", "xy"), 0, 1)],
        [(("a", {"x": 1, "y": 2}), 0, 1)],
        [(("a", (1,)), 0, 1)],
        [(("a", 1, 2.0), 0, 1)],
        [("a", 1, 2.0)],
        [((1, (1, 2.0)), 0, 1)],
        pa.table({"k": [1], "n": [1], "v": [1.0]}),
        pa.table({"k": ["a"], "n": ["12"], "v": [1.0]}),
        pa.table({"k": ["a"], "n": [1.5], "v": [1.0]}),
        pa.table({"k": ["a"], "n": [True], "v": [1.0]}),
    ],
)
def test_values_of_another_kind_are_refused(wide: Process, updates: Any) -> None:
    with wide.shard.writer() as writer, pytest.raises((SchemaMismatch, UsageError)) as refused:
        writer.compare_and_append(updates, 0, 1)
    assert "Nothing was changed" in str(refused.value)
    if isinstance(updates, list):
        assert "((k, (n, v)), time, diff)" in str(refused.value)
    assert wide.shard.upper.bound == 0


def test_numbers_that_fit_and_texts_of_other_widths_are_taken(wide: Process) -> None:
    given = pa.table(
        {
            "k": pa.array(["a"], pa.large_string()).dictionary_encode(),
            "n": pa.array([1], pa.int64()),
            "v": pa.array([2], pa.int8()),
        }
    )
    with wide.shard.writer() as writer:
        writer.compare_and_append(given, 0, 1)
        writer.compare_and_append([(("b", [None, 2]), 1, 1)], 1, 2)
    assert sorted(wide.shard.snapshot().to_list()) == [(("a", (1, 2.0)), 1, 1), (("b", (None, 2.0)), 1, 1)]


def test_nothing_is_not_a_batch(wide: Process) -> None:
    with wide.shard.writer() as writer:
        with pytest.raises(UsageError, match=r"None.*Give \[\]"):
            writer.append_next(None)
        assert writer.append_next([]) == 0


def test_columns_keep_their_places(wide: Process) -> None:
    k, n, v = SCHEMA
    more = pa.field("more", pa.string())
    for moved in ([k, v, n], [k, more, n, v]):
        with pytest.raises(SchemaMismatch, match="in this order"):
            wide.shard.evolve(pa.schema(moved))
    wide.shard.evolve(pa.schema([k, n, v, more]))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda shard: shard.snapshot().to_arrow(columns=["nope"]), "no column 'nope'.*It has k, n, v"),
        (lambda shard: shard.snapshot().to_arrow(where=pc.field("nope") == 1), "condition does not fit"),
        (lambda shard: shard.snapshot().to_arrow(where=pc.field("n") == "x"), "condition does not fit"),
        (lambda shard: shard.snapshot().to_arrow(where="n = 1"), "condition does not fit"),
        (lambda shard: shard.durable_reader("a\nb"), "a name of one line"),
        (lambda shard: shard.writer("a\nb"), "a str of one line"),
    ],
)
def test_what_the_shard_does_not_have_is_named(wide: Process, ask: Any, says: str) -> None:
    with wide.shard.writer() as writer:
        writer.append_next([(("a", (1, 2.0)), 0, 1)])
    with pytest.raises(UsageError, match=says):
        ask(wide.shard)


def test_positions_that_cannot_be_compared_are_refused() -> None:
    bindings: Bindings[Any] = Bindings(Stage(schema=bindings_schema(pa.int64()), key=["source"]).process().shard)
    assert bindings.get_binding("log", 4).time == 0
    with pytest.raises(UsageError, match="'x' cannot be compared"):
        bindings.get_binding("log", "x")


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_plan_has_finite_numbers(number: float) -> None:
    for plan in ({"bytes_per_s": number}, {"every_s": number}):
        with pytest.raises(UsageError, match="finite"):
            Plan(**plan)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": SCHEMA, "key": ["nope"]},
        {"schema": pa.schema([])},
        {"schema": pa.schema([("a", pa.list_(pa.int64()))])},
        {"schema": pa.schema([("_time", pa.int64())])},
        {"codec": "xml"},
        {"schema": SCHEMA, "consensus": "paper"},
    ],
)
def test_a_shard_that_cannot_be_made_leaves_no_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        repo = lake.repository("nyc", create=True)
        with pytest.raises(StrandlineError) as refused:
            repo.shard("it", **wrong)
        assert not isinstance(refused.value, ShardNotFound)
        assert list(repo._core.shards.list()) == []
        repo.shard("it", SCHEMA)
        assert repo.shards() == ["it"]


def test_a_name_whose_maker_died_is_not_shown_and_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        repo = lake.repository("nyc", create=True)
        monkeypatch.setattr("strandline.shards.deciding.machine.Machine.create", lambda self, first: 1 / 0)
        for name in ("it", "that"):
            with pytest.raises(ZeroDivisionError):
                repo.shard(name, SCHEMA)
        monkeypatch.undo()
        assert repo.shards() == []
        repo.delete_shard("that")
        repo.shard("it", SCHEMA)
        assert repo.shards() == ["it"]


@pytest.mark.parametrize(
    "call",
    [
        lambda shard: shard.reader(timeout_s=0),
        lambda shard: shard.durable_reader("d", timeout_s=0),
        lambda shard: shard.writer("w").heartbeat(timeout_s=0),
        lambda shard: shard.evolve(pa.schema([*shard.schema, ("more", pa.int64())]), timeout_s=0),
        lambda shard: shard.retire(timeout_s=0),
        lambda shard: shard.finish(timeout_s=0),
    ],
)
def test_no_call_waits_longer_than_its_timeout_for_a_store_that_fails(
    stage: Stage, call: Callable[[Shard], object]
) -> None:
    process = stage.process()
    before = process.seqno
    process.fail("append", *[Outcome.NOT_DONE] * 100)
    with pytest.raises(StoreUnavailable, match=r"Nothing was changed|Injected|did not"):
        call(process.shard)
    process.fail("append")
    assert process.seqno == before


def test_who_claims_a_reader_against_others_gives_up_in_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    durable = stage.process().shard.durable_reader("d")
    others = 0

    def fenced(*_: object, **__: object) -> NoReturn:
        nonlocal others
        others += 1
        stage.clock.sleep(1)
        raise ReaderFenced("Somebody else came.", token=f"other-{others}")

    monkeypatch.setattr(durable, "compare_and_downgrade_since", fenced)
    with pytest.raises(ReaderFenced):
        durable.claim("mine", timeout_s=5)
    assert 5 <= others <= 7
