"""Which snapshots leave a table, and that its files stay for those that need them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline
import strandline.iceberg
from strandline.errors import UsageError
from strandline.iceberg import Catalog
from strandline.iceberg.expiry import expiring
from strandline.iceberg.tables import NoSuchTable, Tables
from tests.iceberg.making import NOW

DAY = 86_400_000
ROWS = pa.table({"k": pa.array([1], pa.int64())})


def table(*snapshots: tuple[int, int | None, float], refs: Any = None, **properties: str) -> dict[str, Any]:
    """A table with snapshots of an id, a parent, and an age in days; main is at the last one."""
    made = [
        {
            "snapshot-id": id,
            "timestamp-ms": NOW - round(age * DAY),
            **({"parent-snapshot-id": parent} if parent else {}),
        }
        for id, parent, age in snapshots
    ]
    main = {"main": {"snapshot-id": snapshots[-1][0], "type": "branch"}} if snapshots else {}
    return {"snapshots": made, "refs": main | (refs or {}), "properties": properties}


def removed(held: dict[str, Any], **more: Any) -> list[int]:
    updates = expiring(held, NOW, **more)
    return [number for one in updates if one["action"] == "remove-snapshots" for number in one["snapshot-ids"]]


LINE = ((1, None, 20.0), (2, 1, 10.0), (3, 2, 6.0), (4, 3, 1.0))


def test_the_rules_of_a_table_decide() -> None:
    assert removed(table(*LINE)) == [1, 2, 3]
    assert removed(table(*LINE, **{"history.expire.max-snapshot-age-ms": str(7 * DAY)})) == [1, 2]
    assert removed(table(*LINE, **{"history.expire.min-snapshots-to-keep": "3"})) == [1]
    assert removed(table(*LINE, **{"history.expire.min-snapshots-to-keep": "x"})) == [1, 2, 3]
    assert removed(table(*LINE), keep=2) == [1, 2]
    assert removed(table(*LINE), older_than_ms=NOW - 15 * DAY) == [1]
    assert removed(table(*LINE), older_than_ms=NOW, keep=1) == [1, 2, 3]
    assert removed(table()) == []
    with pytest.raises(UsageError):
        removed(table(*LINE), keep=0)


def test_refs_keep_what_they_say() -> None:
    tag = {"v1": {"snapshot-id": 2, "type": "tag"}}
    assert removed(table(*LINE, refs=tag)) == [1, 3]
    own = {"b": {"snapshot-id": 3, "type": "branch", "min-snapshots-to-keep": 2}}
    assert removed(table(*LINE, refs=own)) == [1]
    aged = {"b": {"snapshot-id": 3, "type": "branch", "max-snapshot-age-ms": 12 * DAY}}
    assert removed(table(*LINE, refs=aged)) == [1]
    over = {"old": {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 5 * DAY}}
    assert expiring(table(*LINE, refs=over), NOW) == [
        {"action": "remove-snapshot-ref", "ref-name": "old"},
        {"action": "remove-snapshots", "snapshot-ids": [1, 2, 3]},
    ]
    lost = {"lost": {"snapshot-id": 99, "type": "tag"}}
    assert expiring(table(*LINE, refs=lost), NOW)[0] == {"action": "remove-snapshot-ref", "ref-name": "lost"}


def test_what_no_ref_leads_to_stays_while_it_is_young() -> None:
    assert removed(table((7, None, 1.0), (8, None, 9.0), (9, None, 0.5))) == [8]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_main_and_tags_never_lose_their_snapshot(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    ages = sorted((data.draw(st.floats(0, 30)) for _ in range(count)), reverse=True)
    parents = [
        data.draw(st.one_of(st.none(), st.integers(1, id - 1))) if id > 1 else None for id in range(1, count + 1)
    ]
    tag = {"t": {"snapshot-id": data.draw(st.integers(1, count)), "type": "tag"}}
    held = table(*zip(range(1, count + 1), parents, ages, strict=True), refs=tag)
    gone = set(
        removed(held, keep=data.draw(st.integers(1, 5)), older_than_ms=NOW - data.draw(st.integers(0, 30)) * DAY)
    )
    assert count not in gone
    assert tag["t"]["snapshot-id"] not in gone


def test_snapshots_leave_in_one_commit_and_files_stay(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repository = lake.create_repository("nyc")
        main = repository.branch("main")
        catalog = Catalog(main)
        catalog.create_namespace("db")
        for name in ("db.a", "db.b"):
            made = catalog.create_table(name, ROWS.schema)
            for _ in range(3):
                made.append(ROWS)
        before = main.commit_id
        assert strandline.iceberg.expire(main) == []
        now = datetime.now(UTC) + timedelta(days=1)
        files = set(repository._core.resolver.namespace.list_keys("ice/"))
        done = strandline.iceberg.expire(main, older_than=now)
        assert [(one.table, one.snapshots) for one in done] == [("db.a", 2), ("db.b", 2)]
        assert main.get_commit().parents == (before,)
        assert files <= set(repository._core.resolver.namespace.list_keys("ice/"))
        assert len(Tables(main).load(("db", "a")).metadata["snapshots"]) == 1
        assert Catalog(main).load_table("db.a").scan().to_arrow().num_rows == 3
        assert len(Tables(repository.ref(before)).load(("db", "a")).metadata["snapshots"]) == 3
        assert strandline.iceberg.expire(main, "db.a", older_than=now) == []
        with pytest.raises(NoSuchTable):
            strandline.iceberg.expire(main, "db.none")
        with pytest.raises(UsageError):
            strandline.iceberg.expire(main, older_than=datetime(2026, 1, 1))
