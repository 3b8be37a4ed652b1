"""Opening lakes: folders, URLs, environment, TOML; importing; what results look like."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import errors
from strandline.errors import InvalidName, InvalidSettings, LakeNotFound
from strandline.kv.network_fs import network_file_system
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.results.rows import Results
from strandline.settings import find_settings
from tests.harness.clients import entry

GOLDEN = Path(__file__).parent / "golden"


def test_a_mistyped_path_never_makes_a_lake(tmp_path: Path) -> None:
    with pytest.raises(LakeNotFound, match="create=True"):
        strandline.open(tmp_path / "nope")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(LakeNotFound):
        strandline.open(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    (tmp_path / "file").write_text("x = 1")
    with pytest.raises(InvalidSettings):
        strandline.open(tmp_path / "file" / "below", create=True)


def test_a_folder_is_a_lake_and_can_be_moved(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "a lake", create=True) as lake:
        lake.repository("nyc", create=True).branch("main").put("a", b"1")
    (tmp_path / "a lake").rename(tmp_path / "moved é")
    with strandline.open(str(tmp_path / "moved é")) as lake:
        assert lake.repository("nyc").branch("main").read("a") == b"1"


def test_settings_come_from_arguments_then_toml_then_the_environment(tmp_path: Path) -> None:
    toml = tmp_path / "lake.toml"
    toml.write_text(f'kv = "sqlite://{tmp_path}/m.db"\nblob = "{tmp_path}/d"\ntenant = "team-a"\nsynced = false\n')
    found = find_settings(toml, environment={"STRANDLINE_TENANT": "team-b", "STRANDLINE_COMMITTER": "me"})
    assert (found.tenant, found.synced, found.committer) == ("team-a", False, "me")
    assert find_settings(toml, tenant="team-c", environment={}).tenant == "team-c"
    env = {"STRANDLINE_KV": "sqlite:///k.db", "STRANDLINE_BLOB": "/b", "STRANDLINE_TENANT": "t"}
    assert find_settings(environment=env).kv.reveal() == "sqlite:///k.db"
    assert find_settings(environment={"STRANDLINE_LAKE": str(toml)}).tenant == "team-a"
    for bad in ('kv = 1\nblob = "x"', "nonsense", 'kv = "a"\nblob = "b"\ncolour = "red"', 'synced = "yes"'):
        toml.write_text(bad)
        with pytest.raises(InvalidSettings):
            find_settings(toml, environment={})
    for arguments in ({}, {"kv": "sqlite:///x"}, {"location": "s3://bucket"}):
        with pytest.raises(InvalidSettings):
            find_settings(**arguments, environment={})  # type: ignore[arg-type]
    with pytest.raises(LakeNotFound):
        find_settings(tmp_path / "missing.toml", environment={})


def test_paths_in_a_toml_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "lake.toml").write_text('kv = "meta.db"\nblob = "bytes"\n')
    monkeypatch.chdir(tmp_path)
    with strandline.open("conf/lake.toml", create=True) as lake:
        lake.repository("nyc", create=True)
    assert sorted(path.name for path in (tmp_path / "conf").iterdir())[:2] == ["bytes", "lake.toml"]
    with pytest.raises(InvalidSettings, match=r"object store \(blob\)"):
        strandline.open(kv="memory://x")


def test_a_toml_file_in_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "strandline.toml").write_text(f'blob = "{tmp_path}/elsewhere"\n')
    with strandline.open(tmp_path, create=True) as lake:
        lake.repository("nyc", create=True)
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "data").exists()


def test_tenants_see_only_their_own(tmp_path: Path) -> None:
    kv, blob = f"sqlite://{tmp_path}/m.db", str(tmp_path / "d")
    with (
        strandline.open(kv=kv, blob=blob, tenant="team-a", create=True) as a,
        strandline.open(kv=kv, blob=blob, tenant="team-b", create=True) as b,
    ):
        a.repository("nyc", create=True)
        assert list(b.repositories()) == []
        b.repository("nyc", create=True).branch("main").put("x", b"1")
        assert not a.repository("nyc").branch("main").exists("x")
    with pytest.raises(InvalidName, match="tenant"):
        strandline.open(kv=kv, blob=blob, tenant="Team/A", create=True)


def test_a_lake_in_memory_is_shared_by_its_name() -> None:
    with strandline.open("memory://shared-by-name", create=True) as one:
        one.repository("nyc", create=True).branch("main").put("a", b"1")
    with strandline.open("memory://shared-by-name") as two:
        assert two.repository("nyc").branch("main").read("a") == b"1"
    with pytest.raises(LakeNotFound):
        strandline.open("memory://another")


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:30 / /home rw - nfs4 server:/home rw
31 30 0:31 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:32 / /mnt/share rw - cifs //server/share rw
33 22 0:33 / /mnt/juice rw - fuse.juicefs juice rw
34 22 0:34 / /mnt/blob rw - fuse.blobfuse2 blob rw
35 22 0:35 / /mnt/s3 rw - fuse.mount-s3 bucket rw
36 22 0:36 / /mnt/bare rw - fuse something rw
37 22 0:37 / /mnt/host rw - virtiofs host rw
38 22 0:38 / /mnt/weka rw - wekafs weka rw
39 22 0:39 / /mnt/gfs rw - gfs2 /dev/shared rw
40 22 0:40 / /mnt/weed rw - fuse.seaweedfs weed rw
41 22 0:41 / /mnt/vm rw - fuse.vmhgfs-fuse vm rw
42 22 0:42 / /mnt/vbox rw - vboxsf box rw
43 22 0:43 / /mnt/ntfs rw - fuseblk /dev/sdb1 rw
44 22 0:44 / /mnt/overlay rw - fuse.fuse-overlayfs overlay rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lake", None),
        ("/home/me", "nfs4"),
        ("/home/local disk/lake", None),
        ("/mnt/share", "cifs"),
        ("/mnt/juice", "fuse.juicefs"),
        ("/mnt/blob", "fuse.blobfuse2"),
        ("/mnt/s3", "fuse.mount-s3"),
        ("/mnt/bare", "fuse"),
        ("/mnt/host", "virtiofs"),
        ("/mnt/weka", "wekafs"),
        ("/mnt/gfs", "gfs2"),
        ("/mnt/weed", "fuse.seaweedfs"),
        ("/mnt/vm", "fuse.vmhgfs-fuse"),
        ("/mnt/vbox", "vboxsf"),
        ("/mnt/ntfs", None),
        ("/mnt/overlay", None),
        ("/mnt", None),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(folder: str, kind: str | None) -> None:
    assert network_file_system(Path(folder), MOUNTS) == kind


def test_a_database_on_a_network_file_system_is_refused_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.kv.sqlite.network_file_system", lambda folder: "nfs4")
    with pytest.raises(InvalidSettings, match="network file system \\(nfs4\\)"):
        strandline.open(tmp_path / "lake", create=True)
    with strandline.open(kv=f"sqlite://{tmp_path}/m.db?network=allow", blob=str(tmp_path / "d"), create=True) as lake:
        lake.repository("nyc", create=True)


def test_importing_loads_no_driver_and_nothing_heavy() -> None:
    script = (
        "import sys, strandline;"
        "heavy = {'pyarrow', 'numpy', 'pyspark', 'psycopg', 'redis', 'polars', 'pandas', 'obstore'} & set(sys.modules);"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_and_writing_loads_no_data_frames(tmp_path: Path) -> None:
    """They take as long to load as everything else together: short jobs and the command line would feel it."""
    script = (
        "import sys, strandline;"
        "main = strandline.open(sys.argv[1], create=True).repository('nyc', create=True).branch('main');"
        "main.put('a', b'1'); assert main.read('a') == b'1';"
        "print(sorted({'pandas', 'polars', 'pyspark', 'pyarrow.dataset'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_core_works_with_no_extra_installed(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('pyspark', 'psycopg', 'redis', 'polars', 'pandas', 'duckdb'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import strandline\n"
        "lake = strandline.open(sys.argv[1], create=True)\n"
        "main = lake.repository('nyc', create=True).branch('main')\n"
        "main.put('a', b'1'); main.commit('c'); work = main.create_branch('w'); work.put('b', b'2'); work.commit('d')\n"
        "main.merge(work); print(main.list()); print(main.diff('main~1'))\n"
        "import pyarrow; main.table('t').write(pyarrow.table({'a': [1]})); assert main.table('t').count() == 1\n"
        "assert main.table('t').to_arrow().to_pylist() == [{'a': 1}]\n"
        "try:\n    main.table('t').to_spark(None)\n"
        'except strandline.UsageError as error:\n    assert "strandline[spark]" in str(error)\n'
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "lake")], check=True, capture_output=True)


def test_everything_public_is_there_and_typed() -> None:
    for name in strandline.__all__:
        assert getattr(strandline, name) is not None
    assert set(strandline.__all__) <= set(dir(strandline))
    assert (Path(strandline.__file__).parent / "py.typed").exists()
    with pytest.raises(AttributeError):
        strandline.nonsense


def plain(text: str) -> str:
    """Ids and checksums of a run, replaced by their kind."""
    return re.sub(r"blake3:[0-9a-f]{20,}…?", "blake3:…", re.sub(r"\b[0-9a-f]{12}\b", "<commit>", text)) + "\n"


def test_results_show_well_on_a_terminal_and_in_a_notebook(lake: Lake, repo: Repository, main: Branch) -> None:
    main.put("a & b.txt", b"x" * 1234)
    main.commit("First\nwith <markup>")
    main.stage_each([(f"k{i:02d}", entry(i)) for i in range(25)])
    main.delete("a & b.txt")
    repo.create_tag("v1", "main@")
    shown: dict[str, Results[Any]] = {
        "objects": main.list(),
        "folders": repo.ref("main@").list(delimiter=" "),
        "changes": main.uncommitted(),
        "log": main.log(),
        "branches": repo.branches(),
        "tags": repo.tags(),
        "nothing": main.list("none"),
    }
    for name, result in shown.items():
        for kind, text in (("txt", plain(repr(result))), ("html", plain(result._repr_html_()))):
            golden = GOLDEN / f"{name}.{kind}"
            if os.environ.get("STRANDLINE_TEST_WRITE_GOLDEN"):
                golden.write_text(text)
            assert text == golden.read_text(), f"{golden} differs"


def test_results_turn_into_arrow_and_polars(repo: Repository, main: Branch) -> None:
    main.put_many({"a": b"1", "b": b"2"})
    main.commit("c")
    for result, rows in (
        (main.list(), 2),
        (main.diff("main~1"), 2),
        (main.uncommitted(), 0),
        (main.log(), 2),
        (repo.branches(), 1),
        (repo.tags(), 0),
        (main.list("none"), 0),
        (main.diff("main"), 0),
    ):
        assert result.to_arrow().num_rows == rows
        frame = result.to_polars()
        assert frame.height == rows
        assert frame.columns == result.to_arrow().column_names
    assert main.list().to_polars()["path"].to_list() == ["a", "b"]
    assert main.diff("main~1").to_polars()["kind"].to_list() == ["removed", "removed"]


@pytest.mark.parametrize(
    ("blob", "kind"),
    [
        ("ftp://host/x", errors.InvalidSettings),
        ("s3://bucket/x?endpoint=http://127.0.0.1:1&region=us-east-1", errors.StoreUnavailable),
    ],
)
def test_a_lake_is_not_made_over_an_object_store_that_does_not_answer(
    tmp_path: Path, blob: str, kind: type[errors.StrandlineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    kv = f"sqlite://{tmp_path / 'kv.db'}"
    with pytest.raises(kind):
        strandline.open(kv=kv, blob=blob, create=True)
    with pytest.raises(LakeNotFound):
        strandline.open(kv=kv, blob=str(tmp_path / "data"))
