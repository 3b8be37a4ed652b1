"""Draws a history as text: one column a line of development, one row a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strandline.branch.commits import Commit


def graph_lines(commits: Iterable[Commit]) -> Iterator[str]:
    """Lines of a graph of commits that come children first.

    Each column waits for one commit; a commit takes the leftmost column that waits for it and closes the others.
    """
    columns: list[str] = []
    for commit in commits:
        if commit.id not in columns:
            columns.append(commit.id)
        at = columns.index(commit.id)
        joined = [i for i, waits_for in enumerate(columns) if waits_for == commit.id and i != at]
        if joined:
            yield " ".join("|" if i < joined[0] else "/" for i in range(len(columns)))
            columns = [waits_for for i, waits_for in enumerate(columns) if i not in joined]
        marks = ["*" if i == at else "|" for i in range(len(columns))]
        date = commit.date.strftime("%Y-%m-%d %H:%M")
        message = " ".join(commit.message.split())
        yield f"{' '.join(marks)}  {commit.id[:12]}  {date}  {commit.committer}  {message}"
        if not commit.parents:
            columns.pop(at)
            continue
        columns[at] = commit.parents[0]
        new = [parent for parent in commit.parents[1:] if parent not in columns]
        columns[at + 1 : at + 1] = new
        if new:
            yield " ".join("\\" if at < i <= at + len(new) else "|" for i in range(len(columns)))
