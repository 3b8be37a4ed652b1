"""How fast are objects read through fsspec, and how fast is a backup?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import fsspec

from benchmarks.harness import Result, entries, folder, repository, result, seconds
from strandline import Lake, Repository
from strandline.fs import StrandlineFileSystem

GIB = 1 << 30
CHUNK = 4 << 20
RUNS = 9
OBJECTS = 200_000


def run() -> list[Result]:
    return [*_reading(), *_backup()]


def _reading() -> list[Result]:
    """A large object through `strandline://`, beside the file that holds it."""
    with repository(synced=False) as repo:
        main = repo.branch("main")
        block = os.urandom(CHUNK)
        with main.open("big", "wb") as file:
            for _ in range(GIB // CHUNK):
                file.write(block)
        place = main._core.reopen[1][0]
        fs = StrandlineFileSystem(kv=place.kv.reveal(), blob=place.blob, skip_instance_cache=True)
        path = main._core.resolver.namespace.local_path(main.stat("big").physical_address)
        assert path is not None
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(RUNS + 1):
            plain = lambda: Path(path).open("rb")  # noqa: E731, SIM115 - _drain closes it
            for times, opened in ((ours, lambda: fs.open("bench/main/big")), (theirs, plain)):
                took = seconds(lambda: _drain(opened()))
                if turn:
                    times.append(took)
        ratios = [store / mine for mine, store in zip(ours, theirs, strict=True)]
        where = f"{GIB:,} bytes in {CHUNK:,}-byte reads, warm, fsspec {fsspec.__version__}"
        return [result("read through fsspec ÷ the store's own speed", ratios, "×", 0.9, "more", where)]


def _drain(file: IO[bytes]) -> None:
    with file as opened:
        while opened.read(CHUNK):
            pass


def _backup() -> list[Result]:
    """Metadata only, and with the bytes of small objects."""
    found = []
    with repository(synced=False) as repo, folder() as target:
        main = repo.branch("main")
        main.stage_each(entries("a", OBJECTS))
        main.commit("base")
        main.stage_each(entries("b", OBJECTS // 10))
        lake = _lake(repo)
        rates = []
        for turn in range(5):
            took = seconds(lambda: lake.backup(target / f"m{turn}", data=False))
            rates.append(OBJECTS * 1.1 / took)
        where = f"{OBJECTS:,} committed and {OBJECTS // 10:,} staged entries, local files"
        found.append(result("backup by reference", rates, "entries/s", 50_000, "more", where))
    small = 20_000
    with repository(synced=False) as repo, folder() as target:
        main = repo.branch("main")
        main.put_many({f"f{i:06d}": b"x" * 1024 for i in range(small)}, atomic=False)
        main.commit("base")
        lake = _lake(repo)
        rates = []
        for turn in range(3):
            took = seconds(lambda: lake.backup(target / f"d{turn}"))
            rates.append(small / took)
        found.append(result("backup with bytes of 1 KiB", rates, "objects/s", None, "more", "local files, synced"))
    return found


def _lake(repo: Repository) -> Lake:
    from strandline.lake import _reopen

    return _reopen(repo._core.reopen[1][0])
