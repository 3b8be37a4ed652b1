"""Repositories of up to a billion objects that take seconds to make: one range is there, of all others only the names.

The list of ranges, its nodes and its metarange are files like any other, cut where the paths of the ranges say. Paths
whose hash ends a range are computed, not searched: CRC-32 is linear over GF(2), so among the strings of 40 zeros and
ones behind any path there is one for each checksum (Stigge et al., "Reversing CRC", 2006).
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator
from random import Random

from benchmarks.harness import one_entry
from strandline.ids import RangeId
from strandline.tree.build import TreeBuilder
from strandline.tree.chunking import MEAN_ROWS, is_natural_end
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import Entry, changes_from_staged, encode_staged
from strandline.tree.store import EMPTY, RANGES_FOLDER, Tree, TreeStore

BITS = 40
RAW_BYTES = 150
"""Of an entry, as the benchmarks write them."""
_INVERSE = pow(2_654_435_761, -1, 1 << 32)


def _pivots() -> list[tuple[int, int]]:
    """For each bit of a checksum a change of it in which this is the highest bit, and the characters that make it.

    By Gauss's elimination; `ending` does the rest of it.
    """
    zeros = b"0" * BITS
    plain = zlib.crc32(zeros)
    rows = [(zlib.crc32(zeros[:at] + b"1" + zeros[at + 1 :]) ^ plain, 1 << at) for at in range(BITS)]
    found = []
    for bit in range(31, -1, -1):
        pivot = rows.pop(next(i for i, (value, _) in enumerate(rows) if value >> bit & 1))
        rows = [(v ^ pivot[0], which ^ pivot[1]) if v >> bit & 1 else (v, which) for v, which in rows]
        found.append(pivot)
    return found


PIVOTS = _pivots()


def ending(path: str, hash_: int) -> str:
    """A path that begins with another one, and has a hash."""
    start = path + "0" * BITS
    wanted = zlib.crc32(start.encode()) ^ (hash_ * _INVERSE) % (1 << 32)
    flips = 0
    for bit, (value, which) in zip(range(31, -1, -1), PIVOTS, strict=True):
        if wanted >> bit & 1:
            wanted ^= value
            flips ^= which
    return path + "".join("1" if flips >> at & 1 else "0" for at in range(BITS))


class Synthetic:
    """A tree with a given number of objects.

    Attributes:
        paths: those of the range that is there, in its middle.
    """

    def __init__(self, store: TreeStore, objects: int) -> None:
        count = max(1, objects // MEAN_ROWS)
        rnd = Random(objects)
        middle = count // 2
        low = ""
        infos: list[RangeInfo] = []
        with TreeBuilder(store, EMPTY) as builder:
            for i in range(count):
                high = ending(f"table/{i:07d}/", rnd.randrange((1 << 32) // MEAN_ROWS))
                if i == middle:
                    builder.add_parts(infos)
                    infos = []
                    self.paths = [path for path in _inside(i) if not is_natural_end(path)]
                    for info in _written(store, [*self.paths, high]):
                        builder.add_part(info, is_last=False)
                else:
                    id = RangeId(secrets.token_hex(20))
                    address = f"{RANGES_FOLDER}/{id}-{secrets.token_hex(10)}.parquet"
                    infos.append(RangeInfo(id, address, low or "table", high, MEAN_ROWS, MEAN_ROWS * RAW_BYTES))
                low = high + "!"
            builder.add_parts(infos)
            self.tree: Tree = builder.finish()


def _inside(i: int) -> Iterator[str]:
    return (f"table/{i:07d}/#{j:05d}.parquet" for j in range(MEAN_ROWS - 1))


def _written(store: TreeStore, paths: list[str]) -> list[RangeInfo]:
    entries: dict[str, Entry] = {path: one_entry(i) for i, path in enumerate(paths)}
    keys = sorted(path.encode() for path in entries)
    rows = changes_from_staged(keys, [encode_staged(entries[key.decode()]) for key in keys]).rows
    return [store.write_range(rows, {})]
