"""Declarative pipelines of Spark that publish all they make in one commit, or nothing.

Spark's own `spark-pipelines` runs unpatched, against an open transaction that this process serves as its catalog. What
it writes becomes visible when it has ended well and all checks hold; until then nobody else sees any of it. A run that
is begun again replaces the one before, which from then on can change nothing.

How far a pipeline has read its streams is a part of what it makes: the checkpoints are kept on the branch, below
`pipelines/<name>/`, and change in the same commit as the tables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strandline.errors import AlreadyExists, UsageError
from strandline.iceberg.tables import Tables
from strandline.ids import check_path, new_id
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.transactions.transaction import Transaction
from strandline.server.embedded import Catalog, serve_catalog
from strandline.server.iceberg.prefixes import transaction_part
from strandline.spark.session import iceberg_package, iceberg_settings, s3_packages, store_settings

ROOT = "pipelines/"
FIELDS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
CATALOG = "lake"
DATABASE = "default"
ENDS_WITHIN_S = 20.0
Check = Callable[[Transaction], object]
"""Looks at what a run has made, through `strandline.iceberg.Catalog(transaction)` or `transaction.table(…)`: what it
returns is false, or it raises, if that must not be published."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The file that describes a pipeline, as far as it is read here.

    Attributes:
        catalog, database: that its tables are in, unless their names say another one.
    """

    path: Path
    name: str
    catalog: str
    database: tuple[str, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What a run did.

    Attributes:
        branch: that it was published on.
        commit: that made it visible.
        changes: how many objects of the branch changed: tables, and files of checkpoints.
        rows: of the tables that were checked.
        seconds: that the run took, in all.
    """

    branch: str
    commit: str
    changes: int
    rows: Mapping[str, int]
    seconds: float


def read_spec(path: str | Path) -> Spec:
    """Read the description of a pipeline.

    Raises:
        UsageError: the file is missing, or does not describe a pipeline.
    """
    import yaml  # noqa: PLC0415 - comes with PySpark's pipelines, and only they need it

    file = Path(path)
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}.", next="Check the path.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(file)!r} is not YAML: {' '.join(str(error).split())}.", next="Mend the file.") from None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str) or set(data) - set(FIELDS):
        raise UsageError(
            f"{str(file)!r} describes no pipeline.",
            next=f"It has a name, and perhaps {', '.join(FIELDS[1:])}, as `spark-pipelines init` shows.",
        )
    name, catalog = data["name"], data.get("catalog", CATALOG)
    database = data.get("database", data.get("schema", DATABASE))
    if not isinstance(catalog, str) or not isinstance(database, str) or not database:
        raise UsageError(f"The catalog and the database of {str(file)!r} are names.", next="Mend the file.")
    check_path(f"{ROOT}{name}/x")
    if "/" in name:
        raise UsageError(f"The name of a pipeline has no slash: {name!r}.", next="Mend the file.")
    return Spec(file, name, catalog, tuple(database.split(".")), data)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How a pipeline is run.

    Attributes:
        writer: the name of the transaction's writer; a run that is begun under a name replaces an open one of it. By
            default the pipeline's name.
        message: of the commit.
        full_refresh: tables that are made anew from all of their sources.
        full_refresh_all: make all of them anew.
        packages: let Spark fetch Iceberg's runtime; False where it is on its class path.
        settings: more of Spark's settings.
    """

    writer: str = ""
    message: str = ""
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    packages: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def refreshes(self) -> list[str]:
        """As Spark's own command takes them."""
        every = ["--full-refresh-all"] if self.full_refresh_all else []
        return every + (["--full-refresh", ",".join(self.full_refresh)] if self.full_refresh else [])


_DEFAULT = PipelineOptions()


def run(
    lake: Lake,
    place: str,
    spec: str | Path,
    *,
    new_branch: str | None = None,
    expect: Mapping[str, Sequence[str]] | None = None,
    check: Check | None = None,
    options: PipelineOptions = _DEFAULT,
) -> PipelineResult:
    """Run a declarative pipeline, and publish all of it in one commit, or nothing.

    Args:
        lake: open in this process, which serves its catalog meanwhile.
        place: the branch that its tables are read from and written to, such as `nyc/main`.
        spec: the file that describes it; its `storage` is not used, since checkpoints are kept on the branch.
        new_branch: run on a branch of this name, which is made from `place` for a review, and deleted if the run fails.
        expect: by table, as `database.table`, conditions in SQL that must hold for each of its rows.
        check: looks at what was made, before it is published.

    Raises:
        UsageError: the file describes no pipeline, or PySpark's pipelines are not installed.
        AlreadyExists: there is a branch with the name of the new one.
        RequirementFailed: Spark failed, or an expectation does not hold. Nothing was published.
        Fenced: another run of the writer took over. Nothing was published.
        Conflict: others have changed the same tables meanwhile. Nothing was published.
    """
    described = read_spec(spec)
    job = _Job(_program(), described, options, expect or {}, check)
    repository_name, _, name = place.partition("/")
    repository = lake.repository(repository_name)
    if new_branch is None:
        return _run(lake, repository.branch(name), job)
    made = repository.create_branch(new_branch, name)
    try:
        return _run(lake, made, job)
    except BaseException:
        repository.delete_branch(new_branch)
        raise


@dataclass(frozen=True, slots=True)
class _Job:
    """A pipeline that is to be run."""

    program: str
    spec: Spec
    options: PipelineOptions
    expect: Mapping[str, Sequence[str]]
    check: Check | None


def _run(lake: Lake, branch: Branch, job: _Job) -> PipelineResult:
    started = time.monotonic()
    spec, options = job.spec, job.options
    writer = options.writer or spec.name
    with branch.transaction(writer, message=options.message or f"pipeline {spec.name}") as tx, _folder() as folder:
        storage = folder / "storage"
        _bring_checkpoints(tx, spec, storage, anew=options.full_refresh_all)
        _make_database(tx, spec)
        warehouse = f"{branch._core.name}/{branch.name}{transaction_part(writer, tx.id)}"
        store = store_settings(lake._settings.blob)
        _configure(folder, spec, serve_catalog(lake), warehouse, options, store)
        own = _written(spec, storage)
        try:
            code = _call([job.program, "run", "--spec", str(own), *options.refreshes], folder)
        finally:
            own.unlink(missing_ok=True)
        tx.require(code == 0, f"spark-pipelines ended with {code}, and said above why")
        rows = _count(tx, spec, folder, job.expect)
        if job.check is not None:
            _judge(tx, job.check)
        _keep_checkpoints(tx, spec, storage)
    done = tx.result
    return PipelineResult(branch.name, done.commit, done.changes, rows, time.monotonic() - started)


def _program() -> str:
    found = find_spec("pyspark")
    place = Path(found.origin).parent / "bin" / "spark-pipelines" if found and found.origin else None
    on_path = shutil.which("spark-pipelines")
    if place is not None and place.is_file():
        return str(place)
    if on_path:
        return on_path
    raise UsageError("Spark's pipelines are not installed.", next="Run: pip install 'strandline[pipelines]'")


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder of one run, that nobody else may read: the token of the catalog is in it."""
    with tempfile.TemporaryDirectory(prefix="strandline-pipeline-") as place:
        yield Path(place)


def _written(spec: Spec, storage: Path) -> Path:
    """The description that Spark gets, beside the original one: its libraries are looked for there."""
    own = spec.path.parent / f".strandline-{new_id()}.yml"
    data = {name: value for name, value in spec.data.items() if name != "schema"}
    told = {"catalog": spec.catalog, "database": ".".join(spec.database), "storage": storage.as_uri()}
    try:
        own.write_text(json.dumps({**data, **told}))  # which is YAML as well
    except OSError as error:
        raise UsageError(
            f"Nothing can be written beside {str(spec.path)!r}: {error.strerror}.", next="Allow writing there."
        ) from None
    return own


def _configure(
    folder: Path, spec: Spec, served: Catalog, warehouse: str, options: PipelineOptions, store: Mapping[str, str]
) -> None:
    """Write the settings of Spark; those of the environment's own configuration stay."""
    place = folder / "conf"
    inherited = os.environ.get("SPARK_CONF_DIR")
    if inherited and Path(inherited).is_dir():
        shutil.copytree(inherited, place)
    else:
        place.mkdir()
    own = options.settings.get("spark.jars.packages", "")
    packages = [iceberg_package(), *(s3_packages() if store else ()), *([own] if own else ())]
    settings = {
        **iceberg_settings({spec.catalog: warehouse}, served.uri, served.token),
        **({"spark.jars.packages": ",".join(packages)} if options.packages else {}),
        **store,
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **{
            name: value
            for name, value in options.settings.items()
            if not options.packages or name != "spark.jars.packages"
        },
    }
    file = place / "spark-defaults.conf"
    held = file.read_text() if file.exists() else ""
    file.write_text(held + "\n" + "".join(f"{name} {value}\n" for name, value in settings.items()))
    file.chmod(0o600)


def _call(command: list[str], folder: Path, given: str | None = None) -> int:
    """Run a program of Spark to its end; it is ended with this process's call, whatever ends that."""
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder / "conf")}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr, text=True)
    try:
        process.communicate(given)
        return process.returncode
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _make_database(tx: Transaction, spec: Spec) -> None:
    tables = Tables(tx)
    for depth in range(1, len(spec.database) + 1):
        try:
            tables.create_namespace(spec.database[:depth], {})
        except AlreadyExists:
            continue


def _count(tx: Transaction, spec: Spec, folder: Path, expect: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Have Spark count the rows for which an expectation does not hold; one such row is enough to abort."""
    if not expect:
        return {}
    wanted = {f"{spec.catalog}.{_quoted(table)}": list(conditions) for table, conditions in expect.items()}
    names = dict(zip(wanted, expect, strict=True))
    report = folder / "expectations.json"
    command = [sys.executable, "-m", "strandline.spark.expectations", str(report)]
    code = _call(command, folder, json.dumps(wanted))
    tx.require(code == 0, f"the expectations could not be counted: Spark ended with {code}, and said above why")
    found = json.loads(report.read_text())
    for table, counts in found.items():
        for condition, failures in counts["failures"].items():
            told = f"{failures:,} of {counts['rows']:,} rows of {names[table]} do not meet the expectation {condition}"
            tx.require(not failures, told)
    return {names[table]: counts["rows"] for table, counts in found.items()}


def _quoted(table: str) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in table.split("."))


def _judge(tx: Transaction, check: Check) -> None:
    found = check(tx)
    tx.require(found is None or bool(found), f"the check {getattr(check, '__name__', check)!r} does not hold")


# --- checkpoints --------------------------------------------------------------------------------------------------


def _bring_checkpoints(tx: Transaction, spec: Spec, storage: Path, *, anew: bool) -> None:
    """Bring how far the last published run had read, so that this one goes on there."""
    storage.mkdir()
    prefix = f"{ROOT}{spec.name}/"
    for row in [] if anew else tx.list(prefix):
        relative = row.path[len(prefix) :]
        if {"", ".", ".."} & set(relative.split("/")):
            raise UsageError(
                f"{row.path!r} is not the path of a checkpoint.",
                next="Delete it: whoever may write there must not choose a file of this machine.",
            )
        target = storage / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tx.read(row.path))


def _keep_checkpoints(tx: Transaction, spec: Spec, storage: Path) -> None:
    """Put what the run has read on the branch, in the place of what was there."""
    prefix = f"{ROOT}{spec.name}/"
    held = {row.path: row for row in tx.list(prefix)}
    found = {
        prefix + file.relative_to(storage).as_posix(): file for file in sorted(storage.rglob("*")) if file.is_file()
    }
    tx.delete_many([path for path in held if path not in found])
    fresh = {
        path: file.read_bytes()
        for path, file in found.items()
        if path not in held or tx.read(path) != file.read_bytes()
    }
    if fresh:
        tx.put_many(fresh)
