"""Shards on Spark whose Python processes kill themselves at a call of a store, as a file tells one of them to."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from strandline.spark.shards.options import check_writer
from strandline.spark.shards.sink import ShardStreamWriter, Written
from strandline.spark.shards.source import ShardSource, ShardStreamReader
from tests.harness.killing import watch

ROLES = ("source", "read", "write", "commit")
"""What the processes of a query do: plan its source, read and write as its tasks, commit its epochs."""


class Strike:
    """One process of a role is to die before or after its n-th call. How many calls there are, the folder tells."""

    _folder: Path | None = None
    _role = ""
    _count = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def order(self, role: str, at: int, when: str) -> None:
        (self.folder / "done").unlink(missing_ok=True)
        (self.folder / "new").write_text(json.dumps([role, at, when]))
        (self.folder / "new").rename(self.folder / "order")

    def has_struck(self) -> bool:
        """Whether an order was carried out that has not been told of yet."""
        try:
            (self.folder / "done").unlink()
        except FileNotFoundError:
            return False
        return True

    def withdraw(self) -> bool:
        """Whether it had still not been carried out."""
        try:
            (self.folder / "order").unlink()
        except FileNotFoundError:
            return False
        return True

    def forget(self) -> None:
        """Count anew."""
        for path in self.folder.glob("*.*"):
            path.unlink()

    def calls(self, role: str) -> int:
        """The most that one process of a role has made."""
        return max((int(path.suffix[1:]) for path in self.folder.glob(f"{role}.*")), default=0)

    @classmethod
    def begin(cls, folder: str, role: str) -> None:
        """From now on this process has a role; a source has one for as long as its query runs."""
        if cls._folder is None:
            watch(cls._seen)
        cls._folder, cls._role, cls._count = Path(folder), role, cls._count if role == "source" else 0

    @classmethod
    def _seen(cls, moment: str) -> None:
        assert cls._folder is not None
        if moment == "before":
            cls._count += 1
            (cls._folder / f"{cls._role}.{cls._count}").touch()
        order = cls._folder / "order"
        try:
            if json.loads(order.read_text()) != [cls._role, cls._count, moment]:
                return
            order.rename(cls._folder / "done")  # one process gets it
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class StruckSource(ShardSource):
    """Like "strandline.shard", with the folder of a strike as the option "strikes"."""

    @classmethod
    def name(cls) -> str:
        return "struck.shard"

    def streamReader(self, schema: StructType) -> StruckReader:
        return StruckReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StruckWriter:
        options = dict(self.options)
        return StruckWriter.planned(options, schema, check_writer(options))


class StruckReader(ShardStreamReader):
    def _struck(self, role: str) -> None:
        Strike.begin(self._options["strikes"], role)

    def latestOffset(self) -> dict[str, int]:
        self._struck("source")
        return super().latestOffset()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._struck("source")
        return super().partitions(start, end)

    def commit(self, end: dict[str, int]) -> None:
        self._struck("source")
        super().commit(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._struck("read")
        yield from super().read(partition)


class StruckWriter(ShardStreamWriter):
    def _struck(self, role: str) -> None:
        Strike.begin(self._options["strikes"], role)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        self._struck("write")
        return super().write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._struck("commit")
        super().commit(messages, batchId)
