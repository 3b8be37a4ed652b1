"""Imports over REST: many sources in one commit, once, whatever dies; and nothing of one that was cancelled."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.blob import open_store
from strandline.branch import transactions
from strandline.errors import StoreUnavailable, StrandlineError
from strandline.iam.records import Statement
from strandline.kv.store import PredicateFailed
from strandline.lake import open_lake
from strandline.repository.branch import Branch
from strandline.repository.commits import importing
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.importing import ImportSource
from strandline.server import imports
from strandline.server.imports import ImportRecord, Imports
from strandline.server.refusals import Refusal
from strandline.settings import find_settings
from strandline.testing.clock import ManualClock
from tests.harness.serving import serving
from tests.server.inside import BASE, Inside, body_of, inside, run

MAIN = f"{BASE}/repositories/repo/branches/main"
SOURCE = "s3://lake/for-imports"
OBJECTS = {f"a/{n}.txt": b"%d" % n for n in range(5)} | {"b/one file%20.txt": b"b"}


@pytest.fixture(scope="module")
def bucket(s3_endpoint: str) -> str:
    """The options of a store with `OBJECTS` at `SOURCE`."""
    options = f"?endpoint={s3_endpoint}&region=us-east-1"
    store = open_store(SOURCE + options)
    for key, data in OBJECTS.items():
        store.put(key, data)
    return options


@pytest.fixture
def server(bucket: str, tmp_path: Path) -> Iterator[Inside]:
    lake = strandline.open(kv=f"memory://{tmp_path.name}", blob=f"s3://lake/{tmp_path.name}{bucket}", create=True)
    with inside(lake=lake) as made:
        made.lake.create_repository("repo").branch("main")
        yield made


async def ask(server: Inside, method: str, query: str = "", body: Any = None, **more: Any) -> tuple[int, Any]:
    response = await server.ask(
        method, f"{MAIN}/import{query}", b"" if body is None else json.dumps(body).encode(), **more
    )
    shown = body_of(response)
    return response.status, json.loads(shown) if shown else None


async def ended(server: Inside, id: str) -> Any:
    for _ in range(600):
        status, shown = await ask(server, "GET", f"?id={id}")
        assert status == 200
        if shown["completed"] or "error" in shown:
            return shown
        time.sleep(0.02)
    raise AssertionError("It does not end.")


def prefix(path: str, destination: str) -> dict[str, str]:
    return {"type": "common_prefix", "path": path, "destination": destination}


def single(path: str, destination: str) -> dict[str, str]:
    return {"type": "object", "path": path, "destination": destination}


def branch_of(server: Inside) -> Branch:
    return server.lake.repository("repo").branch("main")


def shown_paths(branch: Branch) -> list[str]:
    return [row.path for row in branch.list()]


@pytest.mark.server
def test_many_sources_are_one_commit_that_replaces(server: Inside) -> None:
    branch = branch_of(server)
    branch.put_many({"in/old": b"goes", "in2": b"stays", "single": b"replaced"})
    branch.commit("before")

    async def test() -> None:
        paths = [prefix(f"{SOURCE}/a/", "in/"), single(f"{SOURCE}/b/one file%20.txt", "single")]
        body = {"paths": paths, "commit": {"message": "", "metadata": {"by": "me"}}}
        status, shown = await ask(server, "POST", body=body)
        assert (status, list(shown)) == (202, ["id"])
        done = await ended(server, shown["id"])
        assert done["ingested_objects"] == 6
        assert done["commit"]["message"] == "Import objects"
        assert done["commit"]["metadata"] == {"by": "me"}
        assert done["commit"]["committer"] == "admin"
        assert done["metarange_id"] == done["commit"]["meta_range_id"]
        assert done["update_time"].endswith("Z")
        assert shown_paths(branch) == [*(f"in/{n}.txt" for n in range(5)), "in2", "single"]
        assert branch.read("in/3.txt") == b"3"
        assert branch.read("single") == b"b"
        assert branch.commit_id == done["commit"]["id"]
        assert (await ask(server, "DELETE", f"?id={shown['id']}"))[0] == 409
        # the same once more changes nothing, and says so
        status, shown = await ask(server, "POST", body=body)
        again = await ended(server, shown["id"])
        assert again["completed"]
        assert "commit" not in again
        assert not list(branch.uncommitted())

    run(test())


@pytest.mark.server
def test_what_cannot_be_imported_is_refused(server: Inside) -> None:
    branch = branch_of(server)
    branch.put("x", b"1")
    branch.commit("first")
    own = server.services.namespace_shown("repo")

    async def test() -> None:
        good = prefix(f"{SOURCE}/a/", "in/")
        for paths in (
            [],
            [prefix("/etc", "in/")],
            [prefix("file:///etc", "in/")],
            [prefix("local://x/", "in/")],
            [prefix("http://127.0.0.1/x", "in/")],
            [prefix(f"{SOURCE}/a/?endpoint=http://127.0.0.1:1", "in/")],
            [prefix("s3://user:secret@lake/a", "in/")],
            [prefix("s3:///secret/", "in/")],
            [prefix("s3://[lake/a/", "in/")],
            [prefix("s3://\u2100/a/", "in/")],
            [prefix("s3://lake//for-imports/a/", "in/")],
            [prefix("s3://lake/for-\timports/a/", "in/")],
            [prefix("s3://lake/x/../for-imports/a/", "in/")],
            [single("s3://lake", "x")],
            [prefix(own, "in/")],
            [prefix(f"{own}/data/", "in/")],
            [single(f"{own}/data/x", "in/x")],
            [single(f"{SOURCE}/a/", "x")],
            [single(f"{SOURCE}/a/1.txt", "")],
            [single(f"{SOURCE}/a/1.txt", "a\0")],
            [good] * 1_001,
            [{**good, "type": "folder"}],
        ):
            status, shown = await ask(server, "POST", body={"paths": paths})
            assert status == 400, (paths[:1], status, shown)
        for commit in ({"message": "x" * 100_000}, {"metadata": {"a": "x" * 100_000}}):
            assert (await ask(server, "POST", body={"paths": [good], "commit": commit}))[0] == 400
        for paths in (
            [prefix(f"{SOURCE}/nothing/", "in/")],
            [single(f"{SOURCE}/a/9.txt", "x")],
            [prefix(f"{SOURCE}/a", "in/"), single(f"{SOURCE}/a/1.txt", "in/1.txt")],
        ):
            status, shown = await ask(server, "POST", body={"paths": paths})
            assert status == 202
            done = await ended(server, shown["id"])
            assert not done["completed"]
            assert done["error"]["message"], paths
        branch.put("in/0.txt", b"staged")
        status, shown = await ask(server, "POST", body={"paths": [good]})
        assert "uncommitted changes in the way" in (await ended(server, shown["id"]))["error"]["message"]
        for id in ("x", "", "0" * 20, "../../x", "é"):
            for method in ("GET", "DELETE"):
                assert (await ask(server, method, f"?id={id.encode().hex() if id == 'é' else id}"))[0] == 404
        assert (await ask(server, "GET"))[0] == 400

        assert next(iter(branch.log())).message == "first"
        server.lake.repository("repo").protect("main")
        assert (await ask(server, "POST", body={"paths": [good]}))[0] == 403

    run(test())


@pytest.mark.server
def test_every_place_of_an_import_is_judged(server: Inside) -> None:
    """A source, a destination, and what a destination's replacement deletes."""

    async def test() -> None:
        allowed = {
            "fs:CreateCommit": "arn:lakefs:fs:::repository/repo/branch/main",
            "fs:ImportFromStorage": "arn:lakefs:fs:::namespace/s3://lake/for-imports/*",
            "fs:WriteObject": "arn:lakefs:fs:::repository/repo/object/in/*",
            "fs:DeleteObject": "arn:lakefs:fs:::repository/repo/object/in/*",
        }
        for missing in (None, *allowed):
            rows = tuple(Statement("allow", (action,), on) for action, on in allowed.items() if action != missing)
            name = f"all-but-{(missing or 'none').partition(':')[2] or 'none'}"
            server.directory.create_policy(name, rows)
            login = server.user(name, name)
            body = {"paths": [prefix(f"{SOURCE}/a/", "in/")]}
            status, shown = await ask(server, "POST", body=body, login=login)
            assert status == (202 if missing is None else 401), (missing, shown)
            if missing is None:
                await ended(server, shown["id"])
                for path, destination in ((f"{SOURCE}/a/", "other/"), ("s3://lake/x/", "in/"), (f"{SOURCE}/a/", "")):
                    other = {"paths": [prefix(path, destination)]}
                    assert (await ask(server, "POST", body=other, login=login))[0] == 401
                assert (await ask(server, "GET", f"?id={shown['id']}", login=login))[0] == 401
                assert (await ask(server, "DELETE", f"?id={shown['id']}", login=login))[0] == 401

    run(test())


@pytest.mark.server
def test_a_denial_holds_however_a_place_is_written(server: Inside) -> None:
    """Of a part of a source, of a part of a destination, and of a source in another spelling."""

    async def test() -> None:
        secret = "arn:lakefs:fs:::namespace/s3://lake/for-imports/b/*"
        kept = "arn:lakefs:fs:::repository/repo/object/in/keep/*"
        rows = (
            Statement("allow", ("fs:*",), "*"),
            Statement("deny", ("fs:ImportFromStorage",), secret),
            Statement("deny", ("fs:DeleteObject",), kept),
        )
        server.directory.create_policy("some", rows)
        login = server.user("some", "some")
        for path, destination, status in (
            (f"{SOURCE}/b/", "out/", 401),
            (f"{SOURCE}/b", "out/", 401),
            (f"{SOURCE}/", "out/", 401),
            ("s3://lake", "out/", 401),
            (f"{SOURCE}//b/", "out/", 400),
            (f"{SOURCE}/a/", "in/", 401),
            (f"{SOURCE}/a/", "", 401),
            (f"{SOURCE}/a/", "in/keep/x/", 401),
            (f"{SOURCE}/a/", "in/other/", 202),
        ):
            body = {"paths": [prefix(path, destination)]}
            assert (await ask(server, "POST", body=body, login=login))[0] == status, (path, destination)
        one = {"path": "linked", "checksum": "x", "size_bytes": 1}
        for address, status in (
            (f"{SOURCE}/a/x", 200),
            (f"{SOURCE}/b/x", 401),
            (f"{SOURCE}/%62/x", 401),
            (f"{SOURCE}/a/%2e%2e/b/x", 400),
            (f"{SOURCE}//b/x", 400),
        ):
            given = json.dumps({"objects": [{**one, "physical_address": address}]}).encode()
            response = await server.ask("POST", f"{MAIN}/objects/stage", given, login=login)
            assert response.status == status, (address, body_of(response))

    run(test())


# --- what dies, and what is cancelled ---------------------------------------------------------------------------------


held_now: list[Held] = []


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """A test that fails leaves no import behind that waits."""
    yield
    while held_now:
        held_now.pop().gate.set()


class Held:
    """Holds imports at a step until they are let go."""

    def __init__(self, patch: pytest.MonkeyPatch, step: str) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        held_now.append(self)
        real: Callable[..., Any] = getattr(importing, step) if step == "_references" else None  # type: ignore[assignment]
        publish = transactions.publish

        def wait() -> None:
            self.reached.set()
            assert self.gate.wait(60)

        if step == "_references":

            def references(*given: Any) -> Any:
                wait()
                return real(*given)

            patch.setattr(importing, "_references", references)
        elif step == "before publishing":

            def before(*given: Any) -> Any:
                wait()
                return publish(*given)

            patch.setattr(transactions, "publish", before)
        else:

            def after(*given: Any) -> Any:
                done = publish(*given)
                wait()
                return done

            patch.setattr(transactions, "publish", after)


STEPS = ["_references", "before publishing", "after publishing"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def branch(tmp_path: Path, clock: ManualClock) -> Iterator[Branch]:
    """A branch, and beside its lake a folder `source` with two files."""
    (tmp_path / "source").mkdir()
    for name in "ab":
        (tmp_path / "source" / name).write_text(name)
    with open_lake(find_settings(tmp_path / "lake", synced=False), create=True, clock=clock) as lake:
        yield lake.repository("repo", create=True).branch("main")


@pytest.fixture
def sources(branch: Branch, tmp_path: Path) -> list[ImportSource]:
    return [ImportSource(str(tmp_path / "source"), "in/")]


def begin(worker: Imports, branch: Branch, sources: list[ImportSource]) -> str:
    return worker.begin(branch, sources, make_draft(branch._core, "an import", committer="me")).id


def wait_for(worker: Imports, branch: Branch, id: str) -> ImportRecord:
    for _ in range(1_500):
        found = worker.get(branch, id)
        if found.state != "running":
            return found
        time.sleep(0.01)
    raise AssertionError("It does not end.")


def imports_in(branch: Branch) -> int:
    return sum(commit.message == "an import" for commit in branch.log())


@pytest.mark.parametrize("step", STEPS)
def test_a_cancelled_import_changes_nothing(
    branch: Branch, sources: list[ImportSource], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step: what was answered with success never happens, and what happened is not called cancelled."""
    held = Held(monkeypatch, step)
    worker = Imports(branch._core.stores.kv)
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)
    if step == "after publishing":
        with pytest.raises(Refusal, match="nothing to cancel") as refused:
            worker.cancel(branch, id)
        assert refused.value.status == 409
    else:
        worker.cancel(branch, id)
        assert worker.get(branch, id).state == "cancelled"
        with pytest.raises(Refusal):
            worker.cancel(branch, id)
    held.gate.set()
    worker.close()
    is_there = step == "after publishing"
    assert worker.get(branch, id).state == ("completed" if is_there else "cancelled")
    assert imports_in(branch) == is_there
    assert not open_transactions(branch)


def test_a_cancellation_before_it_began_holds(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "_references")
    worker = Imports(branch._core.stores.kv)
    others = [begin(worker, branch, sources) for _ in range(imports.THREADS)]
    assert held.reached.wait(60)
    waiting = begin(worker, branch, sources)
    worker.cancel(branch, waiting)
    held.gate.set()
    for id in others:
        assert wait_for(worker, branch, id).state == "completed"
    worker.close()
    assert worker.get(branch, waiting).state == "cancelled"
    assert imports_in(branch) == 1  # of two that found the same


@pytest.mark.parametrize("step", STEPS)
def test_an_import_whose_worker_died_ends_once(
    branch: Branch, sources: list[ImportSource], step: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was declared dead comes back: at each step it is published once, and both give one answer."""
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch, step)
        dead = Imports(branch._core.stores.kv)
        id = begin(dead, branch, sources)
        assert held.reached.wait(60)
    living = Imports(branch._core.stores.kv)
    assert living.get(branch, id).state == "running"
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    found = wait_for(living, branch, id)
    assert (found.state, found.objects > 0 or step == "after publishing") == ("completed", True)
    assert found.commit
    held.gate.set()
    dead.close()
    assert dead.get(branch, id) == found
    assert imports_in(branch) == 1
    assert branch.commit_id == found.commit
    living.close()


def test_an_import_that_an_operator_aborts_or_that_meets_a_fault_ends(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Imports(branch._core.stores.kv)
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch, "_references")
        aborted = begin(worker, branch, sources)
        assert held.reached.wait(60)
        branch.transactions.abort(worker.get(branch, aborted).transaction)
        held.gate.set()
        assert "aborted from elsewhere" in wait_for(worker, branch, aborted).error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "_references", lambda *_: 1 / 0)
        assert wait_for(worker, branch, begin(worker, branch, sources)).error == "The server failed; its log has more."
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    assert worker.get(branch, aborted).state == "failed"
    worker.close()
    assert imports_in(branch) == 0


def open_transactions(branch: Branch) -> list[Any]:
    return [one for one in branch.transactions if one.state == "open"]


def test_a_cancellation_right_after_the_beginning_leaves_nothing_open(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, begin_one = Imports(branch._core.stores.kv), transactions.begin
    cancelled = threading.Event()

    def begun(*given: Any) -> Any:
        record = begin_one(*given)
        assert cancelled.wait(60)
        return record

    monkeypatch.setattr(transactions, "begin", begun)
    id = begin(worker, branch, sources)
    worker.cancel(branch, id)
    cancelled.set()
    worker.close()
    assert worker.get(branch, id).state == "cancelled"
    assert (open_transactions(branch), imports_in(branch)) == ([], 0)


def test_a_run_that_meets_its_cancellation_first_is_cancelled(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "before publishing")
    worker, abort = Imports(branch._core.stores.kv), importing.abort_import
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)

    def abort_and_wait(*given: Any) -> None:
        abort(*given)
        held.gate.set()
        assert wait_for(worker, branch, id).state == "failed"

    monkeypatch.setattr(imports, "abort_import", abort_and_wait)
    worker.cancel(branch, id)
    worker.close()
    assert (worker.get(branch, id).state, imports_in(branch)) == ("cancelled", 0)


def test_an_import_is_taken_over_once(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a worker is asked for it, and by however many at once."""
    held = Held(monkeypatch, "_references")
    dead, living = Imports(branch._core.stores.kv), Imports(branch._core.stores.kv)
    id = begin(dead, branch, sources)
    assert held.reached.wait(60)
    living.get(branch, id)
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    with ThreadPoolExecutor(8) as askers:
        list(askers.map(lambda _: living.get(branch, id), range(16)))
    for _ in range(3):
        clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
        assert living.get(branch, id).state == "running"
    held.gate.set()
    assert wait_for(living, branch, id).state == "completed"
    living.close()
    dead.close()
    assert len(list(branch.transactions)) == 2
    assert imports_in(branch) == 1


def test_two_workers_that_are_asked_in_turn_do_not_take_it_from_each_other(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its worker says that it works on it, whatever the clock of the other one says."""
    real = importing._references

    def slow(source: Any, tell: Any) -> Any:
        assert known.wait(60)
        for found in range(20):
            clock.advance_s(20)
            tell(found)
            asked.append(other.get(branch, ids[0]).transaction)
        return real(source, tell)

    monkeypatch.setattr(importing, "_references", slow)
    worker, other = Imports(branch._core.stores.kv), Imports(branch._core.stores.kv)
    asked: list[int] = []
    taken: list[str] = []

    def take(at: Branch, id: str, write: Any) -> ImportRecord:
        taken.append(id)
        return worker.read(at, id)

    monkeypatch.setattr(other, "_submit", take)
    known, ids = threading.Event(), list[str]()
    ids.append(begin(worker, branch, sources))
    known.set()
    assert wait_for(worker, branch, ids[0]).state == "completed"
    worker.close()
    other.close()
    assert len(asked) == 20
    assert set(asked) == {one.id for one in branch.transactions}
    assert taken == []


def test_a_heartbeat_that_is_missed_ends_nothing(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swap = importing._references, Imports.swap
    worker = Imports(branch._core.stores.kv)
    answers = ["no", "unknown", "unknown"]

    def failing(self: Imports, at: Branch, before: ImportRecord, after: ImportRecord) -> ImportRecord:
        if after.objects != 7 or not answers:
            return swap(self, at, before, after)
        happened: Any = answers.pop(0)
        if len(answers) == 1:
            swap(self, at, before, after)
        raise StoreUnavailable("No answer came.", happened=happened)

    def telling(source: Any, tell: Any) -> Any:
        for _ in range(4):
            clock.advance_s(5)
            tell(7)
        return real(source, tell)

    monkeypatch.setattr(importing, "_references", telling)
    monkeypatch.setattr(Imports, "swap", failing)
    found = wait_for(worker, branch, begin(worker, branch, sources))
    worker.close()
    assert (found.state, answers, imports_in(branch)) == ("completed", [], 1)


def test_nothing_new_is_no_commit_of_others(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the answer was lost, and the token finds the head that others made."""
    branch.import_objects(sources, message="before", replace=True)
    publish = transactions.publish
    lost: list[Any] = []

    def once(at: Any, what: Any) -> Any:
        done = publish(at, what)
        if what.is_empty and not lost:
            lost.append(done)
            raise StoreUnavailable("No answer came.", happened="unknown")
        return done

    monkeypatch.setattr(transactions, "publish", once)
    worker = Imports(branch._core.stores.kv)
    found = wait_for(worker, branch, begin(worker, branch, sources))
    worker.close()
    assert (found.state, found.commit, len(lost)) == ("completed", "", 1)


def test_an_import_that_nobody_ended_is_not_forgotten(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "_references")
    worker = Imports(branch._core.stores.kv)
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)
    clock.advance_s(3 * 86_400)
    assert worker.sweep(clock.now_us()) == 0
    worker.cancel(branch, id)
    held.gate.set()
    worker.close()
    assert open_transactions(branch) == []


def test_a_lost_answer_is_found_by_the_token(
    branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = transactions.publish
    lost: list[Any] = []

    def once(*given: Any) -> Any:
        done = publish(*given)
        if not lost:
            lost.append(done)
            raise StoreUnavailable("No answer came.", happened="unknown")
        return done

    monkeypatch.setattr(transactions, "publish", once)
    worker = Imports(branch._core.stores.kv)
    found = wait_for(worker, branch, begin(worker, branch, sources))
    worker.close()
    assert (found.state, found.commit, imports_in(branch)) == ("completed", lost[0].id, 1)


def test_a_worker_that_ends_leaves_its_imports(
    branch: Branch, sources: list[ImportSource], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch, "_references")
        ending = Imports(branch._core.stores.kv)
        id = begin(ending, branch, sources)
        assert held.reached.wait(60)
        ending.is_ending = True
        held.gate.set()
        ending.close()
    assert (ending.get(branch, id).state, imports_in(branch)) == ("running", 0)
    with pytest.raises(StrandlineError):
        begin(ending, branch, sources)
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    after = Imports(branch._core.stores.kv)
    assert after.get(branch, id).state == "running"  # it has to see for itself that nobody works on it
    clock.advance_s(imports.TAKEN_OVER_AFTER_US / 1_000_000 + 1)
    assert wait_for(after, branch, id).state == "completed"
    after.close()
    clock.advance_s(2 * 86_400)
    assert after.sweep(clock.now_us()) == 1
    with pytest.raises(Refusal):
        after.get(branch, id)


def test_others_commit_meanwhile(branch: Branch, sources: list[ImportSource], monkeypatch: pytest.MonkeyPatch) -> None:
    """The import is made anew on what the head is by then: the rest of it stays, its destination is replaced."""
    held = Held(monkeypatch, "before publishing")
    worker = Imports(branch._core.stores.kv)
    id = begin(worker, branch, sources)
    assert held.reached.wait(60)
    branch.put_many({"elsewhere": b"1", "in/c": b"2"})
    branch.commit("meanwhile")
    held.gate.set()
    assert wait_for(worker, branch, id).state == "completed"
    worker.close()
    assert shown_paths(branch) == ["elsewhere", "in/a", "in/b"]


def test_a_record_is_swapped_only_by_its_run(branch: Branch, sources: list[ImportSource]) -> None:
    worker = Imports(branch._core.stores.kv)
    done = wait_for(worker, branch, begin(worker, branch, sources))
    with pytest.raises(PredicateFailed):
        worker.swap(
            branch, ImportRecord(**{**{f: getattr(done, f) for f in done.__struct_fields__}, "error": "x"}), done
        )
    worker.close()


@pytest.mark.server
def test_lakefs_imports(bucket: str, tmp_path: Path) -> None:
    """lakeFS's own package, against a server as a process."""
    lakefs: Any = importlib.import_module("lakefs")
    client_of: Any = importlib.import_module("lakefs.client").Client
    kv, blob = f"sqlite://{tmp_path}/meta.db", f"s3://lake/{tmp_path.name}{bucket}"
    strandline.open(kv=kv, blob=blob, create=True).close()
    secret = {"STRANDLINE_SECRET_KEY": "a long secret key for tests"}
    with serving(tmp_path, "--kv", kv, "--blob", blob, environment=secret) as at:
        client = client_of(host=at.address, username=at.key, password=at.secret)
        repository = lakefs.Repository("repo", client=client).create(
            storage_namespace=f"s3://lake/{tmp_path.name}/repo"
        )
        branch = repository.branch("main")
        manager = branch.import_data(commit_message="from the bucket", metadata={"a": "b"})
        manager.prefix(f"{SOURCE}/a/", "in/").object(f"{SOURCE}/b/one file%20.txt", "one")
        done = manager.run(poll_interval=timedelta(milliseconds=50))
        assert (done.completed, done.ingested_objects, done.commit.message) == (True, 6, "from the bucket")
        assert branch.object("in/4.txt").reader(mode="rb").read() == b"4"
        assert branch.object("one").reader(mode="rb").read() == b"b"
        with pytest.raises(lakefs.exceptions.ConflictException):
            manager.cancel()
        nothing = branch.import_data().prefix(f"{SOURCE}/nothing/", "x/")
        with pytest.raises(lakefs.exceptions.LakeFSException, match="no object"):
            nothing.run(poll_interval=timedelta(milliseconds=50))
