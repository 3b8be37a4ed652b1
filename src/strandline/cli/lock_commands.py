"""`strandline lock`: what is frozen, freezing and letting go"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.branch.locking import OnDirty
from strandline.branch.rules.ranges import told
from strandline.branch.rules.record import LockMode
from strandline.cli.output import counted
from strandline.cli.session import JsonOption, LakeOption, complete_place, session
from strandline.errors import UsageError
from strandline.repository.locks.locks import LockInfo

app = typer.Typer(name="lock", help="Locks on ranges of a branch: everyone else keeps working beside them.")
owner_app = typer.Typer(name="owner", help="The owners that may hold locks, and what each is for.")
app.add_typer(owner_app)

BranchArgument = Annotated[str, typer.Argument(help="repository/branch", autocompletion=complete_place)]
RepositoryArgument = Annotated[str, typer.Argument(help="The repository.")]
PrefixesArgument = Annotated[list[str] | None, typer.Argument(metavar="[PREFIX]...", help="What to lock.")]
BetweenOption = Annotated[
    list[str] | None,
    typer.Option("--between", metavar="START..END", help="A range of paths; without END, to the very end."),
]
OwnerOption = Annotated[str, typer.Option(help="Registered with `lock owner add`.")]
TimeoutOption = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait for locks of others.")
]
DirtyOption = Annotated[OnDirty, typer.Option(help="What to do about uncommitted changes there.")]
ModeOption = Annotated[
    LockMode,
    typer.Option(
        help="exclusive: only the holder can change it; shared: nobody can; quarantine: only the holder can read it."
    ),
]
COLUMNS = ("id", "what", "owner", "mode", "state", "since", "description")


def ranges_of(prefixes: list[str] | None, between: list[str] | None) -> list[str | tuple[str, str | None]]:
    """What the arguments name."""
    if "" in (prefixes or []):
        raise UsageError("An empty prefix would lock everything.", next="If you mean the whole branch, say --branch.")
    found: list[str | tuple[str, str | None]] = [*(prefixes or [])]
    for text in between or []:
        start, dots, end = text.partition("..")
        if not dots:
            raise UsageError(f"{text!r} is not a range.", next="Write --between START..END, such as 2024/01..2024/04.")
        found.append((start, end or None))
    return found


def owner_given(owner: str) -> str:
    if not owner:
        raise UsageError("An owner is needed.", next="Give --owner; `strandline lock owner add` registers one.")
    return owner


def _fields(found: LockInfo) -> dict[str, Any]:
    return {
        "id": found.id,
        "what": "the whole branch" if found.is_whole else told(found.ranges),
        "owner": found.owner,
        "mode": found.mode,
        "state": found.state,
        "since": found.taken_at,
        "description": found.description,
        "transaction": found.transaction,
        "ranges": [[one.start, one.end] for one in found.ranges],
    }


@app.command()
def take(
    branch: BranchArgument,
    prefix: PrefixesArgument = None,
    owner: OwnerOption = "",
    between: BetweenOption = None,
    whole: Annotated[
        bool, typer.Option("--branch", help="The whole branch; other locks have no effect until it ends.")
    ] = False,
    mode: ModeOption = "exclusive",
    wait: TimeoutOption = 0.0,
    on_dirty: DirtyOption = "fail",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Freeze ranges until they are released by the id that is printed."""
    owner_given(owner)
    wanted = ranges_of(prefix, between)
    if whole == bool(wanted):
        raise UsageError("Name prefixes, or --between, or --branch.", next="For example: tables/flights/month=1/")
    with session(lake, as_json) as s:
        locks = s.branch(branch).locks
        if whole:
            found = locks.take_branch(owner=owner, mode=mode, timeout_s=wait, on_dirty=on_dirty)
        else:
            found = locks.take(wanted, owner=owner, mode=mode, timeout_s=wait, on_dirty=on_dirty)
        s.out.say(f"Locked {_fields(found)['what']}: lock {found.id}.", _fields(found))


@app.command()
def release(
    branch: BranchArgument,
    id: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="As `lock list` shows them.")] = None,
    owner: Annotated[str | None, typer.Option(help="All locks of this owner.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End locks. A transaction that holds one is aborted: nothing of it will be published."""
    if bool(id) == bool(owner):
        raise UsageError(
            "Name ids or an --owner, and not both.", next="`strandline lock list REPOSITORY/BRANCH` shows both."
        )
    with session(lake, as_json) as s:
        handle = s.branch(branch)
        chosen = [one for one in handle.locks if one.id in (id or ()) or one.owner == owner]
        missing = sorted(set(id or ()) - {one.id for one in chosen})
        if missing:
            handle.locks[missing[0]]
        if owner is not None and not chosen and owner not in s.repository(branch.partition("/")[0]).lock_owners:
            raise UsageError(
                f"There is no owner {owner!r}.", next="`strandline lock owner list REPOSITORY` lists them."
            )
        for one in sorted(chosen, key=lambda one: not one.is_whole):
            if one.transaction is not None:
                handle.transactions.abort(one.transaction)
                handle.locks.end([one.id])
            else:
                handle.locks.release(one.id)
        s.out.say(f"Released {counted(len(chosen), 'lock')}.", {"released": [one.id for one in chosen]})


@app.command("list")
def list_locks(
    branch: BranchArgument,
    prefix: PrefixesArgument = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the locks of a branch, or the locked parts of some prefixes."""
    with session(lake, as_json) as s:
        locks = s.branch(branch).locks
        s.out.rows(map(_fields, locks.find(prefix) if prefix else locks), COLUMNS, "No locks.")


@app.command("repo")
def take_repository(
    repository: RepositoryArgument,
    owner: OwnerOption = "",
    mode: ModeOption = "exclusive",
    wait: TimeoutOption = 0.0,
    on_dirty: DirtyOption = "fail",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Freeze all branches of a repository, present and future, until `lock release-repo`."""
    owner_given(owner)
    with session(lake, as_json) as s:
        lock = (
            s.repository(repository).lock_repository(owner=owner, mode=mode, timeout_s=wait, on_dirty=on_dirty).take()
        )
        s.out.say(f"Locked all branches of {repository}: lock {lock.id}.", {"id": lock.id})


@app.command("release-repo")
def release_repository(repository: RepositoryArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """End the lock on all branches of a repository."""
    with session(lake, as_json) as s:
        was = s.repository(repository).unlock()
        s.out.say("Released all branches." if was else "There was no lock on all branches.", {"released": was})


@owner_app.command("add")
def add_owner(
    repository: RepositoryArgument,
    name: Annotated[str, typer.Argument(help="The owner's name.")],
    description: Annotated[str, typer.Argument(help="What it locks things for: others read it in their errors.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register an owner, or change its description."""
    with session(lake, as_json) as s:
        s.repository(repository).lock_owners.register(name, description)
        s.out.say(f"Registered {name}.", {"owner": name, "description": description})


@owner_app.command("delete")
def delete_owner(
    repository: RepositoryArgument,
    name: Annotated[str, typer.Argument(help="The owner's name.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove an owner that holds no locks."""
    with session(lake, as_json) as s:
        owners = s.repository(repository).lock_owners
        was = name in owners
        owners.remove(name)
        s.out.say(f"Deleted owner {name}." if was else f"There was no owner {name!r}.", {"owner": name, "deleted": was})


@owner_app.command("list")
def list_owners(repository: RepositoryArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the owners."""
    with session(lake, as_json) as s:
        owners = s.repository(repository).lock_owners
        rows = ({"owner": one.name, "description": one.description, "registered": one.registered_at} for one in owners)
        s.out.rows(rows, ("owner", "description", "registered"), "No owners.")
