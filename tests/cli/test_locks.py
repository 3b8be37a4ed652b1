"""`strandline lock` and `strandline range`, as a transcript, with wrong input."""

from __future__ import annotations

import os
import re
from pathlib import Path

import strandline
from tests.cli.test_cli import Run, cli, lake_cli

GOLDEN = Path(__file__).parent / "transcript_locks.txt"
__all__ = ["cli", "lake_cli"]


def test_freezing_and_mending_reads_like_its_transcript(lake_cli: Run, tmp_path: Path) -> None:
    lines: list[str] = []
    numbers: dict[str, int] = {}

    def say(*arguments: str) -> str:
        code, out, err = lake_cli(*arguments)
        shown = " ".join(f"'{word}'" if " " in word else word for word in arguments)
        lines.append(f"$ strandline {shown}".rstrip())
        lines.extend((out + err).rstrip("\n").split("\n") if out + err else [])
        if code:
            lines.append(f"(exit code {code})")
        return out

    (tmp_path / "files" / "m=1").mkdir(parents=True)
    (tmp_path / "files" / "m=1" / "a").write_text("new")
    files, file = str(tmp_path / "files"), str(tmp_path / "files" / "m=1" / "a")
    with strandline.open("lake") as lake:
        main = lake.repository("nyc").branch("main")
        main.put_many({"t/m=1/a": "old", "t/m=1/b": "old", "t/m=2/a": "old"})
        main.commit("content")
    say("lock", "list", "nyc/main")
    say("lock", "owner", "list", "nyc")
    say("lock", "take", "nyc/main", "t/m=1/", "--owner", "ops")
    say("lock", "owner", "add", "nyc", "ops", "")
    say("lock", "owner", "add", "nyc", "ops", "January is corrupt")
    say("lock", "owner", "list", "nyc")
    say("lock", "take", "nyc/main", "--owner", "ops")
    say("lock", "take", "nyc/main", "--between", "b", "--owner", "ops")
    say("lock", "take", "nyc/main", "--between", "b..a", "--owner", "ops")
    say("lock", "take", "nyc/main", "t/", "--owner", "ops", "--mode", "odd")
    say("lock", "take", "nyc/main", "t/", "--owner", "ops", "--on-dirty", "odd")
    say("lock", "take", "nyc/main/t/", "t/", "--owner", "ops")
    say("lock", "take", "nyc/nowhere", "t/", "--owner", "ops")
    say("lock", "take", "nyc/main", "t/m=1/", "--owner", "ops")
    say("lock", "take", "nyc/main", "--between", "t/m=1/a..t/m=9", "--owner", "ops")
    say("lock", "list", "nyc/main")
    say("lock", "list", "nyc/main", "t/m=1/b", "--json")
    say("put", file, "nyc/main/t/m=1/c")
    say("rm", "nyc/main/t/m=1/a")
    say("put", file, "nyc/main/t/m=2/c")
    say("commit", "nyc/main", "-m", "beside it")
    say("lock", "owner", "delete", "nyc", "ops")
    say("lock", "release", "nyc/main")
    say("lock", "release", "nyc/main", "00000000000000000000")
    say("lock", "release", "nyc/main", "--owner", "ops")
    say("range", "load", "nyc/main/t/", files, "--owner", "ops")
    say("range", "load", "nyc/main", files, "--owner", "ops", "--job", "backfill")
    say("range", "load", "nyc/main/t/", "nowhere", "--owner", "ops", "--job", "backfill")
    say("range", "load", "nyc/main/t/m=1/", files, "--owner", "ops", "--job", "backfill", "--between", "t/m=9..t/n")
    say("range", "load", "nyc/main/t/", files, "--owner", "ops", "--job", "backfill")
    say("range", "load", "nyc/main/t/", files, "--owner", "ops", "--job", "backfill")
    say("range", "restore", "nyc/main/t/m=2/", "main~1", "--owner", "ops", "--job", "mend")
    say("range", "restore", "nyc/main/t/m=2/", "nothing", "--owner", "ops", "--job", "mend again")
    say("range", "export", "nyc/main/t/", str(tmp_path / "out"), "--owner", "ops", "--job", "out")
    say("range", "export", "nyc/main/t/", files, "--owner", "ops", "--job", "out")
    say("range", "move", "nyc/main/t/", "nyc/main", "--owner", "ops", "--job", "away")
    say("ls", "nyc/main/t/")
    say("lock", "repo", "nyc", "--owner", "ops")
    say("put", file, "nyc/main/t/x")
    say("commit", "nyc/main", "-m", "x", "--allow-empty")
    say("lock", "repo", "nyc", "--owner", "ops")
    say("lock", "release-repo", "nyc")
    say("lock", "release-repo", "nyc")
    say("lock", "owner", "delete", "nyc", "ops")
    text = "\n".join(lines) + "\n"
    text = text.replace(str(tmp_path), "<folder>")

    def number(found: re.Match[str]) -> str:
        return f"<lock {numbers.setdefault(found[0], len(numbers) + 1)}>"

    text = re.sub(r"\b(?!0{20})[0-9a-f]{20}\b", number, text)
    text = re.sub(r"\b[0-9a-f]{40}\b", "<id>", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "<commit>", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?(\+00:00)?)?", "<time>", text)
    text = re.sub(r"\b\d{16}\b", "<time>", text)
    if os.environ.get("STRANDLINE_TEST_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
