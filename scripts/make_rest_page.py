"""Prints docs/rest.md, the page of all operations of `strandline serve`; a test holds the page to the tables."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.iam.policy import Both, Need, Needs
from strandline.server.operation import KNOWN, Operation
from strandline.server.rest.table import OPERATIONS
from strandline.server.s3.operation import S3Operation, refused
from strandline.server.s3.table import OPERATIONS as S3_OPERATIONS

HEAD = """# Operations of the server

Made from its tables by `python scripts/make_rest_page.py > docs/rest.md`. Addresses of REST are below `/api/v1`. The
names are lakeFS's; those in **bold** are ours. The last column is the action that a policy has to allow, and on what:
fields in braces are parameters of the address, of the query, or of the body. `/openapi.json` of a server has the
shapes.

"""


def page() -> str:
    return HEAD + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    here = [one for one in OPERATIONS if not one.unsupported]
    for tag in dict.fromkeys(one.tag for one in here):
        yield f"## {tag.capitalize()}\n"
        yield "| operation | address | what it does | action |"
        yield "|---|---|---|---|"
        yield from (_row(one) for one in here if one.tag == tag)
        yield ""
    yield "## Of S3\n"
    yield "| operation | on a | action |"
    yield "|---|---|---|"
    for one in S3_OPERATIONS:
        if one.handler is not refused:
            yield f"| {one.id} | {one.level} | {_needs(one.needs)} |"
    yield ""
    yield _sentence("Refused in words", [one for one in S3_OPERATIONS if one.handler is refused])
    yield ""
    yield "## Not here\n"
    yield "These answer 501 and say what to do instead.\n"
    yield "| operation | why |"
    yield "|---|---|"
    yield from (f"| {one.id} | {one.unsupported} |" for one in OPERATIONS if one.unsupported)


def _row(one: Operation) -> str:
    name = f"**{one.id}**" if one.is_ours else one.id
    return f"| {name} | `{one.method} {one.path}` | {one.summary} | {_needs(one.needs)} |"


def _needs(needs: Needs | None) -> str:
    if needs is None:
        return "none"
    if needs == KNOWN:
        return "any user"
    if isinstance(needs, Need):
        return f"`{needs.action}` on `{needs.resource.removeprefix('arn:lakefs:fs:::')}`"
    return (" and " if isinstance(needs, Both) else " or ").join(map(_needs, needs.needs))


def _sentence(begin: str, rows: list[S3Operation]) -> str:
    words = sorted({one.id.partition(":")[2] or one.id for one in rows})
    return f"{begin}: what buckets and objects of S3 can have besides ({', '.join(words)})."


if __name__ == "__main__":
    print(page(), end="")
