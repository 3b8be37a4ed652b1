"""`strandline ls`, `cat`, `put`, `get`, `cp`, `mv`, `rm`, `import` and `export`"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from strandline.cli.output import counted
from strandline.cli.session import (
    JsonOption,
    LakeOption,
    MessageOption,
    MetaOption,
    Session,
    complete_place,
    metadata_of,
    session,
)
from strandline.errors import ObjectNotFound, UsageError
from strandline.places import place_on_a_ref
from strandline.repository.branch import Branch
from strandline.repository.refs.exporting import local_only
from strandline.repository.refs.ref import Ref
from strandline.results.rows import CommonPrefix, ObjectInfo

PlaceArgument = Annotated[str, typer.Argument(help="repository/ref/path", autocompletion=complete_place)]


def _rows(listing: Iterable[ObjectInfo | CommonPrefix]) -> Iterator[dict[str, Any]]:
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
    place: PlaceArgument,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Go into folders.")] = False,
    after: Annotated[str, typer.Option(help="Begin behind this path.")] = "",
    amount: Annotated[int | None, typer.Option(min=0, help="The most to show.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a path, or what is below it, in byte order."""
    with session(lake, as_json) as s:
        ref, prefix = s.place(place)
        delimiter = "" if recursive else "/"
        columns = ("path", "size", "modified")
        if not prefix or prefix.endswith("/"):
            listing = ref.list(prefix, delimiter=delimiter, after=after, amount=amount)
            s.out.rows(_rows(listing), columns, "No objects.")
            return
        own = [ref.stat(prefix)] if prefix > after and ref.exists(prefix) else []
        below = ref.list(prefix + "/", delimiter=delimiter, after=after, amount=amount)
        s.out.rows(islice(chain(_rows(own), _rows(below)), amount), columns, "No objects.")


def cat(place: PlaceArgument, lake: LakeOption = None) -> None:
    """Write an object's bytes to standard output."""
    with session(lake, False) as s:
        ref, path = s.place(place)
        with ref.open(path) as source:
            shutil.copyfileobj(source, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def put(
    file: Annotated[str, typer.Argument(help="A local file or, with --recursive, a folder; - is standard input.")],
    place: PlaceArgument,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="All files of a folder, at once.")] = False,
    content_type: Annotated[str | None, typer.Option(help="Media type.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a local file to a branch; it is staged until you commit."""
    with session(lake, as_json) as s:
        branch, path = s.branch_place(place)
        if recursive:
            _put_folder(s, branch, path, Path(file))
            return
        if not path or path.endswith("/"):
            if file == "-":
                raise UsageError("Standard input has no name.", next="Give the whole path.")
            path += Path(file).name
        if Path(file).is_dir():
            raise UsageError(f"{file!r} is a folder.", next="Pass --recursive to write all files in it.")
        source = sys.stdin.buffer if file == "-" else Path(file)
        total = source.stat().st_size if isinstance(source, Path) and source.is_file() else None
        with s.out.progress(f"uploading {path}", in_bytes=True) as step, ExitStack() as stack:
            if total is not None and sys.stderr.isatty():
                source = Counted(
                    stack.enter_context(Path(file).open("rb")), lambda done: step("uploading", done, total)
                )
            made = branch.put(path, source, content_type=content_type)
        fields = {"path": made.path, "size": made.size, "checksum": made.checksum}
        s.out.say(f"Staged {path} ({made.size:,} bytes).", fields)


def _put_folder(s: Session, branch: Branch, path: str, folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder.", next="Leave --recursive out for a single file.")
    below = path if not path or path.endswith("/") else path + "/"
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    if not files:
        raise ObjectNotFound(f"There is no file in the folder {str(folder)!r}.")
    with s.out.progress("uploading") as step:

        def contents() -> Iterator[tuple[str, Path]]:
            for done, one in enumerate(files):
                step("uploading", done, len(files))
                yield below + one.relative_to(folder).as_posix(), one

        count = branch.put_many(contents())
    s.out.say(f"Staged {counted(count, 'object')} below {below or '/'}.", {"staged": count, "prefix": below})


def get(
    place: PlaceArgument,
    file: Annotated[str, typer.Argument(help="A local file or folder; - is standard output.")] = ".",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an object into a local file; `export` copies a folder."""
    with session(lake, as_json) as s:
        ref, path = s.place(place)
        if file == "-":
            with ref.open(path) as source:
                shutil.copyfileobj(source, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        target = local_only(file, "A single object")
        if file.endswith("/") and not target.is_dir():
            raise UsageError(f"There is no folder {file!r}.", next="Make it first, or give the path of a file.")
        if target.is_dir():
            target = target / path.rpartition("/")[2]
        with s.out.progress(f"downloading {path}", in_bytes=True) as step:
            ref.download(path, target, progress=step)
        s.out.say(f"Wrote {target}.", {"path": path, "file": str(target)})


def cp(source: PlaceArgument, target: PlaceArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Copy an object, or with a "/" at the end of both a folder, at one instant and without copying bytes."""
    with session(lake, as_json) as s:
        (ref, path), (branch, to) = s.place(source), s.branch_place(target)
        to = _named(path, to)
        if ref._core.stores.repository_id != branch._core.stores.repository_id:
            raise UsageError("A copy stays in one repository.", next="Use get and put, or export and put --recursive.")
        with s.out.progress("copying"):
            count = branch.copy(path, to, ref=ref)
        s.out.say(f"Copied {counted(count, 'object')} to {to}.", {"copied": count, "target": to})


def mv(source: PlaceArgument, target: PlaceArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Rename an object, or with a "/" at the end of both a folder, at one instant."""
    with session(lake, as_json) as s:
        if place_on_a_ref(source)[:2] != place_on_a_ref(target)[:2]:
            raise UsageError("A rename stays on one branch.", next="Use cp, then rm.")
        branch, path = s.branch_place(source)
        to = _named(path, place_on_a_ref(target)[2])
        with s.out.progress("renaming"):
            count = branch.rename(path, to)
        s.out.say(f"Renamed {counted(count, 'object')} to {to}.", {"renamed": count, "target": to})


def _named(path: str, target: str) -> str:
    """An object that goes into a folder keeps its name."""
    if not path:
        raise UsageError("No path is named to take from.", next="Write repository/ref/path.")
    return target + path.rpartition("/")[2] if not path.endswith("/") and target[-1:] in ("", "/") else target


def import_objects(
    source: Annotated[str, typer.Argument(help="A local folder, or a URL such as s3://bucket/prefix.")],
    place: Annotated[str, typer.Argument(help="repository/branch/path", autocompletion=complete_place)],
    message: MessageOption = None,
    meta: MetaOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Delete what else lies at the place.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit references to objects where they are; no bytes are copied."""
    with session(lake, as_json) as s:
        branch, path = s.branch_place(place)
        with s.out.progress("importing") as step:
            done = branch.import_objects(
                source, path, message, replace=replace, metadata=metadata_of(meta), progress=step
            )
        id = None if done.commit is None else done.commit.id
        told = f"Imported {counted(done.objects, 'object')}"
        told += f": {id[:12]}" if id else "; all of them were there already."
        s.out.say(told, {"objects": done.objects, "commit": id})


class Counted(io.RawIOBase):
    """A binary file that says how many bytes of it were read, in all."""

    def __init__(self, file: IO[bytes], step: Callable[[int], object]) -> None:
        self._file = file
        self._step = step
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._done += len(data)
        self._step(self._done)
        return len(data)


def rm(
    place: PlaceArgument,
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
                next="`strandline ls REPOSITORY/REF/` lists what there is.",
            )
        s.out.say(f"Deleted {counted(count, 'object')}.", {"deleted": count})


def export(
    place: PlaceArgument,
    folder: Annotated[str, typer.Argument(help="A new or empty folder, or a URL such as s3://bucket/prefix.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a path, and what is below it, into plain files that any tool reads; with a "/" at the end what is below."""
    with session(lake, as_json) as s:
        ref, path = s.place(place)
        with s.out.progress("exporting") as step:
            count = ref.export(folder, prefix_of(ref, path), progress=step)
        s.out.say(f"Exported {counted(count, 'object')} to {folder}.", {"objects": count, "folder": folder})


def prefix_of(ref: Ref, path: str) -> str:
    """The prefix of what a path means: itself, and what is below it. No stored prefix is meant, which is a text.

    Raises:
        UsageError: there is an object at the path and others below it, which no folder can hold.
    """
    if not path or path.endswith("/"):
        return path
    below = path + "/"
    has_below = any(True for _ in ref.list(below, amount=1))
    if not ref.exists(path):
        return below
    if has_below:
        raise UsageError(
            f"{path!r} is an object, and there are others below it: no folder holds both.",
            next=f"Take what is below it, {below}, or the object alone, with get.",
        )
    raise UsageError(f"{path!r} is an object.", next="Use get for a single one.")
