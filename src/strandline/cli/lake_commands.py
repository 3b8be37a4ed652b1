"""`strandline init`, `backup`, `restore` and `upgrade`"""

from __future__ import annotations

from typing import Annotated

import typer

import strandline
from strandline.cli.output import Output, counted
from strandline.cli.session import JsonOption, LakeOption, Session, session
from strandline.errors import LakeNotFound, UsageError


def init(
    folder: Annotated[str, typer.Argument(help="The folder, or a TOML file with kv and blob.")],
    new: Annotated[
        bool, typer.Option("--new", help="Although objects of an earlier lake lie there, whose metadata are gone.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a lake, or find that it is there already."""
    if not folder:
        raise UsageError("No folder is named.", next="Give the path of a folder, such as `strandline init my-lake`.")
    try:
        strandline.open(folder).close()
        told, is_made = f"Found the lake at {folder}.", False
    except LakeNotFound:
        strandline.open(folder, create=True, new=new).close()
        told, is_made = f"Made a lake at {folder}.", True
    Output(as_json).say(told, {"lake": folder, "made": is_made})


def backup(
    target: Annotated[str, typer.Argument(help="A folder, or the URL of an object store.")],
    repository: Annotated[list[str] | None, typer.Option(help="Only this repository; may be repeated.")] = None,
    data: Annotated[bool, typer.Option("--data/--no-data", help="Copy the bytes of objects, or leave them.")] = True,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save repositories while they are in use. A later backup to the same place copies only what is new."""
    with session(lake, as_json) as s:
        with s.out.progress("copying") as step:
            manifest = s.lake.backup(target, repository or None, data=data, progress=step)
        for saved in manifest.repositories:
            fields = {"repository": saved.record.name, "commits": saved.commits, "files": saved.files}
            s.out.say(
                f"Saved {saved.record.name}: {counted(len(saved.branches), 'branch', 'branches')}, "
                f"{counted(saved.tags, 'tag')}, {counted(saved.commits, 'commit')}, {counted(saved.files, 'file')} "
                f"({saved.bytes:,} bytes){'' if saved.has_data else '; the bytes of objects stay where they are'}.",
                {**fields, "branches": len(saved.branches), "tags": saved.tags, "bytes": saved.bytes},
            )


def restore(
    source: Annotated[str, typer.Argument(help="The folder or URL of a backup.")],
    repository: Annotated[str | None, typer.Argument(help="Only this repository; without it, all.")] = None,
    name: Annotated[str | None, typer.Option("--as", help="Bring it back under this name.")] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="The lake of a backup without bytes is gone: take its bytes over.")
    ] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Read and compare everything afterwards.")] = True,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring repositories back from a backup. The lake may be another one, on other stores; `init` makes one."""
    with session(lake, as_json) as s:
        with s.out.progress("copying") as step:
            made = s.lake.restore(source, repository, name=name, take_over=take_over, check=check, progress=step)
        for one in made:
            done = "and read all of it" if check else "and did not check it"
            s.out.say(f"Restored {one.name} {done}.", {"repository": one.name, "checked": check})


def upgrade(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be written.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="First mend records that cannot be read.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Mend without asking.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write records of older formats anew. Older versions of strandline refuse the lake from then on."""
    with session(lake, as_json) as s:
        if repair and not _repaired(s, dry_run, yes):
            return
        done = s.lake.upgrade(dry_run=dry_run)
        total = sum(done.written.values())
        kinds = ", ".join(f"{counted(count, kind)}" for kind, count in sorted(done.written.items()) if count)
        verb = "would be written" if dry_run else "written"
        told = f"{kinds} {verb} in format {done.format}." if total else f"Everything has format {done.format} already."
        s.out.say(told, {"format": done.format, "dry_run": dry_run, "written": done.written})


def _repaired(s: Session, dry_run: bool, yes: bool) -> bool:
    """Say which records cannot be read and what they would become, ask, and mend them; whether to go on."""
    found = s.lake.repair(dry_run=True)
    for one in found:
        what = "; ".join(one.fields)
        line = f"{one.record} is broken: {what}." if one.is_mended else f"{one.record} cannot be mended: {what}."
        s.out.say(line, {"record": one.record, "fields": list(one.fields), "can_be_mended": one.is_mended})
    mendable = [one for one in found if one.is_mended]
    if not found:
        s.out.say("Every record can be read.", {"mended": 0})
    if not mendable or dry_run:
        return not dry_run
    if not yes and not typer.confirm(f"Mend {counted(len(mendable), 'record')} so?", err=True):
        s.out.say("Nothing was changed.", {"mended": 0})
        return False
    done = [one for one in s.lake.repair() if one.is_mended]
    s.out.say(f"Mended {counted(len(done), 'record')}.", {"mended": len(done)})
    return True
