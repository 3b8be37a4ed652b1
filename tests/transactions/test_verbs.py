"""Code that writes objects to a branch runs on a transaction as well, and leaves the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.errors import Conflict, ObjectNotFound, PreconditionFailed, UsageError
from strandline.repository.branch import Branch
from strandline.repository.objects.writable import Writable
from strandline.results.rows import ObjectInfo

Work = Callable[[Writable], object]


def put_many(place: Writable) -> object:
    contents: dict[str, bytes | str] = {"n/1": b"1", "n/2": "two"}
    return place.put_many(contents.items()), place.put_many([("n/3", b"3")], atomic=False)


def delete_many(place: Writable) -> object:
    return place.delete_many(["old/1", "not there"])  # type: ignore[attr-defined]


def write_text(place: Writable) -> object:
    with place.open("n/text", "w") as file:
        file.write("line\n")
    with place.open("n/bytes", "wb") as binary:
        binary.write(b"\x00")
    with pytest.raises(RuntimeError), place.open("n/none", "w") as failing:
        failing.write("x")
        raise RuntimeError
    return None


def conditional(place: Writable) -> object:
    made = place.put("n/new", b"1", create=True)
    with pytest.raises(PreconditionFailed):
        place.put("n/new", b"2", create=True)
    with pytest.raises(PreconditionFailed):
        place.put("old/1", b"2", if_match="blake3:00")
    place.put("n/new", b"2", if_match=made.checksum)
    with pytest.raises(UsageError, match="absent and matched"):
        place.put("n/new", b"3", create=True, if_match=made.checksum)
    return None


def copy(place: Writable) -> object:
    place.put("old/3", b"of this very work")
    done = place.copy("old/1", "n/1"), place.copy("old/", "n/all/"), place.copy("n/all/", "n/again/")  # type: ignore[attr-defined]
    for source, target in (("old/", "n"), ("old/1", "old/1")):
        with pytest.raises(UsageError):
            place.copy(source, target)  # type: ignore[attr-defined]
    with pytest.raises(ObjectNotFound, match="nothing below"):
        place.copy("none/", "n/")  # type: ignore[attr-defined]
    return done


def rename(place: Writable) -> object:
    place.put("old/3", b"of this very work")
    done = place.rename("old/1", "n/1"), place.rename("old/", "n/all/"), place.rename("n/all/2", "n/2")  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="lies in the other"):
        place.rename("n/", "n/n/")  # type: ignore[attr-defined]
    with pytest.raises(ObjectNotFound, match="no object"):
        place.rename("old/1", "n/1")  # type: ignore[attr-defined]
    return done


WORKS: list[Work] = [put_many, delete_many, write_text, conditional, copy, rename]


@pytest.mark.parametrize("work", WORKS, ids=[work.__name__ for work in WORKS])
def test_a_transaction_does_what_a_branch_does(work: Work, main: Branch) -> None:
    main.put("old/1", b"old")
    main.put("old/2", b"old")
    main.commit("old")
    other = main.create_branch("other")
    expected = work(main)
    main.commit("by the branch")
    with other.transaction("job") as tx:
        assert work(tx) == expected
        assert not [info for info in other.list("n/") if isinstance(info, ObjectInfo)]
    assert contents(other) == contents(main)
    written = sum(1 for path in contents(main) if path.startswith("n/")) + (work is conditional)
    assert tx.result.files == (1 if work in (copy, rename) else written)


def contents(branch: Branch) -> dict[str, bytes]:
    return {info.path: branch.read(info.path) for info in branch.list() if isinstance(info, ObjectInfo)}


@pytest.mark.parametrize("taken", ["while it is open", "and taken away again"])
def test_what_a_conditional_put_demanded_must_hold_when_it_lands(taken: str, main: Branch) -> None:
    with pytest.raises(Conflict, match="'n/a'"), main.transaction("job") as tx:
        tx.put("n/a", b"1", create=True)
        main.put("n/a", b"theirs")
        main.commit("theirs")
        if taken == "and taken away again":
            main.delete("n/a")
            main.put("n/b", b"1")
            main.commit("away")
            main.put("n/a", b"again")
            main.commit("again")
    assert main.read("n/a") in (b"theirs", b"again")


def test_many_bytes_that_a_transaction_wrote_are_linked_at_once(main: Branch, tmp_path: Path) -> None:
    with main.transaction("job") as tx:
        blobs = tx._core.resolver.namespace
        key = f"{tx.data_prefix}mine"
        blobs.put(key, b"abc")
        made = tx.link("n/a", key, size=3, checksum="blake3:00", content_type="text/plain", metadata={"k": "v"})
        assert (made.content_type, made.metadata) == ("text/plain", {"k": "v"})
        entry = tx._find("n/a", b"n/a")
        assert entry is not None
        assert tx.link_many([("n/b", entry), ("n/c", entry)]) == 2
        with pytest.raises(UsageError, match="occurs twice"):
            tx.link_many([("n/d", entry), ("n/d", entry)])
        foreign = main.put("elsewhere", b"x").physical_address
        with pytest.raises(UsageError, match="not below this transaction's own prefix"):
            tx.link("n/d", foreign, size=1, checksum="blake3:00")
    assert sorted(contents(main)) == ["elsewhere", "n/a", "n/b", "n/c"]


def test_a_repeated_transaction_says_what_the_first_one_did(main: Branch) -> None:
    def run() -> bool:
        with main.transaction("job", token="today") as tx:
            assert tx.put_many({"n/1": b"1", "n/2": b"2"}) == 2
            assert tx.delete_many(["n/3"]) == 1
            with tx.open("n/4", "w") as file:
                file.write("4")
        return tx.is_repeat

    assert [run(), run()] == [False, True]
    assert contents(main) == {"n/1": b"1", "n/2": b"2", "n/4": b"4"}


@pytest.mark.parametrize("verb", ["copy", "rename"])
@pytest.mark.parametrize("source", ["old/1", "old/"])
@pytest.mark.parametrize("change", ["put", "delete", "put beside"])
def test_a_source_that_others_changed_is_a_conflict(verb: str, source: str, change: str, main: Branch) -> None:
    main.put_many({"old/1": b"1", "old/2": b"2"})
    main.commit("old")
    tx = main.transaction("job").begin()
    getattr(tx, verb)(source, "new/" if source.endswith("/") else "new")
    if change == "delete":
        main.delete("old/1")
    else:
        main.put("old/1" if change == "put" else "old/9", b"theirs")
    main.commit("theirs")
    if change == "put beside" and source == "old/1":
        tx.commit()
        assert main.read("new") == b"1"
        assert main.exists("old/1") == (verb == "copy")
        return
    with pytest.raises(Conflict) as refused:
        tx.commit()
    assert list(refused.value.paths) == ["old/9" if change == "put beside" else "old/1"]
    assert not main.exists("new")


def test_a_transaction_copies_only_what_it_reads(main: Branch) -> None:
    main.put("a", b"1")
    main.commit("a")
    with main.transaction("job") as tx:
        with pytest.raises(UsageError, match="not from another ref"):
            tx.copy("a", "b", ref="main")
        main.put("staged since", b"2")
        with pytest.raises(ObjectNotFound):
            tx.copy("staged since", "b")
        tx.rename("a", "c")
        assert [info.path for info in tx.list()] == ["c"]
        assert tx.read("c") == b"1"
    assert main.read("c") == b"1"


def test_renames_survive_a_restart_of_the_driver(main: Branch, tmp_path: Path) -> None:
    main.put_many({"old/1": b"1", "old/2": b"2"})
    main.commit("old")
    tx = main.transaction("job").begin()
    tx.rename("old/", "new/")
    tx.save(tmp_path / "saved")
    again = main.resume(tmp_path / "saved")
    main.put("old/3", b"theirs")
    main.commit("theirs")
    with pytest.raises(Conflict, match="old/3"):
        again.commit()


def test_a_repeated_job_copies_nothing(main: Branch) -> None:
    main.put("a", b"1")
    main.commit("a")
    for turn in range(2):
        with main.transaction("job", token="once") as tx:
            assert tx.copy("a", "b") == (1, 0)[turn]
            assert tx.is_repeat == bool(turn)
