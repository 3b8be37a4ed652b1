"""Places as people write them: `repository/ref/path` and `repository/shard`."""

from __future__ import annotations

import pytest

from strandline.errors import UsageError
from strandline.places import Place, place_on_a_ref, shard_named


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ("", "", "")),
        ("nyc", ("nyc", "", "")),
        ("nyc/main", ("nyc", "main", "")),
        ("nyc/main/", ("nyc", "main", "")),
        ("nyc/main/raw/a.csv", ("nyc", "main", "raw/a.csv")),
        ("nyc/main/raw/", ("nyc", "main", "raw/")),
        ("nyc//a", ("nyc", "", "a")),
    ],
)
def test_a_text_names_a_place_whole_or_in_part(text: str, place: tuple[str, str, str]) -> None:
    assert Place.named_by(text) == place
    if place[0] and place[1]:
        assert place_on_a_ref(text) == place
    else:
        with pytest.raises(UsageError, match=r"is not repository/ref\..*Write it so"):
            place_on_a_ref(text, next="Write it so.")


@pytest.mark.parametrize("text", ["", "nyc", "nyc/", "/positions", "nyc/positions/more"])
def test_a_text_that_names_no_shard_or_more_is_refused(text: str) -> None:
    assert shard_named("nyc/positions") == ("nyc", "positions")
    with pytest.raises(UsageError, match=r"is not repository/shard\..*Write it so"):
        shard_named(text, next="Write it so.")
