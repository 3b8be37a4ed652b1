"""Which keys of a storage namespace are strandline's, by their shape: all others are somebody's, and are left alone.

Not by which branches are on record: what a branch wrote that is deleted by now is ours still, and goes. The shapes are
those of docs/format.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_ID = "[0-9a-f]{20}"
_WRITTEN = rf"sl_write={_ID}/.+"
"""Spark names the files of a write itself."""
_SHAPES = (
    rf"data/{_ID}/{_ID}(\.[A-Za-z0-9.]*)?",
    rf"data/sl_branch={_ID}/{_WRITTEN}",
    rf"data/sl_branch={_ID}\.txn-[0-9]{{16}}/({_ID}(\.[A-Za-z0-9.]*)?|{_WRITTEN})",
    rf"ice/{_ID}/{_ID}(\.txn-[0-9]{{16}})?/(data|metadata)/.+",
    rf"_strandline/(ranges|nodes|metaranges)/[0-9a-f]{{40}}-{_ID}\.parquet",
    rf"_strandline/txn/{_ID}/[0-9]{{16}}/((manifest|deadlist|checkpoint)-[0-9a-f]+\.parquet|slice-{_ID}\.msgpack)",
    rf"_strandline/gc/{_ID}/(condemned\.(parquet|json)|final-{_ID}\.(parquet|json)|(part|marked|linked)-{_ID}\.parquet)",
    rf"_strandline/gc/{_ID}/(started|clock-{_ID})",
)
OWN = f"^({'|'.join(_SHAPES)})$"


def are_own(keys: pa.LargeStringArray) -> npt.NDArray[np.bool_]:
    """Which keys are of objects, tables, trees, transactions and collections."""
    if not len(keys):
        return np.zeros(0, np.bool_)
    found: npt.NDArray[np.bool_] = pc.match_substring_regex(keys, OWN).to_numpy(zero_copy_only=False)
    return found


def place_of(key: str) -> str:
    """The folder under which a plan counts a key: one for each branch, transaction, or kind of metadata."""
    parts = key.split("/")
    return "/".join(parts[:2]) + "/" if len(parts) > 2 else parts[0]
