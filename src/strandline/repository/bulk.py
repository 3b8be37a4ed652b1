"""Calls of a branch that change very many objects or files at once: imports, mirrors of tables, and upkeep by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.arguments import checked
from strandline.engines import engine
from strandline.errors import UsageError
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.importing import ImportResult, import_objects, mirror_table
from strandline.repository.commits.listing import ImportSource
from strandline.repository.commits.mirroring import MirroredTable
from strandline.repository.objects.staged_writes import StagedWrites
from strandline.tables.columns import spark_fields
from strandline.tables.formats import FileFormat
from strandline.tables.record import OptionValue
from strandline.tables.upkeep_rule import TableUpkeep, UpkeepRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@checked()
class BulkChanges(StagedWrites):
    """What a branch brings in, and how its tables are kept."""

    @logged("import")
    def import_objects(
        self,
        source: str | Path | Sequence[ImportSource],
        destination: str = "",
        message: str | None = None,
        *,
        replace: bool = False,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
        job: str | None = None,
    ) -> ImportResult:
        """Commit references to objects that exist already, in a local folder or below a URL such as s3://bucket/prefix.

        No bytes are copied. What is at the same paths already is replaced; the rest stays.

        Args:
            source: a folder or a URL; or several sources, each with a destination of its own, for one commit.
            replace: what else lies below a destination goes, so that it holds what the source holds.
            progress: called after each page of the source's listing; with Spark, after each slice.
            spark: a session whose executors list slices of the sources side by side, and write the commit's metadata.
                For prefixes of millions of objects; the commit is the same.
            job: with Spark, names what is done: a call that died is gone on with by the next one of that name, within a
                day, from the slices that it had listed.

        Raises:
            NotFound: a source has no object.
            UsageError: a source lies in a repository's storage namespace, or two give the same path.
            Contention: with Spark, others kept changing what lies at the destinations.
            UncommittedChanges: staged changes lie at a destination.
        """
        if isinstance(source, str | Path):
            sources: Sequence[ImportSource] = [ImportSource(str(source), destination)]
            text = f"Import {source} as {destination or '/'}"
        else:
            sources = list(source)
            text = f"Import {len(sources)} sources"
            if destination or not sources:
                raise UsageError(
                    "Several sources have their destinations with them, and there is at least one.",
                    next="Give each source with its destination.",
                )
        draft = make_draft(self._core, message if message is not None else text, metadata, committer, None)
        workers = None if spark is None else engine("spark").import_workers(spark)
        return import_objects(
            self._core, self._at, sources, draft, progress, replaces=replace, workers=workers, job=job
        )

    @logged("mirror table")
    def mirror_table(
        self,
        source: str | Path,
        path: str,
        message: str | None = None,
        *,
        file_format: FileFormat | None = None,
        columns: pa.Schema | None = None,
        partition_types: Mapping[str, str] | None = None,
        options: Mapping[str, OptionValue] | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
        job: str | None = None,
    ) -> ImportResult:
        """Commit a table whose files somebody else writes, in a plain folder or one for each value (`month=1/`).

        No bytes are copied. A later call commits what has changed at the source: files that came, went, or were written
        over. Of new Parquet files the footers are read, for their columns and for statistics; a column that is new, or
        of a wider type, becomes one of the table. The source is read as it is: mirror it when its writer is done.

        Args:
            source: the folder of one table, or a URL such as s3://bucket/tables/rides.
            path: of the table. If it is there already, it has to be a mirror, without files of its own.
            file_format: of its files; by default as the name of the first one that is listed says.
            columns: of its files; needed where footers do not have them, as those of Parquet do. They are added to
                those that the table has.
            partition_types: of the columns that folders name, as Spark calls them; by default they are strings.
            options: of the format, as Spark names them; of csv, `header` at least.
            spark: a session whose executors list the source in slices, and read the footers there.
            job: names what is done: a call that died is gone on with by the next one of that name, within a day; of
                slices in which nothing has changed no footer is read again.

        Returns:
            How many objects were found, and the commit; None if nothing has changed.

        Raises:
            NotFound: the source has no data file.
            UsageError: it holds files of several formats or with several kinds of folders; a folder names a value of
                another type; or the table has files of its own.
            SchemaMismatch: a file has a column of a type that the table's does not hold.
            Contention: a file was listed and is gone, or others kept changing the table.
            UncommittedChanges: staged changes lie at the table.
        """
        table = self.table(path)
        _, held = table._find_record()
        found = ImportSource(str(source), table.path)
        mirrored = MirroredTable(
            self._core,
            self._at,
            found,
            # of a table that is there it is known: a file of another one may be listed first
            file_format=file_format or (None if held is None else held.file_format),
            columns=None if columns is None else spark_fields(columns),
            partition_types=partition_types or {},
            options=options,
        )
        text = message if message is not None else f"Mirror {found.shown} as {table.path}"
        draft = make_draft(self._core, text, metadata, committer, None)
        workers = None if spark is None else engine("spark").import_workers(spark)
        return mirror_table(self._core, self._at, found, mirrored, draft, progress, workers, job)

    @logged("keep tables up")
    def keep_up(
        self,
        rules: Sequence[UpkeepRule],
        *,
        dry_run: bool = False,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> list[TableUpkeep]:
        """Write small files of tables together, as rules say; each table in a commit of its own.

        Tables in other formats than Parquet are left, and those with files that lie elsewhere, as a mirror's do. If
        others replace files of a table meanwhile, or it cannot be written, its outcome says so, and the others go on.

        Args:
            rules: for each table the first one counts that its path matches.
            dry_run: only count.
            spark: a session whose executors write; by default this process does.

        Returns:
            What became of each table that a rule matches, in the order of their paths.

        Raises:
            UsageError: a rule cannot be followed.
        """
        from strandline.tables.keeping import keep_up  # noqa: PLC0415 - loads data frames

        return keep_up(self, rules, dry_run=dry_run, progress=progress, spark=spark)
