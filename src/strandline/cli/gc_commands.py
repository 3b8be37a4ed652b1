"""`strandline gc`: retention rules and the collection of garbage"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
import typer

from strandline.cli.output import Output, counted
from strandline.cli.session import JsonOption, LakeOption, session
from strandline.core.retention import GRACE_DAYS, Retention
from strandline.errors import UsageError
from strandline.progress import Progress
from strandline.repository.upkeep.garbage import GarbagePlan

app = typer.Typer(name="gc", help="Collect what nothing refers to, beside all other work.")

RepositoryArgument = Annotated[str, typer.Argument(help="The repository.")]
GraceOption = Annotated[
    float, typer.Option("--grace-days", min=0, help="Files younger than this stay; longer than your longest job.")
]


ReadersOption = Annotated[
    bool,
    typer.Option("--despite-readers", help="Although a lake that was restored without bytes reads these files."),
]


def _told(plan: GarbagePlan, verb: str) -> list[str]:
    parts = [
        f"{verb} {counted(plan.files, 'file')} ({plan.bytes:,} bytes) of {plan.total_files:,}",
        f"{plan.orphans:,} that nothing refers to",
        f"{plan.dead:,} left by committed transactions",
        f"{plan.rejected:,} of rejected ones",
    ]
    stay = f"{plan.young:,} are too young, {plan.unknown:,} are not strandline's, {plan.linked:,} lie behind links."
    places = [f"  {one.prefix}: {counted(one.files, 'file')} ({one.bytes:,} bytes), {one.why}" for one in plan.places]
    commits = f"{counted(plan.kept, 'commit')} kept, {plan.expiring:,} expiring now, {plan.expired:,} expired earlier."
    what = f"{': '.join((parts[0], ', '.join(parts[1:])))}."
    return [what, *places, stay, commits]


@app.command()
def plan(
    repository: RepositoryArgument,
    grace_days: GraceOption = GRACE_DAYS,
    despite_readers: ReadersOption = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would delete now, and how much that frees."""
    with session(lake, as_json) as s:
        gc = s.repository(repository).gc
        collect = partial(gc.plan, grace_days=grace_days, despite_readers=despite_readers)
        _tell(s.out, "A run would delete", lambda told: collect(progress=told))


@app.command()
def run(
    repository: RepositoryArgument,
    grace_days: GraceOption = GRACE_DAYS,
    despite_readers: ReadersOption = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete it. May be interrupted, and run while others work."""
    with session(lake, as_json) as s:
        gc = s.repository(repository).gc
        collect = partial(gc.run, grace_days=grace_days, despite_readers=despite_readers)
        _tell(s.out, "Deleted", lambda told: collect(progress=told))


def _tell(out: Output, verb: str, collect: Callable[[Progress], GarbagePlan]) -> None:
    with out.progress("files and ranges") as step:
        found = collect(step)
    out.say(_told(found, verb), msgspec.to_builtins(found))


@app.command()
def retention(
    repository: RepositoryArgument,
    days: Annotated[float | None, typer.Option(help="How many days commits are kept.")] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Keep all commits.")] = False,
    branch: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN=DAYS", help="Days for some branches; 'forever' keeps all.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Take a branch rule away.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show for how long commits are kept, or say so."""
    with session(lake, as_json) as s:
        gc = s.repository(repository).gc
        if days is not None and forever:
            raise UsageError("--days and --forever exclude each other.")
        if days is not None or forever or branch or drop:
            held = gc.retention
            branches = {**held.branches, **dict(map(_rule, branch or ()))}
            kept = {pattern: value for pattern, value in branches.items() if pattern not in (drop or ())}
            gc.set_retention(days if days is not None or forever else held.days, kept)
        rules = gc.retention
        lines = [f"Commits are kept {_days(rules.days)}.", *(f"  {p}: {_days(d)}" for p, d in rules.branches.items())]
        s.out.say(lines, _fields(rules))


def _rule(text: str) -> tuple[str, float | None]:
    pattern, _, value = text.rpartition("=")
    try:
        return pattern, None if value == "forever" else float(value)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a retention rule.", next="Write --branch 'release-*=90' or 'main=forever'."
        ) from None


def _days(days: float | None) -> str:
    return "for ever" if days is None else f"for {days:g} days after they were the head of a branch"


def _fields(rules: Retention) -> dict[str, object]:
    return {"days": rules.days, "branches": dict(rules.branches)}
