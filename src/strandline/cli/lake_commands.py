"""`strandline init`"""

from __future__ import annotations

from typing import Annotated

import typer

import strandline
from strandline.cli.output import Output
from strandline.cli.session import JsonOption


def init(
    folder: Annotated[str, typer.Argument(help="The folder, or a TOML file with kv and blob.")],
    as_json: JsonOption = False,
) -> None:
    """Make a lake, or find that it is there already."""
    with strandline.open(folder, create=True):
        Output(as_json).say(f"There is a lake at {folder}.", {"lake": folder})
