"""The format "strandline" as Spark calls it, step by step and in any order, without a session."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

import strandline
from strandline.errors import Conflict, Fenced, StrandlineError, UsageError
from strandline.repository.branch import Branch
from strandline.spark.format.options import job_of
from strandline.spark.format.reader import FilesPartition, TableStreamReader, read_partition
from strandline.spark.format.writer import TableWriter, TaskFiles

TABLE = "nyc/main/t"
SCHEMA = StructType([StructField("k", LongType())])


def numbers(*ks: int) -> pa.Table:
    return pa.table({"k": pa.array(ks, pa.int64())})


def batches(*ks: int) -> Iterator[pa.RecordBatch]:
    return iter(numbers(*ks).to_batches())


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Branch]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake.repository("nyc", create=True).branch("main")


@pytest.fixture
def planned(main: Branch, tmp_path: Path) -> Callable[..., TableWriter]:
    """A write as Spark plans it; it goes on in another process each time."""

    def plan(*, overwrite: bool = False, path: str = TABLE, **options: str) -> TableWriter:
        given = {"lake": str(tmp_path / "lake"), "path": path, **options}
        made: TableWriter = pickle.loads(pickle.dumps(TableWriter.planned(given, SCHEMA, overwrite=overwrite)))
        return made

    return plan


def ks(main: Branch) -> list[int]:
    return sorted(main.table("t").to_arrow().column("k").to_pylist())


def test_a_write_is_one_commit_with_its_message(main: Branch, planned: Callable[..., TableWriter]) -> None:
    writer = planned(message="three", writer="nightly")
    written = [writer.write(batches(1, 2)), writer.write(batches(3)), writer.write(iter([]))]
    assert not main.table("t").exists()
    writer.commit(written)
    assert ks(main) == [1, 2, 3]
    assert next(iter(main.log())).message == "three"


def test_a_writer_that_was_declared_dead_publishes_nothing(main: Branch, planned: Callable[..., TableWriter]) -> None:
    dead = planned(writer="nightly")
    written = dead.write(batches(1))
    successor = planned(writer="nightly")
    successor.commit([successor.write(batches(2))])
    with pytest.raises(Fenced):
        dead.commit([written])
    dead.abort([written])
    assert ks(main) == [2]


def test_writes_without_a_writer_s_name_do_not_fence_each_other(
    main: Branch, planned: Callable[..., TableWriter]
) -> None:
    main.table("t").write(numbers(0), message="the table is there")
    both = [planned(), planned()]
    for k, writer in enumerate(both, 1):
        writer.commit([writer.write(batches(k))])
    assert ks(main) == [0, 1, 2]


def test_a_job_with_a_token_happens_once(main: Branch, planned: Callable[..., TableWriter]) -> None:
    for _ in range(2):
        writer = planned(writer="nightly", token="the 25th")
        writer.commit([writer.write(batches(1))])
    assert ks(main) == [1]


def test_a_job_with_one_token_may_write_two_tables(main: Branch, planned: Callable[..., TableWriter]) -> None:
    for path in ("nyc/main/t", "nyc/main/other"):
        writer = planned(path=path, writer="nightly", token="the 25th")
        writer.commit([writer.write(batches(1))])
    assert main.table("other").count() == main.table("t").count() == 1


def test_a_commit_that_is_called_again_publishes_nothing_more(
    main: Branch, planned: Callable[..., TableWriter]
) -> None:
    writer = planned(writer="nightly")
    written = [writer.write(batches(1))]
    writer.commit(written)
    with pytest.raises(StrandlineError, match="published"):
        writer.commit(written)
    assert ks(main) == [1]


def test_files_of_attempts_that_do_not_count_stay_out(main: Branch, planned: Callable[..., TableWriter]) -> None:
    writer = planned()
    writer.write(batches(1))  # its executor was lost before it could answer
    counted = writer.write(batches(2))
    assert isinstance(counted, TaskFiles)
    assert len(counted.names) == 1
    writer.commit([counted, None])
    assert ks(main) == [2]


def test_a_file_that_is_gone_is_no_part_of_a_commit(main: Branch, planned: Callable[..., TableWriter]) -> None:
    writer = planned()
    writer.write(batches(1))
    with pytest.raises(StrandlineError, match="is gone"):
        writer.commit([TaskFiles(["part-0-lost.parquet"])])
    assert not main.table("t").exists()


def test_an_abort_ends_the_transaction(main: Branch, planned: Callable[..., TableWriter]) -> None:
    writer = planned(writer="nightly")
    written = writer.write(batches(1))
    writer.abort([written])
    assert [one for one in main.transactions if one.state == "open"] == []
    with pytest.raises(Fenced):
        writer.commit([written])


def test_what_others_changed_is_a_conflict(main: Branch, planned: Callable[..., TableWriter]) -> None:
    main.table("t").write(numbers(1), message="first")
    writer = planned(overwrite=True)
    main.table("t").write(numbers(2), message="in between")
    with pytest.raises(Conflict):
        writer.commit([])
    assert ks(main) == [1, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "nyc/main"}, "names no table"),
        ({"path": "nyc/none/t"}, "none"),
        ({"path": "nyc/main~1/t"}, "main~1"),
        ({"partitionby": "day"}, "not an option"),
        ({"partition_by": "none"}, "none"),
        ({"token": "a"}, "no writer is given"),
        ({"writer": "-"}, "not a writer's name"),
        ({"target_file_bytes": "many"}, "not a number"),
        ({"target_file_bytes": "1"}, "too small"),
        ({"compression": "rar"}, "not a compression"),
        ({"mergeSchema": "perhaps"}, "neither true nor false"),
        ({"partitionOverwriteMode": "some"}, "static or dynamic"),
        ({"statistics": "none"}, "none"),
    ],
)
def test_wrong_options_are_refused_when_a_write_is_planned(
    main: Branch, planned: Callable[..., TableWriter], options: dict[str, str], said: str
) -> None:
    with pytest.raises(StrandlineError, match=said):
        planned(**options)
    assert not main.table("t").exists()
    assert [one for one in main.transactions if one.state == "open"] == []


def test_options_are_those_of_a_write() -> None:
    options = {"path": TABLE, "mergeSchema": "TRUE", "partition_by": "a, b", "partitionOverwriteMode": "dynamic"}
    job = job_of(options, overwrite=True)
    assert (job.message, job.write.mode) == ("Write t by Spark", "overwrite_partitions")
    assert (job.write.schema, job.write.partition_by) == ("merge", ("a", "b"))
    assert job_of(options, overwrite=False).write.mode == "append"


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(main: Branch, tmp_path: Path) -> Callable[..., TableStreamReader]:
    return lambda schema=SCHEMA, **options: TableStreamReader(
        {"lake": str(tmp_path / "lake"), "path": TABLE, **options}, schema
    )


def read(reader: TableStreamReader, start: dict[str, str], end: dict[str, str]) -> list[int]:
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    assert all(isinstance(part, FilesPartition) for part in parts)
    return sorted(k for part in parts for batch in read_partition(part) for k in batch.column("k").to_pylist())


def test_a_batch_that_is_run_again_has_the_same_rows(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    main.table("t").write(numbers(1), message="first")
    reader = stream()
    first, second = reader.initialOffset(), reader.latestOffset()
    main.table("t").write(numbers(2), message="second")
    third = reader.latestOffset()
    main.table("t").write(numbers(3), mode="overwrite", message="all anew")
    assert read(stream(), first, second) == [1]
    assert read(stream(), second, third) == [2]
    assert read(stream(), first, third) == [1, 2]
    assert read(stream(), third, third) == []


def test_rows_that_went_stop_a_stream(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    main.table("t").write(numbers(1, 2), message="first")
    start = stream().latestOffset()
    main.table("t").delete("k = 1", message="one less")
    end = stream().latestOffset()
    with pytest.raises(Conflict, match="cannot take rows back"):
        stream().partitions(start, end)
    assert read(stream(removals="ignore"), start, end) == [2]


def test_files_that_were_rewritten_bring_no_row_again(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    main.table("t").write(numbers(1), message="first")
    start = stream().latestOffset()
    main.table("t").write(numbers(2), message="second")
    main.table("t").rewrite_files()
    main.table("t").write(numbers(3), message="third")
    end = stream().latestOffset()
    assert read(stream(), start, end) == [2, 3]
    main.table("t").rewrite_files()
    assert read(stream(), end, stream().latestOffset()) == []


def test_a_rewriting_beside_new_rows_is_told_apart(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    for k in (1, 2):
        main.table("t").write(numbers(k), message="some")
    start = stream().latestOffset()
    with main.transaction("both") as tx:
        tx.table("t").rewrite_files()
        tx.table("t").write(numbers(3))
    assert read(stream(), start, stream().latestOffset()) == [3]


@pytest.mark.parametrize("where", ["on a branch", "in a transaction"])
@pytest.mark.parametrize("what", ["update", "delete and append"])
def test_rows_that_changed_before_a_rewriting_are_not_taken_for_old_ones(
    main: Branch, stream: Callable[..., TableStreamReader], where: str, what: str
) -> None:
    for k in (1, 2, 3):
        main.table("t").write(numbers(k), message="some")
    start = stream().latestOffset()

    def change(table: strandline.Table, message: str | None = None) -> None:
        if what == "update":
            table.update({"k": 100}, "k = 1", message=message)
        else:
            table.delete("k = 1", message=message)
            table.write(numbers(777), message=message)
        table.rewrite_files(message=message)

    if where == "on a branch":
        branch = main.create_branch("other")
        change(branch.table("t"), "on a branch")
        main.merge("other")
    else:
        with main.transaction("all at once") as tx:
            change(tx.table("t"))
    with pytest.raises(Conflict, match="cannot take rows back"):
        stream().partitions(start, stream().latestOffset())


def test_a_table_that_went_leaves_what_came_before(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    main.table("t").write(numbers(1), message="first")
    start = stream().latestOffset()
    main.table("t").write(numbers(2), message="second")
    main.delete_many([info.path for info in main.list("t/")])
    main.commit("gone")
    assert read(stream(removals="ignore"), start, stream().latestOffset()) == [2]


def test_a_branch_that_was_reset_is_compared_as_it_is(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    main.table("t").write(numbers(1), message="first")
    first = main.commit_id
    main.table("t").write(numbers(2), message="second")
    start = stream().latestOffset()
    main.hard_reset(first)
    with pytest.raises(Conflict, match="cannot take rows back"):
        stream().partitions(start, stream().latestOffset())
    main.table("t").write(numbers(3), message="another second")
    assert read(stream(removals="ignore"), start, stream().latestOffset()) == [3]


def test_a_column_that_became_wider_says_so(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    narrow = pa.table({"k": pa.array([1], pa.int32())})
    main.table("t").write(narrow, message="first")
    started = stream(StructType([StructField("k", IntegerType())]))
    start = started.latestOffset()
    main.table("t").write(numbers(1 << 40), schema="merge", message="wider")
    with pytest.raises(StrandlineError, match="is bigint, not int"):
        started.partitions(start, started.latestOffset())


def test_a_table_that_is_not_there_says_so(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    with pytest.raises(StrandlineError, match="not a table"):
        stream().partitions(stream().initialOffset(), stream().latestOffset())


def test_a_checkpoint_of_another_table_is_refused(main: Branch, stream: Callable[..., TableStreamReader]) -> None:
    main.table("t").write(numbers(1), message="first")
    main.table("other").write(numbers(2), message="another")
    other = stream(path="nyc/main/other")
    with pytest.raises(UsageError, match="of a stream of 'nyc/main/t', and this one is of 'nyc/main/other'"):
        other.partitions(stream().latestOffset(), other.latestOffset())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"removals": "perhaps"}, "fail or ignore"),
        ({"start": "nothing"}, "nothing"),
        ({"starting": "now"}, "not an option"),
    ],
)
def test_wrong_options_of_a_stream_are_named(
    main: Branch, stream: Callable[..., TableStreamReader], options: dict[str, str], said: str
) -> None:
    with pytest.raises(StrandlineError, match=said):
        stream(**options).initialOffset()
    if "start" not in options:  # a query that goes on does not ask where it begins
        with pytest.raises(StrandlineError, match=said):
            stream(**options).latestOffset()
