"""`strandline ls`, `cat`, `put`, `get`, `rm` and `export`"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from strandline.cli.session import JsonOption, LakeOption, session
from strandline.errors import ObjectNotFound, UsageError
from strandline.repository.listing import Listing
from strandline.repository.results import CommonPrefix

Place = Annotated[str, typer.Argument(help="repository/ref/path")]


def _rows(listing: Listing) -> Iterator[dict[str, Any]]:
    for found in listing:
        if isinstance(found, CommonPrefix):
            yield {"path": found.path, "size": None, "modified": None, "checksum": None}
        else:
            yield {
                "path": found.path,
                "size": found.size,
                "modified": found.modified_at,
                "checksum": found.checksum,
                "content_type": found.content_type,
                "metadata": found.metadata,
            }


def ls(
    place: Place,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Go into folders.")] = False,
    after: Annotated[str, typer.Option(help="Begin behind this path.")] = "",
    amount: Annotated[int | None, typer.Option(help="At most so many.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List objects in byte order of their paths."""
    with session(lake, as_json) as s:
        ref, prefix = s.place(place)
        delimiter = "" if recursive else "/"
        listing = ref.list(prefix, delimiter=delimiter, after=after, amount=amount)
        s.out.rows(_rows(listing), ("path", "size", "modified"), "No objects.")


def cat(place: Place, lake: LakeOption = None) -> None:
    """Write an object's bytes to standard output."""
    with session(lake, False) as s:
        ref, path = s.place(place)
        with ref.open(path) as source:
            shutil.copyfileobj(source, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def put(
    file: Annotated[str, typer.Argument(help="A local file; - is standard input.")],
    place: Place,
    content_type: Annotated[str | None, typer.Option(help="Media type.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a local file to a branch; it is staged until you commit."""
    with session(lake, as_json) as s:
        branch, path = s.branch_place(place)
        if not path or path.endswith("/"):
            if file == "-":
                raise UsageError("Standard input has no name.", next="Give the whole path.")
            path += Path(file).name
        made = branch.put(path, sys.stdin.buffer if file == "-" else Path(file), content_type=content_type)
        fields = {"path": made.path, "size": made.size, "checksum": made.checksum}
        s.out.say(f"Staged {path} ({made.size:,} bytes).", fields)


def get(
    place: Place,
    file: Annotated[str, typer.Argument(help="A local file or folder.")] = ".",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an object into a local file."""
    with session(lake, as_json) as s:
        ref, path = s.place(place)
        target = Path(file)
        if target.is_dir():
            target = target / path.rpartition("/")[2]
        ref.download(path, target)
        s.out.say(f"Wrote {target}.", {"path": path, "file": str(target)})


def rm(
    place: Place,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Everything below the path.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete objects from a branch; the deletion is staged until you commit."""
    with session(lake, as_json) as s:
        branch, path = s.branch_place(place)
        if not path and not recursive:
            raise UsageError("Nothing is named to delete.", next="Give a path; with --recursive, everything goes.")
        below = path if not path or path.endswith("/") else path + "/"
        count = branch.delete_prefix(below) if recursive else int(branch.delete(path))
        if not count:
            raise ObjectNotFound(
                f"There is {'nothing below' if recursive else 'no object'} {path!r} on branch {branch.name!r}.",
                next="`strandline ls` lists what there is.",
            )
        s.out.say(f"Deleted {count:,} object{'s' * (count != 1)}.", {"deleted": count})


def export(
    place: Place,
    folder: Annotated[str, typer.Argument(help="A new or empty folder.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy everything below a prefix into a plain folder that any tool reads without strandline."""
    with session(lake, as_json) as s:
        ref, prefix = s.place(place)
        with s.out.progress("exporting") as step:
            count = ref.export(folder, prefix, progress=step)
        s.out.say(f"Exported {count:,} objects to {folder}.", {"objects": count, "folder": folder})
