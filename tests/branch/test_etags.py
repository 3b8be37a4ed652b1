"""ETags: kept beside an object's identity, shown as the last client wrote them, and no change of what an object is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import strandline
from strandline import envelope
from strandline.branch.attempts import update
from strandline.branch.conditional import stage_if
from strandline.branch.rules.record import ETAG_FORMAT, with_etags
from strandline.core.upload import upload
from strandline.errors import NewerFormat, NothingToCommit
from strandline.repository.branch import Branch
from strandline.tree.rows import Entry
from tests.harness.clients import Client, entry


def tagged(content: object, etag: str = "md5") -> Entry:
    return replace(entry(content), etag=etag)


def format_of(client: Client, branch: str = "main") -> int:
    stores = client.main._core.stores
    raw = stores.kv.get(stores.refs, branch.encode())
    assert raw is not None
    return envelope.version_of(raw)


def put_one(branch: Branch) -> None:
    branch.stage("a", tagged(1))


def put_some(branch: Branch) -> None:
    branch.stage_each([("b", entry(2)), ("a", tagged(1))])


def put_if(branch: Branch) -> None:
    stage_if(branch._at, "a", tagged(1), lambda found: found is None)


def link_some(branch: Branch) -> None:
    branch.link_many([("a", tagged(1))], atomic=True)


WAYS = [put_one, put_some, put_if, link_some]


@pytest.mark.parametrize("put", WAYS)
def test_a_record_says_so_before_anything_with_an_etag_is_staged(
    one: Client, two: Client, put: Callable[[Branch], None]
) -> None:
    seen: list[int] = []
    two.main.stage("warm", entry(0))
    assert format_of(two) == envelope.FORMAT_VERSION

    def look() -> None:
        stores, record = two.main._core.stores, two.main._at.read().branch
        held = [value for token in record.tokens for _, value in stores.kv.scan(stores.staging(token))]
        if any(value[0] == 0x97 for value in held):
            seen.append(format_of(two))

    for number in range(1, 12):
        one.before("*", number, look)
    put(one.main)
    look()
    assert seen
    assert set(seen) == {ETAG_FORMAT}
    assert one.main.stat("a").etag == "md5"
    assert two.main.stat("a").etag == "md5"


def test_what_has_no_etag_is_staged_and_written_as_before(one: Client) -> None:
    one.main.stage("a", entry(1))
    stores, record = one.main._core.stores, one.main._at.read().branch
    (value,) = (value for _, value in stores.kv.scan(stores.staging(record.staging_token)))
    assert value[0] == 0x96  # an array of six, as versions read it that know no ETags
    one.main.commit("x")
    assert format_of(one) == envelope.FORMAT_VERSION


def test_another_etag_is_shown_and_is_no_change(one: Client, two: Client) -> None:
    one.main.stage("a", tagged(1, "first"))
    one.main.stage("b", tagged(2, "b"))
    one.main.commit("x")
    head = one.main.commit_id
    one.main.stage("a", tagged(1, "second"))
    assert list(two.main.uncommitted()) == []
    with pytest.raises(NothingToCommit):
        one.main.commit("nothing")
    assert two.main.commit_id == head
    assert two.main.stat("a").etag == "second"
    assert two.main.list().to_arrow()["etag"].to_pylist() == ["second", "b"]
    assert two.repo.ref(head).stat("a").etag == "first"
    one.main.compact()
    assert two.main.stat("a").etag == "second"
    with pytest.raises(NothingToCommit):
        one.main.commit("nothing, and nothing is staged")
    two.main.stage("c", entry(3))
    done = two.main.commit("c")
    assert [(change.kind, change.path) for change in two.repo.ref(head).diff(done.id)] == [("added", "c")]
    assert one.repo.ref(done.id).stat("a").etag == "second"


def test_a_write_without_an_etag_keeps_that_of_the_same_object(one: Client) -> None:
    one.main.stage("a", tagged(1))
    one.main.commit("x")
    one.main.stage("a", entry(1))
    one.main.stage("b", entry(2))
    one.main.commit("y")
    assert one.repo.ref("main@").stat("a").etag == "md5"
    one.main.stage("a", entry("another"))
    one.main.commit("z")
    assert one.main.stat("a").etag is None


def test_the_same_bytes_put_by_a_program_and_by_a_client_merge_without_a_conflict(one: Client) -> None:
    work = one.main.create_branch("work")
    work.stage("a", tagged(1))
    work.commit("by a client")
    one.main.stage("a", entry(1))
    one.main.stage("b", entry(2))
    one.main.commit("by a program")
    one.main.merge(work)
    assert one.main.stat("a").checksum == entry(1).checksum
    assert one.repo.ref("work").diff("main", "a").to_arrow().num_rows == 0


def test_renames_and_copies_keep_etags(one: Client) -> None:
    one.main.stage("a", tagged(1))
    one.main.commit("x")
    work = one.main.create_branch("work")
    assert format_of(one, "work") == envelope.FORMAT_VERSION
    work.rename("a", "b")
    assert format_of(one, "work") == ETAG_FORMAT
    assert work.stat("b").etag == "md5"
    work.commit("renamed")
    assert one.repo.ref("work@").stat("b").etag == "md5"
    with work.transaction("nightly") as tx:
        tx.rename("b", "c")
    assert work.stat("c").etag == "md5"


def test_what_a_refused_write_puts_back_has_its_etag(one: Client, two: Client) -> None:
    """A conditional write that came too late puts back what was there, on a branch whose record knows no ETags yet."""
    one.main.stage("a", tagged(1))
    one.main.commit("x")
    work = one.main.create_branch("work")
    other = two.repo.branch("work")
    one.before("set_if", 1, lambda: other.stage("b", entry(2)))
    with pytest.raises(strandline.errors.PreconditionFailed):
        stage_if(work._at, "a", entry(3), lambda found: found is None)
    assert work.stat("a").etag == "md5"


def test_the_release_before_refuses_the_branch_and_works_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        repo = lake.repository("repo", create=True)
        main = repo.branch("main")
        main.put("z", b"z")
        main.commit("first")
        work = main.create_branch("work")
        work.stage("a", upload(work._core, work._new_key("a"), "a", b"a", None, None, with_etag=True))
        with pytest.raises(NothingToCommit):
            main.commit("nothing")
        work.commit("second")
    monkeypatch.setattr(envelope, "_NEWEST", bytes([6]))
    monkeypatch.setattr(envelope, "NEWEST_FORMAT", 6)
    monkeypatch.setattr("strandline.tree.range_file.RANGE_FORMAT", 1)
    with strandline.open(tmp_path, synced=False) as lake:
        repo = lake.repository("repo")
        main = repo.branch("main")
        main.put("b", b"b")
        commit = main.commit("by the release before")
        assert [info.path for info in main.list()] == ["b", "z"]
        with pytest.raises(NewerFormat, match="Upgrade"):
            repo.branch("work")
        with pytest.raises(NewerFormat, match="Upgrade"):
            main.merge("work")
        assert main.commit_id == commit.id
        with pytest.raises(NewerFormat):
            repo.gc.run(grace_days=0)


def test_a_lake_that_keeps_to_an_older_format_has_no_etags(tmp_path: Path) -> None:
    with strandline.open(tmp_path, create=True, max_format=6) as lake:
        main = lake.repository("repo", create=True).branch("main")
        assert not main._core.keeps_etags
    with strandline.open(tmp_path) as lake:
        assert lake.repository("repo").branch("main")._core.keeps_etags


def test_a_stage_with_an_etag_costs_one_call_more_once(one: Client) -> None:
    one.main.stage("warm", tagged(0))
    one.calls.clear()
    one.main.stage("a", tagged(1))
    assert [call for call, _, _ in one.calls] == ["set_many_while"]


def test_a_record_that_says_so_already_is_swapped_for_nothing(one: Client) -> None:
    one.main.stage("a", tagged(1))
    before = one.main._at.read().branch
    update(one.main._at, with_etags)
    assert replace(one.main._at.read().branch, write_ids=()) == replace(before, write_ids=())
