"""`strandline compact`, `reflog` and `fsck`"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated

import typer

from strandline.cli.output import counted
from strandline.cli.session import JsonOption, LakeOption, session
from strandline.errors import Corrupted
from strandline.repository.upkeep.fsck import SHOWN, FsckReport

BranchArgument = Annotated[str, typer.Argument(help="repository/branch")]
PROBLEMS_SHOWN = 20


def compact(
    branch: BranchArgument,
    force: Annotated[bool, typer.Option("--force", help="Even if another compaction began within a minute.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold what is staged into a tree, so that listings and look-ups are fast again. Nothing else changes."""
    with session(lake, as_json) as s:
        done = s.branch(branch).compact(force=force)
        what = f"{counted(done.entries, 'staged entry', 'staged entries')} of {counted(done.tokens, 'token')}"
        nothing = f"Nothing is staged on {branch} that would have to be compacted."
        told = {
            "done": f"Compacted {branch}: {what} in {done.seconds:.2f} s." if done.entries else nothing,
            "superseded": f"Others committed, discarded or compacted what was staged on {branch} at the same time.",
            "cooling down": f"Another compaction of {branch} began less than a minute ago; --force begins one anyway.",
        }[done.outcome]
        s.out.say(told, {"branch": branch, **asdict(done)})


def reflog(
    branch: BranchArgument,
    amount: Annotated[int | None, typer.Option("--amount", "-n", min=0, help="The most moves to show.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the head of a branch was: when it moved, by what, by whom. At least the last thousand moves."""
    with session(lake, as_json) as s:
        rows = (
            {
                "date": move.at,
                "what": move.verb,
                "by": move.by,
                "from": move.before[:12],
                "to": move.after[:12],
                "before": move.before or None,
                "after": move.after,
            }
            for move in islice(s.branch(branch).reflog(), amount)
        )
        s.out.rows(rows, ("date", "what", "by", "from", "to"))


def fsck(
    repository: Annotated[str | None, typer.Argument(help="The repository; without it, all of the lake.")] = None,
    content: Annotated[bool, typer.Option("--content", help="Read all bytes and compare their checksums.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that everything a repository refers to is there, and count what nobody refers to."""
    with session(lake, as_json) as s:
        names = [repository] if repository is not None else [record.name for record in s.lake.repositories()]
        problems = 0
        for name in names:
            with s.out.progress("ranges") as step:
                audit = s.repository(name).fsck(step, content=content)
            problems += audit.problem_count
            shown = audit.problems[:PROBLEMS_SHOWN]
            more = audit.problem_count - len(shown)
            lines = [_summary(name, audit), _compared(audit, content), *(f"  {problem}" for problem in shown)]
            if more:
                lines.append(f"  … and {counted(more, 'more problem')}; --json lists up to {SHOWN:,}.")
            s.out.say(lines, {"repository": name, **asdict(audit)})
        if problems:
            raise Corrupted(
                f"{counted(problems, 'problem')}: what the lake refers to is missing or damaged.",
                safe="Nothing was changed.",
                next="Restore what is missing from a backup, or use commits that do not need it.",
            )


def _compared(audit: FsckReport, content: bool) -> str:
    """What the check did not look at, in a sentence."""
    if not content:
        return "  Sizes were compared, and bytes were not: --content reads them."
    told = f"  Compared the bytes of {counted(audit.compared, 'file')}"
    if audit.pages_compared:
        told += f", the pages of {counted(audit.pages_compared, 'Parquet file')} with checksums of their writer"
    if audit.sizes_compared:
        told += f", and nothing but the size of {counted(audit.sizes_compared, 'file')}"
    imported = f" Of {counted(audit.imported, 'imported object')} size and tag of the store." if audit.imported else ""
    return f"{told}.{imported}"


def _summary(name: str, audit: FsckReport) -> str:
    looked_at = ", ".join(
        (
            counted(audit.branches, "branch", "branches"),
            counted(audit.tags, "tag"),
            counted(audit.commits, "commit"),
            counted(audit.trees, "tree"),
            counted(audit.ranges, "range"),
            counted(audit.objects, "object"),
            f"{audit.staged:,} staged",
        )
    )
    orphans = f"{counted(audit.orphans, 'file')} ({audit.orphan_bytes:,} bytes) that nobody refers to"
    if audit.orphans and not audit.is_complete:
        orphans += ", or what is damaged does"
    young = f", {audit.young_orphans:,} of them younger than an hour" if audit.orphans else ""
    return f"{name}: {looked_at}; {orphans}{young}; {counted(audit.problem_count, 'problem')}."
