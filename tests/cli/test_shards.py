"""`strandline shard`, as a transcript, with wrong input."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cli.test_cli import Run, cli, lake_cli

GOLDEN = Path(__file__).parent / "transcript_shards.txt"
__all__ = ["cli", "lake_cli"]


def test_working_with_a_shard_reads_like_its_transcript(lake_cli: Run, tmp_path: Path) -> None:
    lines: list[str] = []

    def say(*arguments: str) -> str:
        code, out, err = lake_cli(*arguments)
        shown = " ".join(f"'{word}'" if " " in word else word for word in arguments)
        lines.append(f"$ strandline {shown}".rstrip())
        lines.extend((out + err).rstrip("\n").split("\n") if out + err else [])
        if code:
            lines.append(f"(exit code {code})")
        return out

    first, second, odd = tmp_path / "first.csv", tmp_path / "second.parquet", tmp_path / "odd.csv"
    first.write_text("flight,gate\nUA1545,C20\nB6725,E3\n")
    pq.write_table(pa.table({"flight": ["UA1545"], "gate": ["C22"]}), second)
    odd.write_text("flight,place\nUA1545,C20\n")
    say("shard", "list", "nyc")
    say("shard", "create", "nyc", "flight:string")
    say("shard", "create", "nyc/gates", "flight")
    say("shard", "create", "nyc/gates", "flight:text")
    say("shard", "create", "nyc/gates", "flight:string", "--key", "gate")
    say("shard", "create", "nyc/gates", "flight:string", "gate:string", "--key", "flight")
    say("shard", "create", "nyc/gates", "flight:string", "--key", "flight")
    say("shard", "cat", "nyc/gates")
    say("shard", "append", "nyc/gates", str(first))
    say("shard", "append", "nyc/gates", str(second))
    say("shard", "append", "nyc/gates", str(tmp_path / "nothing.csv"))
    say("shard", "append", "nyc/gates", str(tmp_path))
    say("shard", "append", "nyc/gates", str(odd))
    say("shard", "append", "nyc/gates", str(first), "--retract")
    say("shard", "cat", "nyc/gates")
    say("shard", "cat", "nyc/gates", "--as-of", "0")
    say("shard", "cat", "nyc/gates", "--as-of", "1", "--json")
    say("shard", "cat", "nyc/gates", "--as-of", "7")
    say("shard", "cat", "nyc/nothing")
    say("shard", "cat", "gates")
    say("shard", "tail", "nyc/gates", "--as-of", "0")
    say("shard", "list", "nyc")
    say("shard", "show", "nyc/gates")
    say("shard", "compact", "nyc/gates")
    say("shard", "compact", "nyc/gates", "--full")
    say("shard", "collect", "nyc/gates")
    say("shard", "sweep", "nyc/gates", "--dry-run")
    say("shard", "delete", "nyc/gates")
    say("shard", "delete", "nyc/gates")
    say("shard", "list", "nyc")
    text = re.sub(re.escape(str(tmp_path)), "FOLDER", "\n".join(lines)) + "\n"
    if os.environ.get("STRANDLINE_TEST_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_service_that_may_not_or_cannot_listen_says_so(lake_cli: Run) -> None:
    code, out, err = lake_cli("shard", "serve", "--host", "0.0.0.0", "--port", "0")
    assert (code, out) == (2, "")
    assert "Set STRANDLINE_SERVICE_TOKEN" in err
    code, _, err = lake_cli("shard", "serve", "--host", "no.such.host.invalid")
    assert code == 9
    assert "Nobody can listen on no.such.host.invalid:8420" in err
    assert lake_cli("shard", "serve", "--port", "70000")[0] == 2
    code, _, err = lake_cli("shard", "serve", "--upkeep", "elsewhere:8420")
    assert code == 2
    assert "'elsewhere:8420' is not the address of a shard service" in err


def test_a_file_is_read_by_the_schema_of_the_shard(lake_cli: Run, tmp_path: Path) -> None:
    """Texts that look like numbers stay what they are."""
    assert lake_cli("shard", "create", "nyc/hex", "icao:string", "call:string")[0] == 0
    (tmp_path / "hex.csv").write_text("icao,call\n3e4567,007\n1e5000,\n")
    (tmp_path / "hex.jsonl").write_text('{"icao": "0", "call": "010"}\n')
    for file in ("hex.csv", "hex.jsonl"):
        assert lake_cli("shard", "append", "nyc/hex", str(tmp_path / file))[0] == 0
    found = [json.loads(line) for line in lake_cli("shard", "cat", "nyc/hex", "--json")[1].splitlines()]
    assert sorted((row["icao"], row["call"]) for row in found) == [("0", "010"), ("1e5000", ""), ("3e4567", "007")]
    assert lake_cli("shard", "cost", "--rate", "inf")[0] == 2
