"""`strandline range`: jobs on a range that is frozen while they run"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

import strandline
from strandline.cli.lock_commands import BetweenOption, DirtyOption, OwnerOption, TimeoutOption, owner_given, ranges_of
from strandline.cli.output import Output, counted
from strandline.cli.session import JsonOption, LakeOption, complete_place, session
from strandline.errors import UsageError
from strandline.places import place_on_a_ref
from strandline.progress import Progress
from strandline.repository.jobs.range_job import RangeResult

app = typer.Typer(name="range", help="Load, restore, move or export a range while the rest is served.")

PlaceArgument = Annotated[
    str, typer.Argument(help="repository/branch/prefix", metavar="PLACE", autocompletion=complete_place)
]
JobOption = Annotated[str, typer.Option(help="Names the work: done once, and gone on with if a run dies.")]
LockOption = Annotated[str, typer.Option("--lock", metavar="ID", help="A lock held there: the job's takes its place.")]


def _run(out: Output, verb: str, work: Callable[[Progress], RangeResult]) -> None:
    with out.progress("objects") as step:
        done = work(step)
    if done.is_repeat:
        text = f"Job {done.job!r} was done before: nothing to do."
    else:
        text = (
            f"{verb} {counted(done.objects, 'object')}: {done.copied:,} copied ({done.bytes:,} bytes), {done.kept:,} "
            f"were there, {done.deleted:,} deleted."
        )
    out.say(text, msgspec.to_builtins(done))


def _wanted(prefix: str, between: list[str] | None) -> list[str | tuple[str, str | None]]:
    if bool(prefix) == bool(between):
        raise UsageError(
            "Name a prefix, or --between, and not both.",
            next="Write repository/branch/prefix/, or --between START..END.",
        )
    return ranges_of([prefix] if prefix else [], between)


@app.command()
def load(
    place: PlaceArgument,
    source: Annotated[str, typer.Argument(help="A folder, or a URL such as s3://bucket/prefix.")],
    job: JobOption = "",
    owner: OwnerOption = "",
    between: BetweenOption = None,
    into: Annotated[str, typer.Option(help="With --between: prefix to put before each file's path.")] = "",
    lock: LockOption = "",
    wait: TimeoutOption = 0.0,
    on_dirty: DirtyOption = "fail",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a range by files: they appear, and the old content goes, at one instant."""
    with session(lake, as_json) as s:
        branch, prefix = s.branch_place(place)
        if prefix and not prefix.endswith("/"):
            raise UsageError(f"{place!r} names no folder.", next=f"Write {place}/, with a slash at its end.")
        _run(
            s.out,
            "Loaded",
            lambda progress: branch.range_jobs.load(
                _wanted(prefix, between),
                source,
                job=_job(job),
                owner=owner_given(owner),
                destination=prefix or into,
                lock=lock,
                timeout_s=wait,
                on_dirty=on_dirty,
                progress=progress,
            ),
        )


@app.command()
def restore(
    place: PlaceArgument,
    source: Annotated[str, typer.Argument(help="A ref of the repository; with --from, repository/ref of that lake.")],
    job: JobOption = "",
    owner: OwnerOption = "",
    between: BetweenOption = None,
    lock: LockOption = "",
    from_lake: Annotated[str | None, typer.Option("--from", help="Another lake, such as a restored backup.")] = None,
    wait: TimeoutOption = 0.0,
    on_dirty: DirtyOption = "discard",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a range what it is in another ref."""
    with session(lake, as_json) as s:
        branch, prefix = s.branch_place(place)

        def work(source: strandline.Ref | str) -> None:
            _run(
                s.out,
                "Restored",
                lambda progress: branch.range_jobs.restore(
                    _wanted(prefix, between),
                    source,
                    job=_job(job),
                    owner=owner_given(owner),
                    lock=lock,
                    timeout_s=wait,
                    on_dirty=on_dirty,
                    progress=progress,
                ),
            )

        if from_lake is None:
            work(source)
            return
        repository, ref, _ = place_on_a_ref(source)
        with strandline.open(from_lake) as other:
            work(other.repository(repository).ref(ref))


@app.command()
def move(
    place: PlaceArgument,
    target: Annotated[str, typer.Argument(help="repository/branch of the other repository or lake.")],
    job: JobOption = "",
    owner: OwnerOption = "",
    between: BetweenOption = None,
    to_lake: Annotated[str | None, typer.Option("--to", help="The other lake; by default this one.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Delete what the target holds there.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Copy: do not delete at the source.")] = False,
    wait: TimeoutOption = 0.0,
    on_dirty: DirtyOption = "fail",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a range to a branch of another repository or lake; both go on being served."""
    with session(lake, as_json) as s, strandline.open(to_lake if to_lake is not None else lake) as other:
        branch, prefix = s.branch_place(place)
        repository, name, _ = place_on_a_ref(target)
        to = other.repository(repository).branch(name)
        _run(
            s.out,
            "Copied" if keep else "Moved",
            lambda progress: branch.range_jobs.move(
                _wanted(prefix, between),
                to,
                job=_job(job),
                owner=owner_given(owner),
                delete_source=not keep,
                replace=replace,
                timeout_s=wait,
                on_dirty=on_dirty,
                progress=progress,
            ),
        )


@app.command()
def export(
    place: PlaceArgument,
    folder: Annotated[str, typer.Argument(help="A new folder, or that of an export that died.")],
    job: JobOption = "",
    owner: OwnerOption = "",
    between: BetweenOption = None,
    wait: TimeoutOption = 0.0,
    on_dirty: DirtyOption = "fail",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a range to plain files, as it is at one instant."""
    with session(lake, as_json) as s:
        branch, prefix = s.branch_place(place)
        _run(
            s.out,
            "Exported",
            lambda progress: branch.range_jobs.export(
                _wanted(prefix, between),
                folder,
                job=_job(job),
                owner=owner_given(owner),
                timeout_s=wait,
                on_dirty=on_dirty,
                progress=progress,
            ),
        )


def _job(job: str) -> str:
    if not job:
        raise UsageError("A job needs a name.", next="Give --job, such as --job backfill-2024-01.")
    return job
