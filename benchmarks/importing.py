"""How fast are files imported by reference, the first time and again?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import Result, folder, repository, result, seconds, setting

COUNT = 100_000


def run() -> list[Result]:
    with folder() as place:
        for i in range(COUNT):
            if i % 1000 == 0:
                (place / f"{i // 1000:03d}").mkdir()
            Path(place / f"{i // 1000:03d}" / f"part-{i:06d}.parquet").touch()
        found = []
        for synced in (True, False):
            first, again = [], []
            for _ in range(3):
                with repository(synced) as repo:
                    main = repo.branch("main")
                    first.append(COUNT / seconds(lambda: main.import_objects(place, "in/")))
                    again.append(COUNT / seconds(lambda: main.import_objects(place, "in/")))
            where = setting(synced)
            found.append(result("import of 100,000 files", first, "files/s", 50_000, "more", where))
            found.append(result("import of 100,000 files, again", again, "files/s", None, "more", where))
    return found
