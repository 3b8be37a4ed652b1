"""`strandline tx` and `strandline gc`, as a transcript."""

from __future__ import annotations

import os
import re
from pathlib import Path

import strandline
from tests.cli.test_cli import Run, cli, lake_cli

GOLDEN = Path(__file__).parent / "transcript_tx.txt"
__all__ = ["cli", "lake_cli"]


def test_the_life_of_jobs_reads_like_its_transcript(lake_cli: Run, tmp_path: Path) -> None:
    lines: list[str] = []

    def say(*arguments: str) -> None:
        code, out, err = lake_cli(*arguments)
        lines.append(f"$ strandline {' '.join(arguments)}".rstrip())
        lines.extend((out + err).rstrip("\n").split("\n") if out + err else [])
        if code:
            lines.append(f"(exit code {code})")

    lake, other = strandline.open("lake"), strandline.open("lake")
    main, elsewhere = lake.repository("nyc").branch("main"), other.repository("nyc").branch("main")
    say("tx", "list", "nyc/main")
    say("tx", "writers", "nyc/main")
    with main.transaction("nightly", "first", node="host-a", position="17") as tx:
        tx.put("a", b"1")
        tx.put("a", b"2")
    one = main.transaction("nightly", "second", node="host-a").begin()
    one.put("b", b"1")
    two = elsewhere.transaction("nightly", "third", node="host-b").begin()
    two.put("c", b"1")
    hung = main.transaction("hourly", "hung", node="host-a").begin()
    hung.put("d", b"1")
    say("tx", "list", "nyc/main")
    say("tx", "list", "nyc/main", "--state", "open")
    say("tx", "list", "nyc/main", "--state", "bogus")
    say("tx", "writers", "nyc/main")
    say("tx", "show", "nyc/main", "1")
    say("tx", "show", "nyc/main", "99")
    say("tx", "ack", "nyc/main", "3")
    say("tx", "ack", "nyc/main", "2")
    say("tx", "abort", "nyc/main", "4")
    say("tx", "abort", "nyc/main", "1")
    say("tx", "recover", "nyc/main", "4")
    say("tx", "assign", "nyc/main", "nightly", "host-c")
    say("tx", "assign", "nyc/main", "no\tname", "host-c")
    say("tx", "writers", "nyc/main")
    say("tx", "retire", "nyc/main", "nightly")
    say("tx", "list", "nyc/main")
    say("gc", "retention", "nyc")
    say("gc", "retention", "nyc", "--days", "0")
    say("gc", "retention", "nyc", "--days", "30", "--branch", "release-*=forever", "--branch", "tmp-*=2")
    say("gc", "retention", "nyc", "--branch", "oops")
    say("gc", "retention", "nyc", "--drop", "tmp-*")
    say("gc", "plan", "nyc")
    say("gc", "run", "nyc")
    say("gc", "run", "nyc")
    say("gc", "plan", "nowhere")
    say("repo", "protect", "nyc", "main", "--writer", "nightly")
    say("ls", "nyc/main")
    lake.close()
    other.close()
    text = "\n".join(lines) + "\n"
    text = text.replace(str(tmp_path), "<folder>")
    text = re.sub(r"\b[0-9a-f]{40}\b", "<id>", text)
    text = re.sub(r"\b[0-9a-f]{20}\b", "<branch>", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "<commit>", text)
    text = re.sub(r"process \d+", "process <pid>", text)
    text = re.sub(r"\([\d,]+ bytes\)", "(<n> bytes)", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+\+00:00)?)?", "<time>", text)
    if os.environ.get("STRANDLINE_TEST_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
