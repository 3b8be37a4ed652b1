"""`strandline status`, `commit`, `log`, `diff`, `merge`, `revert`, `cherry-pick` and `reset`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any

import typer

from strandline.branch.commits import Commit
from strandline.cli.graph import graph_lines
from strandline.cli.session import (
    NOTHING_THERE,
    AfterOption,
    AmountOption,
    JsonOption,
    LakeOption,
    MessageOption,
    MetaOption,
    below,
    complete_place,
    metadata_of,
    session,
)
from strandline.errors import MergeConflict, UsageError
from strandline.places import place_on_a_ref
from strandline.results.differences import Diff

BranchArgument = Annotated[str, typer.Argument(help="repository/branch", autocompletion=complete_place)]
RefArgument = Annotated[str, typer.Argument(help="repository/ref", autocompletion=complete_place)]
PrefixOption = Annotated[str, typer.Option(help="Only what is below this path.")]
FoldersOption = Annotated[bool, typer.Option("--folders", help="Show a folder once, not what is in it.")]
AllowEmptyOption = Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changes.")]
CHANGE_COLUMNS = ("kind", "path", "size")


def _changes(diff: Diff) -> Iterator[dict[str, Any]]:
    for change in diff:
        yield {
            "kind": change.kind,
            "path": change.path,
            "size": change.after.size if change.after else None,
            "size_before": change.before.size if change.before else None,
        }


def _commit_fields(commit: Commit) -> dict[str, Any]:
    return {
        "commit": commit.id,
        "date": commit.date,
        "committer": commit.committer,
        "message": commit.message,
        "parents": list(commit.parents),
        "metadata": commit.metadata,
    }


def status(
    branch: BranchArgument,
    prefix: PrefixOption = "",
    folders: FoldersOption = False,
    after: AfterOption = "",
    amount: AmountOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a commit would change."""
    with session(lake, as_json) as s:
        delimiter = "/" if folders else ""
        found = s.branch(branch).uncommitted(below(prefix), delimiter=delimiter, after=after, amount=amount)
        s.out.rows(_changes(found), CHANGE_COLUMNS, NOTHING_THERE if prefix or after else "Nothing to commit.")


def commit(
    branch: BranchArgument,
    message: MessageOption = None,
    meta: MetaOption = None,
    allow_empty: AllowEmptyOption = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit everything that is staged on a branch."""
    with session(lake, as_json) as s:
        if message is None:
            raise UsageError("A commit needs a message.", next='Write -m "what changes, and why".')
        made = s.branch(branch).commit(message, metadata=metadata_of(meta), allow_empty=allow_empty)
        s.out.say(f"Committed {made.id[:12]}: {message}", _commit_fields(made))


def log(
    ref: RefArgument,
    graph: Annotated[bool, typer.Option("--graph", help="Draw branches and merges.")] = False,
    amount: Annotated[int | None, typer.Option("--amount", "-n", min=0, help="The most commits to show.")] = None,
    first_parent: Annotated[bool, typer.Option("--first-parent", help="Do not go into what was merged.")] = False,
    path: Annotated[list[str] | None, typer.Option(help="Only commits that changed this path.")] = None,
    prefix: Annotated[
        list[str] | None, typer.Option(help="Only commits that changed something below this path.")
    ] = None,
    since: Annotated[str | None, typer.Option(help='A time, such as "2 days ago" or 2026-11-01.')] = None,
    until: Annotated[str | None, typer.Option(help="A time.")] = None,
    after: Annotated[str | None, typer.Option(help="Begin behind this commit.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the history of a ref, newest first."""
    with session(lake, as_json) as s:
        found = s.ref(ref).log(
            amount=amount,
            first_parent=first_parent,
            paths=path or (),
            prefixes=[below(one) for one in prefix or ()],
            since=since,
            until=until,
            after=after,
        )
        if graph and not as_json:
            s.out.lines(graph_lines(found))
        else:
            rows = ({**_commit_fields(one), "id": one.id[:12]} for one in found)
            s.out.rows(rows, ("id", "date", "committer", "message"))


def diff(
    left: RefArgument,
    right: Annotated[str, typer.Argument(help="repository/ref of the same repository")],
    prefix: PrefixOption = "",
    folders: FoldersOption = False,
    after: AfterOption = "",
    amount: AmountOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what changes from the commit of one ref to that of another."""
    with session(lake, as_json) as s:
        delimiter = "/" if folders else ""
        found = s.ref(left).diff(s.ref(right), below(prefix), delimiter=delimiter, after=after, amount=amount)
        s.out.rows(_changes(found), CHANGE_COLUMNS, NOTHING_THERE if prefix or after else "No differences.")


StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[PREFIX=]WORD",
        help="source-wins or dest-wins for conflicts, or serializable; may be repeated for parts.",
    ),
]
TakeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=SIDE",
        help="source or dest: the side whose content replaces an object, folder, table or partition; may be repeated.",
    ),
]


class AppendedChoice(StrEnum):
    fail = "fail"
    keep = "keep"


AppendedOption = Annotated[
    AppendedChoice, typer.Option(help="Where one side replaced rows of a partition and the other one added some.")
]


def merge(
    source: RefArgument,
    destination: BranchArgument,
    message: MessageOption = None,
    meta: MetaOption = None,
    strategy: StrategyOption = None,
    take: TakeOption = None,
    appended: AppendedOption = AppendedChoice.fail,
    squash: Annotated[bool, typer.Option("--squash", help="One commit with one parent.")] = False,
    allow_empty: AllowEmptyOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change, and the conflicts.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge a ref into a branch."""
    with session(lake, as_json) as s:
        if place_on_a_ref(source)[0] != place_on_a_ref(destination)[0]:
            raise UsageError("A merge stays in one repository.", next="Name two refs of the same one.")
        target = s.branch(destination)
        chosen = _decisions(strategy, take, appended)
        if dry_run:
            found = target.preview_merge(s.ref(source), **chosen)
            changes = ({**change, "reason": None} for change in _changes(found.changes))
            rows = chain(changes, _conflicts(found.conflicts))
            s.out.rows(rows, _columns(found.conflicts), "Nothing would change.")
            if found.conflicts:
                raise typer.Exit(MergeConflict("").exit_code)
            return
        try:
            made = target.merge(
                s.ref(source), message, squash=squash, metadata=metadata_of(meta), allow_empty=allow_empty, **chosen
            )
        except MergeConflict as conflict:
            s.out.rows(_conflicts(conflict.reasons), _columns(conflict.reasons))
            raise
        s.out.say(f"Merged {source} into {destination}: {made.id[:12]}", _commit_fields(made))


def _columns(reasons: Mapping[str, str]) -> tuple[str, ...]:
    return ("kind", "path", "reason") if reasons else ("kind", "path")


def _conflicts(reasons: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"kind": "conflict", "path": path, "reason": why or None} for path, why in reasons.items()]


def _decisions(strategy: list[str] | None, take: list[str] | None, appended: AppendedChoice) -> dict[str, Any]:
    strategies: dict[str, Any] = {}
    for text in strategy or []:
        prefix, _, word = text.rpartition("=")
        strategies[prefix] = word
    sides: dict[str, Any] = {}
    for text in take or []:
        path, equals, side = text.rpartition("=")
        if not equals or not path:
            raise UsageError(f"{text!r} is not PATH=SIDE.", next="For example --take tables/orders/month=3=source.")
        sides[path] = side
    return {"strategy": strategies, "take": sides, "appended": appended.value}


def revert(
    branch: BranchArgument,
    commit_ref: Annotated[str, typer.Argument(metavar="COMMIT", help="A ref expression of the same repository.")],
    parent: Annotated[int | None, typer.Option(help="Of a merge: the parent whose side stays, from 1.")] = None,
    message: MessageOption = None,
    meta: MetaOption = None,
    allow_empty: AllowEmptyOption = False,
    strategy: StrategyOption = None,
    take: TakeOption = None,
    appended: AppendedOption = AppendedChoice.fail,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit the opposite of what a commit did."""
    with session(lake, as_json) as s:
        chosen = _decisions(strategy, take, appended) | {"metadata": metadata_of(meta), "allow_empty": allow_empty}
        made = s.branch(branch).revert(commit_ref, message, parent=parent, **chosen)
        s.out.say(f"Committed {made.id[:12]}: {made.message}", _commit_fields(made))


def cherry_pick(
    branch: BranchArgument,
    commit_ref: Annotated[str, typer.Argument(metavar="COMMIT", help="A ref expression of the same repository.")],
    parent: Annotated[int | None, typer.Option(help="Of a merge: the parent to compare with, from 1.")] = None,
    message: MessageOption = None,
    meta: MetaOption = None,
    allow_empty: AllowEmptyOption = False,
    strategy: StrategyOption = None,
    take: TakeOption = None,
    appended: AppendedOption = AppendedChoice.fail,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit again, on a branch, what a commit did elsewhere."""
    with session(lake, as_json) as s:
        chosen = _decisions(strategy, take, appended) | {"metadata": metadata_of(meta), "allow_empty": allow_empty}
        made = s.branch(branch).cherry_pick(commit_ref, message, parent=parent, **chosen)
        s.out.say(f"Committed {made.id[:12]}: {made.message}", _commit_fields(made))


def hard_reset(
    branch: BranchArgument,
    target: Annotated[str, typer.Argument(metavar="REF", help="A ref expression of the same repository.")],
    force: Annotated[bool, typer.Option("--force", help="Throw away what is staged.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the head of a branch to any commit; `reflog` shows where it was. `discard` is for staged changes."""
    with session(lake, as_json) as s:
        found = s.branch(branch)
        before = found.commit_id
        found.hard_reset(target, force=force)
        s.out.say(
            f"Moved {branch} from {before[:12]} to {found.commit_id[:12]}.",
            {"branch": branch, "before": before, "commit": found.commit_id},
        )


def discard(
    branch: BranchArgument,
    path: Annotated[str | None, typer.Option(help="Only this path.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only what is below this path.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Throw staged changes away."""
    with session(lake, as_json) as s:
        prefix = None if prefix is None else below(prefix)
        s.branch(branch).discard(path, prefix=prefix)
        what = path or prefix or "everything staged"
        s.out.say(f"Discarded {what} on {branch}.", {"branch": branch, "discarded": what})
