"""What is promised of one-shot publications: each replaces what its caller read, and nothing else, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.testing.simulation.history import Broken, History, Operation


def one_shots(history: History, by_commit: Mapping[str, Operation]) -> Iterator[Broken]:
    """The promises that one-shot publications of a history break.

    Args:
        by_commit: by the id of a commit, the operation that made it.
    """
    by_token: dict[tuple[str, str], Operation] = {}
    for id, op in by_commit.items():
        if op.kind != "one shot":
            continue
        before = history.listings[history.commits[id].parents[0]]
        after = history.listings[id]
        moved = [path for path, value in op.arguments["expected"].items() if before.get(path) != value]
        if moved:
            yield Broken("a one-shot publication replaces what was read", f"{op}: {moved}, held {before}")
        others = [
            path for path in after if before.get(path) != after[path] and path not in op.arguments["paths"].split(",")
        ]
        if others:
            yield Broken("a one-shot publication takes nothing else along", f"{op}: {others}")
        token = op.arguments["token"]
        if token and token != "of nobody else":
            first = by_token.setdefault((op.creation, token), op)
            if first is not op:
                yield Broken("a token is published once", f"{first} and {op}")
    for op in history.operations:
        if op.kind != "one shot" or op.status != "ok":
            continue
        by = by_commit.get(op.result)
        # two that ask for the very same under one token are one
        is_same = by is not None and op.arguments["token"] == by.arguments.get("token") != ""
        if by is not op and not is_same:
            yield Broken("a publication that was acknowledged is in the chain", f"{op} made {op.result}")
