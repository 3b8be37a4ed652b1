"""Imports in slices make the very tree that an import in one go makes, wherever they are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.blob import BlobStore, open_store
from strandline.core import promises
from strandline.errors import Contention, InvalidName, NotFound, StorageError, UsageError
from strandline.ids import keys_below
from strandline.lake import Lake
from strandline.progress import Progress, no_progress
from strandline.repository.branch import Branch
from strandline.repository.commits import slices
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.importing import import_objects
from strandline.repository.commits.listing import ImportSource
from strandline.repository.commits.resuming import Cut
from strandline.repository.commits.slices import Slice, WorkersHere, cut
from strandline.tree import chunking, levels

NAMES = st.text(st.sampled_from("ab/%é ~\U0001f600"), min_size=1, max_size=6).filter(
    lambda name: all(part not in ("", ".", "..") for part in name.split("/"))
)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of eight rows, and nodes of two, so that little data has many of them."""
    monkeypatch.setattr(chunking, "MEAN_ROWS", 8)
    monkeypatch.setattr(chunking, "MAX_ROWS", 32)
    monkeypatch.setattr(chunking, "THRESHOLD", 2**32 // 8)
    monkeypatch.setattr(levels, "FLAT_MAX", 6)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake


class CutHere(WorkersHere):
    """Cuts at given keys, and does something before a slice."""

    def __init__(self, wanted: int = 5) -> None:
        self.wanted = wanted
        self.seen: list[Slice] = []

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        self.seen += slices
        return super().run(slices, progress)


def bring(branch: Branch, source: Any, destination: str = "in", workers: Any = None, **options: Any) -> Any:
    sources = source if isinstance(source, list) else [ImportSource(str(source), destination)]
    draft = make_draft(branch._core, "import", None, None, None)
    replaces = options.get("replaces", False)
    return import_objects(
        branch._core,
        branch._at,
        sources,
        draft,
        no_progress,
        replaces=replaces,
        workers=workers,
        job=options.get("job"),
    )


def tree_of(branch: Branch) -> str:
    return branch._core.commits.tree(branch.commit_id).id


def files(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("replaces", [False, True])
def test_the_tree_is_that_of_an_import_in_one_go(tmp_path: Path, lake: Lake, seed: int, *, replaces: bool) -> None:
    rng = random.Random(seed)
    names = sorted({f"{rng.choice('abc')}/{rng.randrange(900):03}.txt" for _ in range(rng.choice([1, 30, 600]))})
    folder = files(tmp_path / "source", names)
    repository = lake.repository("nyc", create=True)
    main = repository.branch("main")
    for n in range(rng.choice([0, 40])):
        main.put(rng.choice(["in/a/", "in/b/9", "im/", "io/", "in/z"]) + f"{n:03}", b"held")
    main.put("first", b"")
    main.commit("held")
    if rng.random() < 0.5:
        bring(main, folder, "in/", replaces=False)
        for name in rng.sample(names, len(names) // 7):
            (folder / name).write_bytes(b"changed, and longer")
        (folder / "new.txt").write_bytes(b"new")
    sliced = main.create_branch("sliced")
    whole = bring(main, folder, "in/", replaces=replaces)
    workers = CutHere(rng.choice([1, 2, 5, 40]))
    in_slices = bring(sliced, folder, "in/", workers=workers, replaces=replaces)
    assert tree_of(sliced) == tree_of(main)
    assert in_slices.objects == whole.objects
    assert (in_slices.commit is None) == (whole.commit is None)
    again = bring(sliced, folder, "in/", workers=CutHere(3), replaces=replaces)
    assert again.commit is None


def test_ranges_that_are_there_are_not_written_again(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", [f"{n:04}" for n in range(400)])
    main = lake.repository("nyc", create=True).branch("main")
    bring(main, folder, workers=CutHere(4))
    blobs = main._core.stores.trees.blobs
    before = set(blobs.list_keys("_strandline/ranges/"))
    (folder / "0200").write_bytes(b"another")
    bring(main, folder, workers=CutHere(4))
    rests_of_four_slices, first_ranges, changed = 4, 4, 1
    new = set(blobs.list_keys("_strandline/ranges/")) - before
    assert len(new) <= rests_of_four_slices + first_ranges + changed


def test_what_others_commit_meanwhile_is_kept(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", [f"{n:03}" for n in range(100)])
    main = lake.repository("nyc", create=True).branch("main")
    moments = iter([("elsewhere", 1), None])

    class Beside(CutHere):
        def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
            if (moment := next(moments)) is not None:
                main.put(moment[0], b"of another")
                main.commit("beside")
            return super().run(slices, progress)

    workers = Beside(3)
    bring(main, folder, workers=workers)
    assert main.read("elsewhere") == b"of another"
    assert len(list(main.list("in/"))) == 100
    assert len(workers.seen) == 3  # what was listed was not listed again


@pytest.mark.parametrize("times", [1, 2])
def test_what_others_commit_at_the_destination_is_laid_under(tmp_path: Path, lake: Lake, times: int) -> None:
    folder = files(tmp_path / "source", [f"{n:03}" for n in range(100)])
    main = lake.repository("nyc", create=True).branch("main")
    left = [times]

    class Beside(CutHere):
        def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
            if left[0]:
                left[0] -= 1
                main.put("in/007", b"of another")
                main.put(f"in/more-{left[0]}", b"of another")
                main.commit("beside")
            return super().run(slices, progress)

    bring(main, folder, workers=Beside(3))
    assert main.read("in/007") == b"007"
    assert [info.path for info in main.list("in/more")] == [f"in/more-{n}" for n in range(times)]


def test_one_that_never_meets_a_quiet_branch_gives_up(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(tmp_path / "source", ["a"])
    main = lake.repository("nyc", create=True).branch("main")
    before = main.commit_id
    count = iter(range(1000))

    class Beside(CutHere):
        def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
            main.put("in/a", f"of another {next(count)}".encode())
            main.commit("beside")
            return super().run(slices, progress)

    workers = Beside(1)
    with pytest.raises(Contention, match="5 times"):
        bring(main, folder, workers=workers)
    assert len(workers.seen) == slices.ATTEMPTS
    assert main.commit_id != before
    assert main.read("in/a").startswith(b"of another")


def test_a_folder_that_a_worker_does_not_have_is_no_empty_one(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", [f"{n:03}" for n in range(100)])
    main = lake.repository("nyc", create=True).branch("main")
    bring(main, folder)
    before = main.commit_id

    class Missing(CutHere):
        def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
            yield from super().run(slices[:-1], progress)
            folder.rename(tmp_path / "unmounted")
            yield from super().run(slices[-1:], progress)

    with pytest.raises(StorageError, match="There is no folder"):
        bring(main, folder, workers=Missing(4), replaces=True)
    assert main.commit_id == before


def test_a_lake_whose_bytes_lie_elsewhere_is_refused(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", ["a"])
    main = lake.repository("nyc", create=True).branch("main")
    main.put("held", b"")
    main.commit("held")
    lake.backup(tmp_path / "saved", data=False)
    with strandline.open(tmp_path / "restored", create=True, synced=False) as other:
        other.restore(tmp_path / "saved")
        with pytest.raises(UsageError, match="two stores"):
            bring(other.repository("nyc").branch("main"), folder, workers=CutHere())


def test_sources_are_checked_before_anything_is_listed(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", ["a", "b/c"])
    main = lake.repository("nyc", create=True).branch("main")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="single object"):
        bring(main, [ImportSource(str(folder / "a"), "x", is_object=True)], workers=CutHere())
    with pytest.raises(UsageError, match="lies below another"):
        bring(main, [ImportSource(str(folder), "x"), ImportSource(str(folder), "x/y")], workers=CutHere())
    with pytest.raises(NotFound):
        bring(main, tmp_path / "empty", workers=CutHere())
    with pytest.raises(NotFound):
        bring(main, [ImportSource(str(folder), "x"), ImportSource(str(tmp_path / "empty"), "y")], workers=CutHere())
    with pytest.raises(UsageError, match="belongs to a repository"):
        bring(main, tmp_path / "lake", workers=CutHere())
    assert [one.message for one in main.log()] == ["Repository created"]


def test_a_key_that_is_no_path_is_refused(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", ["a"])
    (folder / "x".join(["y" * 200] * 1)).write_bytes(b"")
    deep = folder
    for _ in range(6):
        deep = deep / ("z" * 240)
    deep.mkdir(parents=True)
    (deep / "end").write_bytes(b"")
    with pytest.raises(InvalidName):
        bring(lake.repository("nyc", create=True).branch("main"), folder, workers=CutHere(2))


def test_several_sources_are_one_commit(tmp_path: Path, lake: Lake) -> None:
    one, two = files(tmp_path / "one", ["a", "b"]), files(tmp_path / "two", ["c"])
    main = lake.repository("nyc", create=True).branch("main")
    found = bring(main, [ImportSource(str(one), "x"), ImportSource(str(two), "y")], workers=CutHere())
    assert found.objects == 3
    assert [info.path for info in main.list()] == ["x/a", "x/b", "y/c"]
    assert len(list(main.log())) == 2


# --- stores -----------------------------------------------------------------------------------------------------------


def between(store: BlobStore, prefix: str, cuts: Sequence[str]) -> list[list[str]]:
    edges = zip(["", *cuts], [*cuts, None], strict=True)
    return [[info.key for page in store.list_between(prefix, *edge) for info in page] for edge in edges]


@given(st.sets(NAMES, max_size=30), st.lists(NAMES, max_size=4), st.sampled_from(["", "a/", "a"]))
def test_stretches_have_each_key_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], cuts: list[str], prefix: str
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    held = {name for name in names if not any(other.startswith(name + "/") for other in names)}
    store = open_store(str(files(folder, sorted(held))))
    at = sorted(set(cuts))
    wanted = sorted(name for name in held if name.startswith(prefix))
    found = between(store, prefix, at)
    assert [key for stretch in found for key in stretch] == wanted
    for stretch, after, last in zip(found, ["", *at], [*at, None], strict=True):
        assert all(key > after and (last is None or key <= last) for key in stretch)
    cutting = store.cuts(prefix, 3)
    assert cutting == sorted(set(cutting))
    assert [key for stretch in between(store, prefix, cutting) for key in stretch] == wanted


def test_a_slice_without_an_end_is_handed_back_whole(tmp_path: Path, lake: Lake) -> None:
    names = [name for name in (f"{n:03}" for n in range(400)) if not chunking.is_natural_end(f"in/{name}")][:5]
    folder = files(tmp_path / "source", names)
    main = lake.repository("nyc", create=True).branch("main")
    core = main._core
    tree = core.commits.tree(main.commit_id).ref
    made = cut(Slice(str(folder), "", "in/", "", None, core.resolver.namespace.url, tree, False, True))
    assert made.ranges == []
    assert made.rest is not None
    assert (made.rest.count, made.objects) == (5, 5)


# --- going on with a run that died ------------------------------------------------------------------------------------


class Dying(CutHere):
    """Dies before a slice, after those before it were cut."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        for number, made in enumerate(super().run(slices, progress)):
            if number == self._at:
                raise KeyboardInterrupt
            yield made


def died(tmp_path: Path, lake: Lake, at: int = 3) -> tuple[Branch, Path]:
    """A branch, and a source whose import died before the slice `at` was put in."""
    folder = files(tmp_path / "source", [f"{n:03}" for n in range(200)])
    main = lake.repository("nyc", create=True).branch("main")
    main.put("held", b"x")
    main.commit("held")
    main.create_branch("whole")
    with pytest.raises(KeyboardInterrupt):
        bring(main, folder, workers=Dying(at), job="landing")
    return main, folder


def state(branch: Branch) -> list[str]:
    return [key for key in branch._core.stores.trees.blobs.list_keys("_strandline/txn/") if "slice-" in key]


def cut_again(branch: Branch, folder: Path, **options: Any) -> int:
    """How many slices a call cuts, whose commit is that of one process."""
    workers = Counting()
    bring(branch, folder, workers=workers, **{"job": "landing", **options})
    whole = branch._core.open("whole")
    bring(whole, folder)
    assert tree_of(branch) == tree_of(whole)
    return workers.made


class Counting(CutHere):
    """Counts the slices that it makes anew."""

    made = 0

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        for done in super().run(slices, progress):
            self.made += not done.is_as_before
            yield done


def test_slices_that_changed_at_the_source_are_made_anew(tmp_path: Path, lake: Lake) -> None:
    main, folder = died(tmp_path, lake)
    (folder / "000").write_bytes(b"another one, and longer")
    (folder / "050a").write_bytes(b"new")
    (folder / "199").unlink()  # of the slice that was not made
    assert cut_again(main, folder) == 3
    assert main.stat("in/000").size == 23


def test_a_source_without_objects_is_listed_again(tmp_path: Path, lake: Lake) -> None:
    (tmp_path / "source").mkdir()
    main = lake.repository("nyc", create=True).branch("main")
    with pytest.raises(NotFound, match="has no object"):
        bring(main, tmp_path / "source", workers=CutHere(), job="landing")
    files(tmp_path / "source", ["a"])
    assert bring(main, tmp_path / "source", workers=CutHere(), job="landing").objects == 1


def test_a_run_goes_on_with_one_that_died(tmp_path: Path, lake: Lake) -> None:
    main, folder = died(tmp_path, lake)
    assert len(state(main)) == 5  # the plan, and four slices that were cut
    assert cut_again(main, folder) == 1
    assert state(main) == []
    links = main._core.stores.kv.scan(main._core.stores.records, *keys_below(promises.LINK))
    assert list(links)  # a collector that is about to condemn the ranges sees them


def test_another_job_or_content_begins_anew(tmp_path: Path, lake: Lake) -> None:
    main, folder = died(tmp_path, lake)
    assert cut_again(main.create_branch("other"), folder) == 5
    assert cut_again(main, folder, job="another job") == 5


def test_a_head_that_moved_begins_anew(tmp_path: Path, lake: Lake) -> None:
    main, folder = died(tmp_path, lake)
    main.put("later", b"x")
    main.commit("later")
    lake.repository("nyc").delete_branch("whole")
    main.create_branch("whole")
    assert cut_again(main, folder) == 5


def test_ranges_that_were_collected_are_made_again(tmp_path: Path, lake: Lake) -> None:
    main, folder = died(tmp_path, lake)
    repo = lake.repository("nyc")
    blobs = main._core.stores.trees.blobs
    repo.gc.run(grace_days=7)
    assert len(state(main)) == 5
    raw = max((blobs.get(key) for key in state(main)), key=len)
    blobs.delete_many([msgspec.msgpack.decode(raw, type=Cut).ranges[0].address])  # as a collector with another grace
    assert cut_again(main, folder) == 2
    assert repo.fsck(content=True).is_sound


def test_a_run_of_another_day_is_not_gone_on_with(tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    main, folder = died(tmp_path, lake)
    monkeypatch.setattr("strandline.repository.commits.resuming.RESUMABLE_DAYS", -1)
    assert cut_again(main, folder) == 5


def test_state_that_cannot_be_read_is_nothing(tmp_path: Path, lake: Lake) -> None:
    main, folder = died(tmp_path, lake)
    for key in state(main):
        main._core.stores.trees.blobs.put(key, b"cut")
    assert cut_again(main, folder) == 5


def test_a_dead_run_is_garbage(tmp_path: Path, lake: Lake) -> None:
    main, _ = died(tmp_path, lake)
    main._core.stores.trees.blobs.put("elsewhere", b"")
    plan = lake.repository("nyc").gc.plan(grace_days=0)
    assert plan.unknown == 1


def test_a_job_needs_slices_and_a_name(tmp_path: Path, lake: Lake) -> None:
    folder = files(tmp_path / "source", ["a"])
    main = lake.repository("nyc", create=True).branch("main")
    with pytest.raises(UsageError, match="nothing is left to go on with"):
        main.import_objects(folder, "in", job="landing")
    with pytest.raises(InvalidName):
        bring(main, folder, workers=CutHere(), job="no\nname")
    assert state(main) == []
