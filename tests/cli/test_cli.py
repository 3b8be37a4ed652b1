"""The command line: what it prints, as tables and as JSON, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.branch.rules.record import Action
from strandline.cli import run
from strandline.cli.graph import graph_lines
from strandline.cli.repo_commands import Blocked
from strandline.repository.branch import Branch

GOLDEN = Path(__file__).parent / "transcript.txt"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("STRANDLINE_LAKE", str(tmp_path / "lake"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def lake_cli(cli: Run, tmp_path: Path) -> Run:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert cli("init", "lake")[0] == 0
    assert cli("repo", "create", "nyc")[0] == 0
    return cli


def test_a_session_reads_like_its_transcript(lake_cli: Run, tmp_path: Path) -> None:
    lines: list[str] = []
    for name in ("folder/a", "folder/b/c", "imported/x", "imported/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def say(*arguments: str) -> None:
        code, out, err = lake_cli(*arguments)
        lines.append(f"$ strandline {' '.join(arguments)}")
        lines.extend((out + err).rstrip("\n").split("\n") if out + err else [])
        if code:
            lines.append(f"(exit code {code})")

    say("put", "a.csv", "nyc/main/raw/")
    say("status", "nyc/main")
    say("commit", "nyc/main", "-m", "first", "--meta", "job=42")
    say("status", "nyc/main")
    say("commit", "nyc/main", "-m", "again")
    say("branch", "create", "nyc/main", "fix")
    say("put", "a.csv", "nyc/fix/raw/b.csv")
    say("rm", "nyc/fix/raw/a.csv")
    say("commit", "nyc/fix", "-m", "second")
    say("diff", "nyc/main", "nyc/fix")
    say("put", "a.csv", "nyc/main/c.csv")
    say("commit", "nyc/main", "-m", "third")
    say("merge", "nyc/fix", "nyc/main")
    say("merge", "nyc/fix", "nyc/main")
    say("log", "nyc/main", "--graph")
    say("ls", "nyc/main")
    say("ls", "nyc/main", "--recursive")
    say("cat", "nyc/main/raw/b.csv")
    say("get", "nyc/main/raw/b.csv", "out.csv")
    say("export", "nyc/main/raw/", "exported")
    say("tag", "create", "nyc/main~1", "v1")
    say("tag", "list", "nyc")
    say("branch", "list", "nyc")
    say("revert", "nyc/main", "main", "--parent", "1")
    say("put", "a.csv", "nyc/main/staged.csv")
    say("compact", "nyc/main")
    say("compact", "nyc/main")
    say("status", "nyc/main")
    say("discard", "nyc/main")
    say("reflog", "nyc/main", "-n", "3")
    say("reflog", "nyc/nothing")
    say("compact", "nyc/v1")
    say("fsck", "nyc")
    say("fsck", "nowhere")
    say("repo", "protect", "nyc", "main")
    say("put", "a.csv", "nyc/main/x")
    say("repo", "protect", "nyc", "main", "--remove")
    say("repo", "read-only", "nyc")
    say("put", "a.csv", "nyc/main/x")
    say("repo", "read-only", "nyc", "--off")
    say("cp", "nyc/main/raw/", "nyc/fix/copied/")
    say("cp", "nyc/main/c.csv", "nyc/fix/copied/")
    say("mv", "nyc/fix/copied/", "nyc/fix/moved/")
    say("mv", "nyc/fix/moved/c.csv", "nyc/main/c.csv")
    say("put", "folder", "nyc/fix/uploaded", "--recursive")
    say("commit", "nyc/fix", "-m", "moved")
    say("import", "imported", "nyc/fix/in/", "-m", "import")
    say("import", "imported", "nyc/fix/in/")
    say("cherry-pick", "nyc/main", "fix~1")
    say("hard-reset", "nyc/main", "main~1")
    say("hard-reset", "nyc/main", "nowhere")
    say("table", "show", "nyc/main/raw")
    say("backup", "saved")
    say("restore", "saved")
    say("restore", "saved", "nyc", "--as", "again")
    say("restore", "nothing")
    say("upgrade", "--dry-run")
    say("upgrade")
    say("branch", "delete", "nyc/fix")
    say("tag", "delete", "nyc/v1")
    say("repo", "list")
    say("repo", "delete", "nyc")
    say("repo", "delete", "nyc", "--yes")
    say("repo", "list")
    text = "\n".join(lines) + "\n"
    text = re.sub(r"in \d+\.\d+ s\.", "in <seconds> s.", text)
    text = re.sub(r"\([\d,]+ bytes\)( that nobody|\.)", r"(<n> bytes)\1", text)  # compressed random ids
    text = text.replace(str(tmp_path), "<folder>")
    text = re.sub(r"\b[0-9a-f]{40}\b", "<id>", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "<commit>", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d\.\d+\+00:00)?", "<time>", text)
    if os.environ.get("STRANDLINE_TEST_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert (tmp_path / "out.csv").read_text() == "x,y\n1,2\n"
    assert (tmp_path / "exported" / "b.csv").exists()


def test_json_is_one_object_a_line(lake_cli: Run) -> None:
    lake_cli("put", "a.csv", "nyc/main/a.csv")
    commit = json.loads(lake_cli("commit", "nyc/main", "-m", "first", "--meta", "k=v=w", "--json")[1])
    assert (commit["message"], commit["metadata"]) == ("first", {"k": "v=w"})
    lake_cli("put", "a.csv", "nyc/main/b.csv")
    for arguments, count in (
        (("ls", "nyc/main"), 2),
        (("status", "nyc/main"), 1),
        (("log", "nyc/main"), 2),
        (("branch", "list", "nyc"), 1),
        (("repo", "list"), 1),
        (("diff", "nyc/main~1", "nyc/main"), 1),
    ):
        code, out, _ = lake_cli(*arguments, "--json")
        found = [json.loads(line) for line in out.splitlines()]
        assert (code, len(found)) == (0, count)
        assert all(isinstance(row, dict) for row in found)
    code, out, err = lake_cli("ls", "nyc/nope", "--json")
    assert (code, out) == (3, "")
    assert json.loads(err)["error"] == "ref-not-found"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ls", "nyc/nope"), 3, "no branch, tag or commit 'nope'"),
        (("ls", "nope/main"), 3, "Repository 'nope' does not exist"),
        (("ls", "nyc"), 2, "not repository/ref"),
        (("cat", "nyc/main/nothing"), 3, "no object 'nothing'"),
        (("get", "nyc/main/nothing"), 3, "no object"),
        (("put", "missing.csv", "nyc/main/x"), 3, "cannot be read"),
        (("put", "a.csv", "nyc/main~0/x"), 3, "not a branch"),
        (("rm", "nyc/main/nothing"), 3, "no object"),
        (("rm", "nyc/main/nothing/", "-r"), 3, "nothing below"),
        (("rm", "nyc/main"), 2, "Nothing is named"),
        (("commit", "nyc/main"), 2, "needs a message"),
        (("commit", "nyc/main", "-m", "x"), 6, "nothing to commit"),
        (("commit", "nyc/main", "-m", "x", "--meta", "k"), 2, "not key=value"),
        (("commit", "nyc/main/path", "-m", "x"), 2, "takes a branch"),
        (("merge", "nyc/main", "nyc/main"), 2, "into itself"),
        (("merge", "nyc/main", "other/main"), 2, "one repository"),
        (("merge", "nyc/main~0", "nyc/main", "--strategy", "ours"), 2, "not a merge strategy"),
        (("branch", "create", "nyc/main", "a/b"), 2, "not a branch name"),
        (("branch", "create", "nyc/main", "main"), 4, "already"),
        (("branch", "delete", "nyc/main"), 7, "default branch"),
        (("repo", "create", "NO"), 2, "not a repository name"),
        (("repo", "create", "nyc"), 4, "already"),
        (("repo", "delete", "nyc"), 2, "--yes"),
        (("log", "nyc/main", "--since", "soon"), 2, "not a time"),
        (("export", "nyc/main/", "lake"), 2, "not an empty folder"),
        (("tag", "delete", "nyc/v9"), 3, "no tag"),
        (("fly",), 2, "No such command"),
        (("cp", "nyc/main/nothing", "nyc/main/x"), 3, "no object 'nothing'"),
        (("cp", "nyc/main/a/", "nyc/main/b"), 2, "both end with"),
        (("cp", "nyc/main", "nyc/main/x"), 2, "No path is named"),
        (("mv", "nyc/main/a", "other/main/a"), 2, "one branch"),
        (("mv", "nyc/main/a/", "nyc/main/a/b/"), 2, "lies in the other"),
        (("put", "missing", "nyc/main/x", "-r"), 2, "not a folder"),
        (("put", ".", "nyc/main/x"), 2, "is a folder"),
        (("import", "nowhere", "nyc/main/x"), 3, "no folder 'nowhere'"),
        (("cherry-pick", "nyc/main", "nope"), 3, "nope"),
        (("hard-reset", "nyc/main~0", "main"), 3, "not a branch"),
        (("table", "show", "nyc/main"), 2, "names no table"),
        (("table", "show", "nyc/main/none"), 3, "no table record"),
        (("table", "files", "nyc/main/none"), 3, "no table record"),
        (("table", "rewrite", "nyc/main"), 2, "names no table"),
        (("table", "rewrite", "nyc/main/none"), 3, "no table record"),
        (("table", "mirror", "nowhere", "nyc/main/t"), 3, "no folder"),
        (("table", "mirror", ".", "nyc/main"), 2, "needs a path"),
        (("table", "mirror", ".", "nyc/main/t", "--partition-types", "year"), 2, "not a column and its type"),
        (("table", "mirror", ".", "nyc/main/t", "--file-format", "xml"), 2, "not a format"),
        (("restore", "nowhere"), 3, "no complete backup"),
        (("backup", "/proc/nowhere"), 9, "backup|written|permission|object store"),
        (("backup", "saved", "--repository", "nope"), 3, "'nope' does not exist"),
        (("ls", "nyc/main", "--fast"), 2, "No such option"),
        (("ls", "nyc/main", "--lake", "/nonexistent/lake"), 3, "no lake"),
    ],
)
def test_wrong_input_gets_a_sentence_and_its_exit_code(
    lake_cli: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = lake_cli(*arguments)
    assert found == code, err
    assert re.search(words, " ".join(err.split())), err
    assert "Traceback" not in out + err


def test_a_conflict_lists_its_paths(lake_cli: Run, tmp_path: Path) -> None:
    lake_cli("branch", "create", "nyc/main", "fix")
    for branch in ("main", "fix"):
        (tmp_path / "f").write_text(branch)
        lake_cli("put", "f", f"nyc/{branch}/same")
        lake_cli("commit", f"nyc/{branch}", "-m", branch)
    code, out, err = lake_cli("merge", "nyc/fix", "nyc/main")
    assert (code, out) == (5, "conflict\tsame\tboth sides added it differently\n")
    assert lake_cli("merge", "nyc/fix", "nyc/main", "--strategy", "sa=source-wins")[0] == 0
    assert lake_cli("cat", "nyc/main/same")[1] == "fix"


def test_standard_input_and_a_closed_pipe(lake_cli: Run, tmp_path: Path) -> None:
    environment = dict(os.environ)
    program = [sys.executable, "-c", "from strandline.cli import main; main()"]
    subprocess.run([*program, "put", "-", "nyc/main/x"], input=b"piped", check=True, env=environment)
    done = subprocess.run([*program, "cat", "nyc/main/x"], capture_output=True, check=True, env=environment)
    assert done.stdout == b"piped"
    shell = f"{sys.executable} -c 'from strandline.cli import main; main()' log nyc/main | true"
    closed = subprocess.run(shell, shell=True, capture_output=True, env=environment, check=False)
    assert b"Traceback" not in closed.stderr
    assert subprocess.run([*program, "--version"], capture_output=True, check=True).stdout.strip() == b"0.1.0"


def test_a_graph_has_a_star_for_each_commit_and_closes_its_columns(main: Branch) -> None:
    for n in range(3):
        work = main.create_branch(f"work{n}")
        work.put(f"w{n}", b"1")
        work.commit(f"w{n}")
        main.put(f"m{n}", b"1")
        main.commit(f"m{n}")
        main.merge(work)
    lines = list(graph_lines(main.log()))
    assert sum("*" in line.split("  ")[0] for line in lines) == 10
    assert lines[-1].startswith("*  ")


def test_fsck_names_what_is_missing_and_fails(lake_cli: Run, tmp_path: Path) -> None:
    lake_cli("put", "a.csv", "nyc/main/a.csv")
    lake_cli("commit", "nyc/main", "-m", "a")
    assert lake_cli("fsck")[0] == 0
    for path in (tmp_path / "lake" / "data").rglob("*.csv"):
        path.unlink()
    code, out, err = lake_cli("fsck", "--json")
    assert code == 11
    told = json.loads(out)
    assert (told["repository"], told["problem_count"], told["orphans"]) == ("nyc", 1, 0)
    assert "'a.csv'" in told["problems"][0]
    assert json.loads(err)["what"] == "1 problem: what the lake refers to is missing or damaged."


def test_reflog_and_compact_speak_json(lake_cli: Run) -> None:
    lake_cli("put", "a.csv", "nyc/main/a.csv")
    assert json.loads(lake_cli("compact", "nyc/main", "--json")[1])["entries"] == 1
    lake_cli("commit", "nyc/main", "-m", "a")
    newest, oldest = (json.loads(line) for line in lake_cli("reflog", "nyc/main", "--json")[1].splitlines())
    assert (newest["what"], newest["by"], newest["before"]) == ("commit", "tester", oldest["after"])
    assert (oldest["what"], oldest["before"]) == ("create", None)


def test_tables_are_shown(lake_cli: Run, tmp_path: Path) -> None:
    import strandline

    record = {
        "format": 2,
        "fields": [
            {"name": "n", "type": "long", "nullable": True, "metadata": {}},
            {"name": "p", "type": "string", "nullable": True, "metadata": {}},
        ],
        "partition_by": ["p"],
    }
    statistics = {"strandline.statistics": json.dumps({"rows": 3, "columns": {"n": [1, 3, 0]}})}
    with strandline.open(tmp_path / "lake") as lake:
        main = lake.repository("nyc").branch("main")
        main.put("t/_strandline_table.json", json.dumps(record))
        main.put("t/p=x/a.parquet", b"1234", metadata=statistics)
        main.commit("table")
    code, out, _ = lake_cli("table", "show", "nyc/main/t", "--json")
    told = json.loads(out)
    assert (code, told["rows"], told["files"], told["bytes"]) == (0, 3, 1, 4)
    assert lake_cli("table", "show", "nyc/main/t")[1].splitlines()[-1] == "parquet, 1 files, 3 rows, 4 bytes"
    assert json.loads(lake_cli("table", "files", "nyc/main/t", "--json")[1])["values"] == {"p": "x"}
    assert lake_cli("table", "files", "nyc/main/t", "--where", "n > 3")[1] == ""
    assert json.loads(lake_cli("table", "history", "nyc/main/t", "--json")[1])["files"] == "+1 -0"
    assert lake_cli("table", "files", "nyc/main/t", "--where", "m > 3")[0] == 2


def test_shells_complete_commands_and_places(lake_cli: Run, tmp_path: Path) -> None:
    lake_cli("put", "a.csv", "nyc/main/raw/a.csv")
    for line, expected in (
        ("strandline che", "cherry-pick"),
        ("strandline ls n", "nyc/"),
        ("strandline ls nyc/m", "nyc/main"),
        ("strandline cat nyc/main/r", "nyc/main/raw/"),
        ("strandline cat nyc/main/raw/", "nyc/main/raw/a.csv"),
        ("strandline cat nope/", ""),
    ):
        words = line.split(" ")
        environment = {
            **os.environ,
            "_STRANDLINE_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "strandline.cli"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == expected, done.stderr


def test_progress_and_colours_are_for_terminals_only(lake_cli: Run, tmp_path: Path) -> None:
    """On a pseudo-terminal there are bars and colours; in a pipe there is nothing but the answer."""
    import pty

    (tmp_path / "big").write_bytes(os.urandom(3 << 20))
    command = [sys.executable, "-m", "strandline.cli"]
    for arguments in (["put", "big", "nyc/main/big"], ["get", "nyc/main/big", "out"], ["ls", "nyc/main"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr
        assert done.stderr == ""
        theirs, ours = pty.openpty()
        with os.fdopen(theirs, "rb", buffering=0) as screen:
            shown = subprocess.Popen([*command, *arguments], stderr=ours, stdout=ours, stdin=subprocess.DEVNULL)
            os.close(ours)
            text = b""
            try:
                while chunk := screen.read(65536):
                    text += chunk
            except OSError:
                pass  # the other end is closed
            assert shown.wait(60) == 0
        assert b"\x1b[" in text
        if arguments[0] != "ls":
            assert b"loading" in text


def test_options_that_name_a_prefix_take_what_is_below_a_path(lake_cli: Run, tmp_path: Path) -> None:
    assert lake_cli("repo", "create", "abc")[0] == 0
    for place in ("d/x", "d2/x"):
        assert lake_cli("put", str(tmp_path / "a.csv"), f"abc/main/{place}")[0] == 0
        assert lake_cli("commit", "abc/main", "-m", place)[0] == 0
    for prefix in ("d", "d/"):
        _, out, _ = lake_cli("diff", "abc/main~2", "abc/main", "--prefix", prefix)
        assert "d/x" in out
        assert "d2/x" not in out
        _, out, _ = lake_cli("log", "abc/main", "--prefix", prefix, "--json")
        assert [json.loads(line)["message"] for line in out.splitlines()] == ["d/x"]
        for place in ("d/y", "d2/y"):
            assert lake_cli("put", str(tmp_path / "a.csv"), f"abc/main/{place}")[0] == 0
        assert lake_cli("discard", "abc/main", "--prefix", prefix)[0] == 0
        _, out, _ = lake_cli("status", "abc/main")
        assert "d2/y" in out
        assert "d/y" not in out.replace("d2/y", "")


def test_a_protection_can_forbid_every_action() -> None:
    assert {one.value for one in Blocked} == set(get_args(Action))


def test_small_things_that_newcomers_tried(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n")
    cli("init", "lake")
    cli("repo", "create", "nyc")
    cli("put", "a.csv", "nyc/main/a")
    assert cli("get", "nyc/main/a", "-")[:2] == (0, "x\n")
    assert not (tmp_path / "-").exists()
    code, _, err = cli("get", "nyc/main/a", "new/")
    assert (code, "There is no folder 'new/'" in err) == (2, True)
    (tmp_path / "new").mkdir()
    assert cli("get", "nyc/main/a", "new/")[0] == 0
    assert (tmp_path / "new" / "a").read_text() == "x\n"
    assert cli("log", "nyc/main", "-n", "-1")[0] == 2
    assert cli("ls", "nyc/main", "--amount", "-1")[0] == 2
    assert "There is no branch, tag or commit 'nope'." in cli("ls", "nyc/nope")[2]
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    code, _, err = cli("import", "one", "nyc/main/in/")
    assert (code, "a link that leads to itself" in err) == (3, True)
    cli("backup", "saved")
    code, _, err = cli("restore", "saved", "nyc", "--as", "again")
    assert (code, "Restore into another lake, or delete it first." in err) == (4, True)
    cli("branch", "create", "nyc/main", "dev")
    assert cli("repo", "default-branch", "nyc", "dev")[0] == 0
    assert cli("branch", "delete", "nyc/main")[0] == 0


def test_small_files_of_a_table_are_rewritten(lake_cli: Run, tmp_path: Path) -> None:
    import pyarrow as pa

    import strandline

    with strandline.open(tmp_path / "lake") as lake:
        table = lake.repository("nyc").branch("main").table("t")
        for n in range(3):
            table.write(pa.table({"k": [n], "v": [n]}), message="row")
    code, out, _ = lake_cli("table", "rewrite", "nyc/main/t", "--z-order-by", "k, v", "-m", "tidy", "--json")
    assert (code, json.loads(out)["before"], json.loads(out)["after"]) == (0, 3, 1)
    assert lake_cli("table", "rewrite", "nyc/main/t")[1].strip() == "No file has to be rewritten."
    assert lake_cli("table", "rewrite", "nyc/main/t", "--sort-by", "none")[0] == 2
    assert lake_cli("table", "rewrite", "nyc/main/t", "--target-mib", "0")[0] == 2


def test_a_repository_is_copied_to_another_lake(lake_cli: Run, tmp_path: Path) -> None:
    assert lake_cli("repo", "copy", "nyc", str(tmp_path / "other"))[0] == 3  # there is no such lake
    assert lake_cli("init", str(tmp_path / "other"))[0] == 0
    code, out, _ = lake_cli("repo", "copy", "nyc", str(tmp_path / "other"), "--as", "copied", "--json")
    assert (code, json.loads(out)) == (0, {"repository": "copied", "checked": True})
    assert lake_cli("ls", "copied/main", "--lake", str(tmp_path / "other"))[0] == 0
    assert lake_cli("repo", "copy", "nyc", str(tmp_path / "other"))[0] == 4
    assert lake_cli("repo", "copy", "nyc", "")[0] == 2


def test_tables_are_kept_up_by_rule(lake_cli: Run, tmp_path: Path) -> None:
    import strandline

    with strandline.open(tmp_path / "lake") as lake:
        for n in range(3):
            lake.repository("nyc").branch("main").table("t").write(pa.table({"k": [n]}), message="row")
    keep = "table", "keep-up", "nyc/main", "--tables", "t", "--min-files", "3", "--json"
    code, out, _ = lake_cli(*keep, "--dry-run")
    assert (code, json.loads(out)["before"], json.loads(out)["after"]) == (0, 3, 0)
    code, out, _ = lake_cli(*keep, "--sort-by", "k")
    assert (code, json.loads(out)["before"], json.loads(out)["after"]) == (0, 3, 1)
    with strandline.open(tmp_path / "lake") as lake:
        for n in range(2):
            lake.repository("nyc").branch("main").table("u").write(pa.table({"k": [n]}), message="row")
    failed = lake_cli("table", "keep-up", "nyc/main", "--tables", "u", "--min-files", "2", "--sort-by", "none")
    assert failed[0] not in (0, 2)
    assert "could not be kept up: u" in failed[2]
    assert lake_cli("table", "keep-up", "nyc/main", "--min-files", "1")[0] == 2
    assert lake_cli("table", "keep-up", "nyc/main", "--min-age-days", "nan")[0] == 2


def test_a_table_is_mirrored(lake_cli: Run, tmp_path: Path) -> None:
    lake_cli("repo", "create", "nyc")
    folder = tmp_path / "rides" / "day=2026-01-01"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "a.parquet")
    mirror = "table", "mirror", str(folder.parent), "nyc/main/rides", "--partition-types", "day=date"
    code, out, _ = lake_cli(*mirror, "-m", "rides", "--json")
    assert (code, json.loads(out)["objects"]) == (0, 1)
    assert lake_cli(*mirror)[1].strip() == "1 object at the source; nothing has changed."
    assert '"date"' in lake_cli("cat", "nyc/main/rides/_strandline_table.json")[1]


def test_a_workload_gets_its_bill_without_a_lake(cli: Run, tmp_path: Path) -> None:
    code, out, _ = cli("cost", "--objects", "1000000000", "--commits", "10000", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {row["kind"] for row in rows} == {"blob get", "blob put", "blob list", "storage", "in all"}
    assert rows[-1]["dollars"] == pytest.approx(sum(row["dollars"] for row in rows[:-1]), abs=0.05)
    (tmp_path / "prices.json").write_text('{"pot": 1}')
    assert cli("cost", "--prices", str(tmp_path / "prices.json"))[0] == 2
    assert cli("cost", "--objects", "0")[0] == 2
