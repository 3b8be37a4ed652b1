"""Says whether a history keeps the promises of `docs/guarantees.md`. It knows nothing of tokens, layers and epochs.

Everything is judged by intervals: an operation takes effect at some instant between its start and its end, and one
with an unknown outcome at some instant after its start, or never. The names of the checks are the promises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from strandline.branch.rules.lock_rules import is_live
from strandline.branch.rules.ranges import as_ranges, overlap
from strandline.branch.rules.record import BranchRecord, LockRecord
from strandline.testing.simulation.history import (
    CREATED,
    PATHS,
    Broken,
    History,
    Listing,
    Operation,
    RecordChange,
    Value,
)
from strandline.testing.simulation.one_shot_promises import one_shots

ATOMIC = (
    "atomic put",
    "delete prefix",
    "rename",
    "copy",
    "merge",
    "revert",
    "cherry-pick",
    "reset",
    "hard reset",
    "publish",
    "one shot",
)
MOVES = ("rename", "copy")
SILENT_US = 60_000_000
BEFORE_ALL = -2
"""When the first head's values came: what is staged as a history begins came at -1, and hides them."""
HEAD_MOVES = ("merge", "revert", "cherry-pick", "publish", "one shot")


@dataclass(slots=True, eq=False)
class Effect:
    """What an operation may have put at a path.

    Attributes:
        values: what it may be; None in it stands for "nothing there"; None for what `moved_from` holds, if that is
            known.
        is_certain: whether it surely took effect by its end.
        moved_from: of a rename or copy, the path that the value comes from.
        shows_until: the earliest end of an effect on the path that surely came after this one.
        vanishes: when nothing of it may show any more: it was refused.
    """

    start: float
    end: float
    values: frozenset[Value] | None
    is_certain: bool
    operation: Operation | None = None
    moved_from: str | None = None
    shows_until: float = math.inf
    vanishes: float = math.inf


@dataclass(slots=True)
class _Hold:
    """A lock, from when it became held until it ended.

    Attributes:
        values: by path, what somebody has read there meanwhile.
    """

    creation: str
    lock: LockRecord
    start: int
    end: float = math.inf
    values: Listing = field(default_factory=dict)

    def covers(self, path: str) -> bool:
        return any(one.has(path) for one in self.lock.ranges)


@dataclass
class _Creation:
    """One creation of a branch name: its life and its effects by path."""

    id: str
    name: str
    heads: list[tuple[float, str]] = field(default_factory=list)
    effects: dict[str, list[Effect]] = field(default_factory=lambda: defaultdict(list))
    deleted: float = math.inf

    def heads_between(self, start: float, end: float) -> list[str]:
        """The heads that were current at some moment of an interval."""
        found = []
        for (since, head), (until, _) in zip(self.heads, [*self.heads[1:], (math.inf, "")], strict=True):
            if since <= end and until >= start:
                found.append(head)
        return found


class Oracle:
    """Judges a history.

    Args:
        one_instant: whether a page of a scan is of one instant, so that a listing is too. Where it is not, each path
            of a listing is of an instant of its own.
        clocks_agree: whether those who wait for locks are promised their turn.
    """

    def __init__(self, history: History, one_instant: bool = True, clocks_agree: bool = True) -> None:
        self.history = history
        self.one_instant = one_instant
        self.clocks_agree = clocks_agree
        self.creations = self._creations()
        self.by_commit = self._operations_by_commit()
        for op in history.operations:
            self._add_effects(op)
        for made in self.creations.values():
            for effects in made.effects.values():
                for effect in effects:
                    later = [other.end for other in effects if other.is_certain and other.start > effect.end]
                    effect.shows_until = min([*later, effect.vanishes])

    def check(self) -> Iterator[Broken]:
        yield from self._one_chain()
        yield from self._done_once()
        for op in self.history.operations:
            yield from self._check_operation(op)
        yield from self._conditional_puts()
        yield from self._protections()
        yield from self._transactions()
        yield from one_shots(self.history, self.by_commit)
        yield from self._locks()
        if self.clocks_agree:
            yield from self._turns()

    # --- what happened ------------------------------------------------------------------------------------------------

    def _creations(self) -> dict[str, _Creation]:
        found: dict[str, _Creation] = {}
        for change in self.history.changes:
            after = change.after
            if after is not None:
                made = found.get(after.branch_id)
                if made is None:
                    made = found[after.branch_id] = _Creation(after.branch_id, change.name)
                    made.heads.append((-1 if change.before is not None else change.step, after.head))
                    if change.before is not None:
                        made.heads[0] = (-1, change.before.head)
                        if after.head != change.before.head:
                            made.heads.append((change.step, after.head))
                elif made.heads[-1][1] != after.head:
                    made.heads.append((change.step, after.head))
            elif change.before is not None and change.before.branch_id in found:
                found[change.before.branch_id].deleted = change.step
        for made in found.values():
            first = self.history.listings.get(made.heads[0][1], {})
            for path, value in first.items():
                made.effects[path].append(Effect(BEFORE_ALL, BEFORE_ALL, frozenset({value}), True))
        return found

    def _operations_by_commit(self) -> dict[str, Operation]:
        """Commits carry the name of the operation that made them as their message."""
        named = {op.value: op for op in self.history.operations}
        return {id: named[record.message] for id, record in self.history.commits.items() if record.message in named}

    def _add_effects(self, op: Operation) -> None:
        made = self.creations.get(op.creation)
        if made is None or op.status == "failed":
            return
        if op.kind == "create" and op.status == "refused":
            # an entry that was judged too early may show until it is taken back, and what was there is put back
            path = op.arguments["path"]
            earlier = [
                other.value
                for other in self.history.operations
                if other.start < op.end and other.kind == "create" and other is not op
            ]
            made.effects[path].append(Effect(op.start, op.end, frozenset({op.value}), False, op, vanishes=op.end))
            made.effects[path].append(Effect(op.start, op.end, frozenset([None, *earlier]), False, op))
            return
        if op.status == "refused" and op.error == "RangeLocked":
            # it may have been written before the lock was met: until it is refused it shows, and then no more; of many
            # writes that are not one, those beside the lock stay
            until = math.inf if op.kind in ("put many", "delete many") else op.end
            for path, value in op.values.items():
                made.effects[path].append(Effect(op.start, op.end, frozenset({value}), False, op, vanishes=until))
        if op.status == "refused":
            return
        certain = op.status == "ok"
        if op.kind in MOVES:
            source, target = op.arguments["source"], op.arguments["target"]
            made.effects[target].append(Effect(op.start, op.end, None, certain, op, moved_from=source))
            if op.kind == "rename":
                made.effects[source].append(Effect(op.start, op.end, frozenset({None}), certain, op))
        elif op.kind == "copy across":
            made.effects[op.arguments["target"]].append(Effect(op.start, op.end, None, certain, op))
        elif op.kind in HEAD_MOVES:
            # what is staged stays above a publication that keeps it, and may go on to show
            certain = certain and op.arguments.get("on_staged") != "keep"
            for id in [id for id, by in self.by_commit.items() if by is op]:
                record = self.history.commits[id]
                before, after = self.history.listings[record.parents[0]], self.history.listings[id]
                for path in before:
                    if before[path] != after[path]:
                        made.effects[path].append(Effect(op.start, op.end, frozenset({after[path]}), certain, op))
        elif op.kind == "reset":
            heads = made.heads_between(op.start, op.end)
            what = op.arguments["what"]
            for path in (*PATHS, CREATED):
                if path == what or (what in ("", "c/") and path.startswith(what)):
                    values = frozenset(self.history.listings[head][path] for head in heads)
                    made.effects[path].append(Effect(op.start, op.end, values, certain, op))
        elif op.arguments.get("on_dirty") == "discard":
            heads = made.heads_between(op.start, op.end)
            ranges = as_ranges(op.arguments["what"])
            for path in (*PATHS, CREATED):
                if any(one.has(path) for one in ranges):
                    values = frozenset(self.history.listings[head][path] for head in heads)
                    made.effects[path].append(Effect(op.start, op.end, values, certain, op))
        elif op.kind == "hard reset" and "commit" in op.arguments:
            for path, value in self.history.listings.get(op.arguments["commit"], {}).items():
                made.effects[path].append(Effect(op.start, op.end, frozenset({value}), certain, op))
        for path, value in op.values.items():
            made.effects[path].append(Effect(op.start, op.end, frozenset({value}), certain, op))

    # --- observations -------------------------------------------------------------------------------------------------

    def _sources(self, made: _Creation, path: str, value: Value, at: float, depth: int = 0) -> list[Effect]:
        """The effects that can be what shows at a path at an instant."""
        return [
            source
            for source in made.effects[path]
            if source.start <= at <= source.shows_until and self._may_be(made, source, value, depth)
        ]

    def _may_be(self, made: _Creation, source: Effect, value: Value, depth: int) -> bool:
        if source.values is not None:
            return value in source.values
        if value is None:
            return False
        if source.moved_from is None:
            return True  # from another branch, or another time
        if depth > 3:
            return True  # a value that was moved that often may have come from anywhere
        return any(
            self._sources(made, source.moved_from, value, at, depth + 1)
            for at in self._instants(made, [source.moved_from], source.start, source.end)
        )

    def _instants(self, made: _Creation, paths: Iterable[str], start: float, end: float) -> list[float]:
        """The instants of an interval at which something may become possible: its start, and starts of effects."""
        starts = {effect.start for path in paths for effect in made.effects[path] if start <= effect.start <= end}
        return sorted({start, *starts})

    def _possible(self, made: _Creation, seen: Listing, start: float, end: float) -> str:
        """Whether a listing was what a branch held at one instant of an interval; empty if so, else why not."""
        why = "nobody ever wrote it"
        for at in self._instants(made, seen, start, end):
            sources = {path: self._sources(made, path, value, at) for path, value in seen.items()}
            missing = [path for path, found in sources.items() if not found]
            if missing:
                if any(path in made.effects for path in missing):
                    why = f"{missing[0]!r} cannot have held {seen[missing[0]]!r} together with the rest"
                continue
            half = self._half(made, seen, sources)
            if not half:
                return ""
            why = half
        return why

    def _shown(self, made: _Creation, seen: Listing, start: float, end: float) -> str:
        """Whether a read may have shown this; empty if so, else why not."""
        if self.one_instant:
            return self._possible(made, seen, start, end)
        return next(filter(None, (self._possible(made, {path: seen[path]}, start, end) for path in seen)), "")

    def _half(self, made: _Creation, seen: Listing, sources: dict[str, list[Effect]]) -> str:
        """An atomic operation that shows at one path and surely not yet at another."""
        for path, found in sources.items():
            if len(found) != 1 or found[0].operation is None or found[0].operation.kind not in ATOMIC:
                continue
            if found[0].operation.arguments.get("on_staged") == "keep":
                continue  # some of it may lie beneath what was staged
            shown = found[0].operation
            for other, candidates in sources.items():
                mine = [effect for effect in made.effects[other] if effect.operation is shown]
                if mine and other != path and all(effect.end < shown.start for effect in candidates):
                    return f"{shown} shows at {path!r} and not at {other!r}, which holds {seen[other]!r}"
        return ""

    def _check_operation(self, op: Operation) -> Iterator[Broken]:
        made = self.creations.get(op.creation)
        if op.kind == "list committed" and op.status == "ok":
            expected = self.history.listings.get(op.arguments["commit"])
            if expected is not None and op.result != expected:
                yield Broken("a ref to a commit reads the same for ever", f"{op} read {op.result}, not {expected}")
        if made is None:
            return
        if op.status == "ok" and op.start > made.deleted and op.kind not in ("create branch", "delete branch"):
            yield Broken("nothing is written to a deleted branch", f"{op}, deleted at {made.deleted}")
        if op.seen is not None and op.status in ("ok", "refused"):
            why = self._shown(made, op.seen, op.start, op.end)
            if why:
                yield Broken(
                    "a read shows what the branch held at an instant, acknowledged writes included", f"{op}: {why}"
                )
        if op.kind == "pages" and op.status == "ok":
            for path, value in op.result.items():
                if why := self._possible(made, {path: value}, op.start, op.end):
                    yield Broken(
                        "each page of a listing is right for an instant", f"{op} got {path!r}={value!r}: {why}"
                    )
        if op.kind == "status" and op.status == "ok":
            yield from self._check_status(made, op)
        if op.kind == "commit":
            yield from self._check_commit(made, op)
        if op.kind in HEAD_MOVES and op.status in ("refused", "failed"):
            mine = [id for id, by in self.by_commit.items() if by is op]
            if mine:
                yield Broken("an operation with a lost reply says done, not done or unknown", f"{op}, but {mine[0]} is")

    def _check_status(self, made: _Creation, op: Operation) -> Iterator[Broken]:
        heads = made.heads_between(op.start, op.end)
        changes = dict(op.result)
        whys = []
        for head in heads:
            shown = {**self.history.listings[head], **changes}
            whys.append(self._shown(made, shown, op.start, op.end))
        if whys and all(whys):
            yield Broken("uncommitted changes are those of an instant", f"{op} showed {changes}: {whys[0]}")

    def _check_commit(self, made: _Creation, op: Operation) -> Iterator[Broken]:
        mine = [id for id, by in self.by_commit.items() if by is op]
        if op.status == "ok" and op.result not in mine:
            yield Broken("a commit that was acknowledged is in the chain", f"{op} made {op.result}")
        if op.status in ("refused", "failed") and mine:
            yield Broken(
                "an operation with a lost reply says done, not done or unknown", f"{op}, but {mine[0]} is there"
            )
        for id in mine:
            why = self._possible(made, self.history.listings[id], op.start, op.end)
            if why:
                held = self.history.listings[id]
                yield Broken(
                    "a commit is one listing of the branch between its start and end", f"{op} has {held}: {why}"
                )
        if op.error == "NothingToCommit":
            heads = made.heads_between(op.start, op.end)
            whys = [self._possible(made, self.history.listings[head], op.start, op.end) for head in heads]
            if whys and all(whys):
                yield Broken("a write that returned is part of every later commit", f"{op}, and {whys[-1]}")
        others = [c for c in self.history.changes if c.name == op.branch and op.start <= c.step <= op.end]
        heavy = sum(1 for change in others if change.operation is not op and not _is_seal(change))
        if op.built > 1 + heavy:
            yield Broken("retries are bounded by what others did", f"{op} computed {op.built} times, {heavy} others")

    # --- the whole history --------------------------------------------------------------------------------------------

    def _one_chain(self) -> Iterator[Broken]:
        for change in self.history.changes:
            before, after = change.before, change.after
            if before is None or after is None or before.head == after.head or after.branch_id != before.branch_id:
                continue
            verb = after.moves[0].verb
            record = self.history.commits.get(after.head)
            if verb != "reset" and (record is None or record.parents[0] != before.head):
                yield Broken(
                    "the commits of a branch form one chain", f"{verb} at {change.step}: {before.head} → {after.head}"
                )
            if (after.moves[0].before, after.moves[0].after) != (before.head, after.head):
                yield Broken("the reflog has each move of the head", f"step {change.step}: {after.moves[0]}")

    def _done_once(self) -> Iterator[Broken]:
        seen: dict[Operation, list[str]] = defaultdict(list)
        for id, op in self.by_commit.items():
            seen[op].append(id)
        for op, ids in seen.items():
            if len(ids) > 1:
                yield Broken("nothing is done twice", f"{op} made {len(ids)} commits")

    def _conditional_puts(self) -> Iterator[Broken]:
        for made in self.creations.values():
            won = [
                op
                for op in self.history.operations
                if op.kind == "create" and op.status == "ok" and op.creation == made.id
            ]
            for first in won:
                for second in won:
                    if first is second or first.number > second.number:
                        continue
                    between = [
                        effect
                        for effect in made.effects[CREATED]
                        if effect.operation is not None
                        and (effect.operation.kind != "create" or not effect.is_certain)
                        and effect.end >= min(first.start, second.start)
                        and effect.start <= max(first.end, second.end)
                    ]
                    if not between:
                        yield Broken("of several conditional puts one succeeds", f"{first} and {second}")

    def _protections(self) -> Iterator[Broken]:
        ops = self.history.operations
        on = [op for op in ops if op.kind == "protect" and op.status == "ok"]
        for rule in on:
            off = [op for op in ops if op.kind in ("unprotect", "protect") and op.start > rule.start]
            until = min((op.start for op in off), default=math.inf)
            forbidden = {
                "stage": ("put", "delete many", "put many", "atomic put", "copy", "rename", "create"),
                "commit": ("commit",),
                "read-only": ("put", "atomic put", "commit", "reset", "compact"),
            }
            for op in ops:
                named = op.kind in forbidden[rule.arguments["what"]] and op.branch == "main"
                earlier = [
                    o for o in ops if o.kind in ("unprotect", "protect") and o.start < rule.start and o.end > rule.start
                ]
                if named and op.status == "ok" and rule.end < op.start and op.end < until and not earlier:
                    yield Broken("what is protected is refused", f"{op} after {rule}")

    def _transactions(self) -> Iterator[Broken]:
        """Ids are given once, who is published was begun last, and nobody overwrites what it has not seen."""
        given: dict[tuple[str, int], Operation] = {}
        for op in self.history.operations:
            if op.kind == "begin" and op.status == "ok" and not op.result[1]:
                other = given.setdefault((op.creation, op.result[0]), op)
                if other is not op:
                    yield Broken("no transaction id is given twice", f"{op} and {other}")
        published: dict[tuple[str, str], int] = {}
        for change in self.history.changes:
            before, after = change.before, change.after
            if before is None or after is None or before.branch_id != after.branch_id:
                continue
            for name, writer in after.writers.items():
                old = before.writers.get(name)
                if writer.committed and (old is None or writer.committed != old.committed):
                    last = published.get((after.branch_id, name), 0)
                    if old is None or old.started != writer.committed or writer.committed <= last:
                        yield Broken("who is published was begun last", f"{name}: {old} → {writer} at {change.step}")
                    published[after.branch_id, name] = writer.committed
        for op in self.history.operations:
            if op.kind != "publish":
                continue
            is_new = op.status == "ok" and not op.arguments["repeat"] and op.arguments.get("changes")
            if is_new and op.result not in self.history.commits:
                yield Broken("a publication that was acknowledged is in the chain", f"{op} made {op.result}")
            yield from self._overwrites(op)
        again: dict[tuple[str, str, str], str] = {}
        for change in self.history.changes:
            if change.after is None or (record := self.history.commits.get(change.after.head)) is None:
                continue
            told = record.metadata
            if "strandline.token" in told and change.after.moves[0].after == record.id:
                key = (change.after.branch_id, told["strandline.writer"], told["strandline.token"])
                if again.setdefault(key, record.id) != record.id:
                    yield Broken("a token is published once", f"{key}: {again[key]} and {record.id}")

    def _holds(self) -> list[_Hold]:
        found: list[_Hold] = []
        for change in self.history.changes:
            before = _held(change.before)
            after = _held(change.after)
            same = change.before and change.after and change.before.branch_id == change.after.branch_id
            for hold in found:
                is_here = change.before is not None and hold.creation == change.before.branch_id
                if is_here and hold.end == math.inf and not (same and hold.lock in after):
                    hold.end = change.step
            if change.after is not None:
                new = [lock for lock in after if not (same and lock in before)]
                found += [_Hold(change.after.branch_id, lock, change.step) for lock in new]
        return found

    def _locks(self) -> Iterator[Broken]:
        """While a range is held, nobody but its holder changes it, and what it holds stays the same."""
        holds = self._holds()
        for op in self.history.operations:
            for hold in holds:
                if hold.creation != op.creation or not (hold.start < op.start and op.end < hold.end):
                    continue
                made = self.creations[op.creation]
                if op.status == "ok" and op.kind not in ("publish", "hold", "take lock"):
                    held = self.history.listings[hold.lock.base]
                    for path, effects in made.effects.items():
                        mine = [e for e in effects if e.operation is op and e.is_certain]
                        if hold.covers(path) and any(e.values != frozenset({held[path]}) for e in mine):
                            yield Broken("a held range is changed by its holder only", f"{op}: {path!r}, {hold.lock}")
                for path, value in (op.seen or {}).items():
                    if op.status == "ok" and hold.covers(path) and hold.values.setdefault(path, value) != value:
                        yield Broken(
                            "what a held range holds stays the same", f"{op}, before {hold.values[path]!r}: {hold.lock}"
                        )
        for change in self.history.changes:
            before, after = change.before, change.after
            if before is None or after is None or before.head == after.head or before.branch_id != after.branch_id:
                continue
            old, new = self.history.listings[before.head], self.history.listings[after.head]
            for lock in _held(before):
                is_own = after.moves[0].verb == "publish" and lock not in _held(after)
                changed = [path for path in old if old[path] != new[path] and any(r.has(path) for r in lock.ranges)]
                if changed and not is_own:
                    yield Broken("no commit changes a held range", f"{after.moves[0].verb} at {change.step}: {changed}")

    def _turns(self) -> Iterator[Broken]:
        """Who waits for a lock waits for those before it, and no others."""
        left: dict[str, int] = {}
        for change in self.history.changes:
            before, after = change.before, change.after
            if before is None or after is None or before.branch_id != after.branch_id:
                continue
            new = [lock for lock in after.locks if lock.id not in {one.id for one in before.locks}]
            for lock in new:
                for at, one in enumerate(before.waiting):
                    agree = one.mode == lock.mode == "shared"
                    if lock.taken_at - one.seen_at > SILENT_US:
                        continue  # who is silent for a minute loses its turn
                    if one.id != lock.id and not agree and overlap(one.ranges, lock.ranges):
                        left[one.id] = left.get(one.id, at) - 1
                        if left[one.id] < 0:
                            yield Broken("who waits for a lock gets its turn", f"{one} at {change.step}: {lock}")
            here = {one.id: at for at, one in enumerate(after.waiting)}
            left = {id: left.get(id, at) for id, at in here.items()}  # who was taken for dead begins again

    def _overwrites(self, op: Operation) -> Iterator[Broken]:
        begun = next(
            (
                other
                for other in self.history.operations
                if other.kind == "begin"
                and other.creation == op.creation
                and other.status == "ok"
                and other.result == (op.arguments["transaction"], False)
            ),
            None,
        )
        base = None if begun is None else self.history.listings.get(begun.arguments["base"])
        for id in [id for id, by in self.by_commit.items() if by is op]:
            record = self.history.commits[id]
            before, after = self.history.listings[record.parents[0]], self.history.listings[id]
            for path in before:
                if base is not None and before[path] != after[path] and before[path] != base[path]:
                    yield Broken("nobody overwrites what it has not seen", f"{op}: {path!r} was {before[path]!r}")


def _held(record: BranchRecord | None) -> list[LockRecord]:
    """The locks that are held; those on ranges rest while the whole branch is locked."""
    if record is None:
        return []
    if record.whole is not None and is_live(record, record.whole):
        return [record.whole] if record.whole.state == "held" else []
    return [lock for lock in record.locks if lock.state == "held" and is_live(record, lock)]


def _is_seal(change: RecordChange) -> bool:
    before, after = change.before, change.after
    if before is None or after is None:
        return False
    layers = [(it.head, it.compacted, it.attaches, it.content_epoch) for it in (before, after)]
    return layers[0] == layers[1] and set(before.tokens) <= set(after.tokens)


def transition(before: BranchRecord | None, after: BranchRecord | None, operation: Operation | None) -> str:
    """The name of what happened to a branch record, for the table of what a simulation reached."""
    if before is None or after is None or before.branch_id != after.branch_id:
        return "deleted" if after is None else "created"
    if before.head != after.head:
        return after.moves[0].verb if after.moves[0].verb != "reset" else "hard reset"
    if before.blocked != after.blocked:
        return "protection"
    if before.next_txn != after.next_txn:
        return "begin"
    if before.writers != after.writers:
        return "abort" if before.content_epoch == after.content_epoch else "publish"
    if before.attaches != after.attaches:
        return "attach on top" if before.staging_token != after.staging_token else "attach"
    if before.content_epoch != after.content_epoch:
        kind = operation.kind if operation else "commit"
        if (before.locks, before.whole) != (after.locks, after.whole):
            return "lock held"
        if not after.sealed_tokens and before.staging_token != after.staging_token:
            return "reset of all"
        return {"compact": "compaction", "background compaction": "compaction", "reset": "reset of a range"}.get(
            kind, kind if kind == "hard reset" else "fold of what changes nothing"
        )
    if before.compaction_started != after.compaction_started:
        return "claim of a compaction"
    if before.waiting != after.waiting and before.locks == after.locks:
        return "waiting for a lock"
    if (before.locks, before.whole) != (after.locks, after.whole):
        return "lock pending" if before.staging_token != after.staging_token else "lock ended"
    return "seal" if before.staging_token != after.staging_token else "protection"
