"""`repository.gc`: retention rules, and the collection of garbage, as users see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from strandline.arguments import checked
from strandline.core.promises import SERVED, SERVED_GRACE_DAYS
from strandline.core.repository_core import RepositoryCore
from strandline.core.retention import GRACE_DAYS, Retention, check_retention
from strandline.engines import engine
from strandline.errors import UsageError
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.names.branches import repository_record
from strandline.repository.names.settings import change_settings
from strandline.repository.upkeep.garbage import Collector, GarbagePlan
from strandline.repository.upkeep.judging import Surveyor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@checked()
class GarbageCollection:
    """Deletes what nothing refers to and nobody is about to refer to, while everyone works."""

    def __init__(self, core: RepositoryCore) -> None:
        self._core = core

    @property
    def place(self) -> str:
        """The repository, for messages."""
        return self._core.name

    @property
    def retention(self) -> Retention:
        """For how long commits are kept; by default all are, for ever."""
        return repository_record(self._core)[1].retention

    @logged("set retention")
    def set_retention(self, days: float | None, branches: Mapping[str, float | None] | None = None) -> None:
        """Set how long commits are kept that no branch has as its head; tags and pins keep theirs in any case.

        Args:
            days: None keeps all.
            branches: days for branches whose name matches a glob pattern; without it, these rules stay as they are.

        Raises:
            UsageError: less than a day.
        """
        rules = check_retention(days, self.retention.branches if branches is None else branches)
        change_settings(self._core, lambda record: replace(record, retention=rules))

    @logged("plan garbage collection")
    def plan(
        self,
        *,
        grace_days: float = GRACE_DAYS,
        despite_readers: bool = False,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> GarbagePlan:
        """What a run would delete now, and how much that frees. Deletes nothing.

        Args:
            grace_days: how young a file must be to stay although nothing refers to it.
            despite_readers: although another lake, which was restored without its bytes, reads this namespace.
            progress: told what is being done, how much of it is done, and of how much.
            spark: a session that lists the files and finds what goes, for lakes of very many files; no list of files
                passes through this process then.
        """
        return self._collector(grace_days, despite_readers, progress, spark).plan()

    @logged("collect garbage")
    def run(
        self,
        *,
        grace_days: float = GRACE_DAYS,
        despite_readers: bool = False,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> GarbagePlan:
        """Delete what `plan` shows. May be interrupted at any time, and run at any time beside all other work.

        Commits that no rule keeps expire in one run, and what only they need is deleted a grace later.

        Raises:
            Contention: another run is under way.
            NotAllowed: the storage namespace may be another lake's as well, so that nothing may be deleted from it.
        """
        return self._collector(grace_days, despite_readers, progress, spark).run()

    def _collector(
        self, grace_days: float, despite_readers: bool, progress: Progress, spark: SparkSession | None
    ) -> Collector:
        surveyor: Surveyor | None = None if spark is None else engine("spark").surveyor(spark)
        if grace_days < SERVED_GRACE_DAYS and self._core.stores.kv.get(*SERVED) is not None:
            raise UsageError(
                f"The lake is served, and {grace_days:g} days are too few: clients may write objects for a day before "
                "anything refers to them.",
                next="Give 1.05 days or more.",
            )
        return Collector(
            self._core,
            self.retention,
            grace_days=grace_days,
            despite_readers=despite_readers,
            progress=progress,
            surveyor=surveyor,
        )
