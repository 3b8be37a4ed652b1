"""Scripts of the machine, each in three configurations: what they say does not depend on where batches lie."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.shards.script import Script
from tests.shards.stage import Stage

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
CONFIGURATIONS = {
    "blobs": Stage(inline_max_bytes=0),
    "inline": Stage(),
    "backpressure": Stage(inline_total_bytes=1),
}


@pytest.mark.parametrize("configuration", ["blobs", "inline", "backpressure"])
@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_says_what_is_written(path: Path, configuration: str) -> None:
    limits = CONFIGURATIONS[configuration]
    stage = Stage(inline_max_bytes=limits.inline_max_bytes, inline_total_bytes=limits.inline_total_bytes)
    script = Script(stage, has_blobs_elsewhere=configuration != "blobs")
    text = path.read_text()
    said = script.run(text)
    if os.environ.get("STRANDLINE_TEST_WRITE_GOLDEN") and configuration == "blobs":
        path.write_text(said)
    expected = path.read_text()
    if script.has_blobs_elsewhere:
        said, expected = without_blobs(said), without_blobs(expected)
    assert said == expected


def without_blobs(text: str) -> str:
    """A script without the numbers of blobs, of which inline batches have none."""
    return re.sub(r"\d+ blobs, ", "", text)
