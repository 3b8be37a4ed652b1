"""What every command begins with: its lake, its output, and the `repository/ref/path` that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

import strandline
from strandline.cli.output import Output
from strandline.errors import UsageError
from strandline.lake import Lake
from strandline.places import Place, place_on_a_ref
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.repository.repository import Repository

COMPLETIONS_MAX = 100
LakeOption = Annotated[
    str | None,
    typer.Option("--lake", envvar="STRANDLINE_LAKE", help="The lake: a folder or a TOML file.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")]
NamePrefixOption = Annotated[str, typer.Option(help="Only names that begin with this.")]
AfterOption = Annotated[str, typer.Option(help="Begin behind this one.")]
AmountOption = Annotated[int | None, typer.Option(min=0, help="The most to show.")]
NOTHING_THERE = "Nothing there."
"""What a list says that is empty because of where it begins, or of what it is asked for."""
MessageOption = Annotated[str | None, typer.Option("--message", "-m", help="The commit message.")]
MetaOption = Annotated[list[str] | None, typer.Option("--meta", help="Metadata of the commit, as key=value.")]


def complete_place(incomplete: str) -> list[str]:
    """What a shell may complete a place to: repositories, then refs, then folders and objects."""
    try:
        with strandline.open(compaction=False) as lake:
            repository, ref, path = Place.named_by(incomplete)
            if "/" not in incomplete:
                return [f"{one.name}/" for one in lake.repositories() if one.name.startswith(repository)]
            held = lake.repository(repository)
            if incomplete.count("/") == 1:
                found = [*held.branches(ref), *held.tags(ref)]
                return [f"{repository}/{one.name}" for one in found]
            listing = held.ref(ref).list(path, delimiter="/", amount=COMPLETIONS_MAX)
            return [f"{repository}/{ref}/{one.path}" for one in listing]
    except Exception:  # a shell has no use for an error
        return []


@dataclass(frozen=True, slots=True)
class Session:
    lake: Lake
    out: Output

    def repository(self, name: str) -> Repository:
        if "/" in name:
            raise UsageError(f"{name!r} is not the name of a repository.", next="Write only its name, such as nyc.")
        return self.lake.repository(name)

    def ref(self, text: str) -> Ref:
        """The ref of `repository/ref`."""
        repository, ref, path = place_on_a_ref(text)
        if path:
            raise UsageError(f"{text!r} names a path; this command takes a ref.", next=f"Write {repository}/{ref}.")
        return self.lake.repository(repository).ref(ref)

    def branch(self, text: str) -> Branch:
        repository, ref, path = place_on_a_ref(text)
        if path:
            raise UsageError(f"{text!r} names a path; this command takes a branch.", next=f"Write {repository}/{ref}.")
        return self.lake.repository(repository).branch(ref)

    def name_of(self, text: str, what: str) -> tuple[str, str]:
        """The repository and the name of `repository/name`, of a command that takes no path."""
        repository, name, path = place_on_a_ref(text)
        if path or text.count("/") > 1:
            raise UsageError(f"{text!r} names a path; this command takes a {what}.", next=f"Write {repository}/{name}.")
        return repository, name

    def place(self, text: str) -> tuple[Ref, str]:
        """The ref and the path of `repository/ref/path`."""
        repository, ref, path = place_on_a_ref(text)
        return self.lake.repository(repository).ref(ref), path

    def branch_place(self, text: str) -> tuple[Branch, str]:
        repository, ref, path = place_on_a_ref(text)
        return self.lake.repository(repository).branch(ref), path


@contextmanager
def session(lake: str | None, as_json: bool) -> Iterator[Session]:
    out = Output(as_json)
    with strandline.open(lake) as opened:
        yield Session(opened, out)


def below(path: str) -> str:
    """The prefix of what is below a path: on the command line no option takes `dir` for `dir2/x` as well."""
    return path if not path or path.endswith("/") else path + "/"


def metadata_of(pairs: list[str] | None) -> dict[str, str]:
    metadata = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r} is not key=value.", next="For example --meta job=42.")
        metadata[key] = value
    return metadata
