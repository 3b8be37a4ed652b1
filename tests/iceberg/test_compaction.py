"""Compactions and merges: files that were rewritten without a change of rows, and rows that others changed in them."""

from __future__ import annotations

import pytest

from strandline.errors import MergeConflict
from strandline.iceberg import Catalog
from strandline.lake import Lake
from tests.iceberg.branches import T, keys, some, started
from tests.iceberg.deletes import compact, delete_by_position


def test_a_compaction_of_the_source_is_left_out_where_the_branch_deleted(lake: Lake) -> None:
    """Rewriting files changes no row, so the rows that the branch deleted stay deleted."""
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    compact(dev)
    Catalog(main).load_table(T).delete("k = 1")
    Catalog(dev).load_table(T).append(some(50))
    main.merge("dev")
    assert keys(main) == [2, 3, 11, 12, 13, 50]
    other = main.create_branch("other")
    compact(other)
    Catalog(other).load_table(T).delete("k = 2")  # from the compacted file, so it cannot be left out
    Catalog(main).load_table(T).delete("k = 3")
    with pytest.raises(MergeConflict, match="rewrote files"):
        main.merge("other")
    quiet = main.create_branch("quiet")
    compact(quiet)
    Catalog(main).load_table(T).append(some(60))
    main.merge("quiet")
    assert keys(main) == [2, 11, 12, 13, 50, 60]
    assert Catalog(main).load_table(T).inspect.files().num_rows == 2


@pytest.mark.parametrize("drops_deletes", [True, False])
def test_a_compaction_of_the_source_that_took_in_deletes_is_not_left_out(drops_deletes: bool, lake: Lake) -> None:
    """The delete file came and went, and only the compacted file knows that its row is gone."""
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    delete_by_position(dev, 1)
    compact(dev, drops_deletes=drops_deletes)
    assert keys(dev) == [2, 3, 11, 12, 13]
    Catalog(main).load_table(T).delete("k = 2")
    before = main.commit_id
    with pytest.raises(MergeConflict, match="tables/db/t"):
        main.merge("dev")
    assert main.commit_id == before


def test_a_compaction_that_nothing_clashes_with_is_brought(lake: Lake) -> None:
    _, main = started(lake, 2)
    dev = main.create_branch("dev")
    compact(dev)
    Catalog(main).load_table(T).append(some(21))
    main.merge("dev")
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21]
    assert Catalog(main).load_table(T).inspect.files().num_rows == 2


@pytest.mark.parametrize("undone", ["compaction", "delete"])
def test_what_a_revert_brings_back_has_the_deletes_of_then(undone: str, lake: Lake) -> None:
    """Delete files stay for a while after the rows are gone that they were of; the row of 11 must not come back."""
    repository, main = started(lake, 2)
    delete_by_position(main, 11)
    if undone == "compaction":
        compact(main)
    else:
        Catalog(main).load_table(T).delete("k = 12")
    commit = main.commit_id
    Catalog(main).load_table(T).append(some(21))
    main.revert(commit)
    assert keys(main) == [1, 2, 3, 12, 13, 21]
    Catalog(main).load_table(T).append(some(22))
    assert keys(main) == [1, 2, 3, 12, 13, 21, 22]
    assert repository.fsck().is_sound


@pytest.mark.parametrize("knows", [True, False])
def test_a_file_that_comes_back_from_elsewhere_has_its_deletes(knows: bool, lake: Lake) -> None:
    """The source gives it another number, by which the branch's deletes would be of its rows no more."""
    _, main = started(lake, 2)
    if knows:
        delete_by_position(main, 11)
    compact(main)
    compaction = main.commit_id
    dev = main.create_branch("dev")
    if not knows:
        main.revert(compaction)
        delete_by_position(main, 11)
        compact(main)
    for key in (21, 22):
        Catalog(dev).load_table(T).append(some(key))
    dev.revert(compaction)
    if knows:
        main.merge("dev")
        assert keys(main) == keys(dev) == [1, 2, 3, 12, 13, 21, 22]
    else:
        with pytest.raises(MergeConflict, match="tables/db/t"):
            main.merge("dev")
