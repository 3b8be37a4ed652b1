"""Users, groups, policies and keys: what is tied, what goes with a deletion, and every crash in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.clock import SystemClock
from strandline.errors import (
    AlreadyExists,
    InvalidName,
    InvalidSettings,
    NotAllowed,
    NotFound,
    StoreUnavailable,
    UsageError,
)
from strandline.iam.directory import CREDENTIALS_MAX, GONE, PARTITION, Directory
from strandline.iam.policy import Caller, Need, Rules, Verdict
from strandline.iam.records import Credential, Group, Policy, Statement, User
from strandline.iam.sealing import Sealer, secret_file
from strandline.kv.memory import MemoryStore
from strandline.redaction import Secret

RULE = (Statement("allow", ("fs:ReadObject",), "*"),)
SECRET = Secret("the secret key of a server in tests")


@pytest.fixture
def kv() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def directory(kv: MemoryStore) -> Directory:
    made = Directory(kv, SystemClock(), Sealer([SECRET]))
    made.set_up("admin")
    return made


def names(rows: Any) -> list[str]:
    return [row.name for row in rows]


def test_an_admin_that_lost_its_rights_gets_them_back(directory: Directory) -> None:
    directory.create_policy("nothing", (Statement("deny", ("*",), "*"),))
    directory.create_group("barred")
    directory.attach("nothing", "group", "barred")
    directory.add_member("barred", "admin")
    directory.attach("nothing", "user", "admin")
    directory.attach("nothing", "group", "Admins")
    directory.detach("AuthFullAccess", "group", "Admins")
    directory.change_policy("FSFullAccess", RULE)
    directory.remove_member("Admins", "admin")
    directory.detach("FSReadAll", "group", "Viewers")
    credential, _ = directory.bring_back_admin()
    assert credential.user == "admin"
    assert "FSReadAll" not in {one.name for one in directory.policies_of("group", "Viewers")}
    rules = Rules("admin", directory.statements_of("admin"))
    for action in ("auth:CreateUser", "fs:DeleteRepository", "ci:ReadAction", "strandline:TakeLock"):
        assert rules.judge(Need(action, "x"), Caller("admin", "", "")) is Verdict.ALLOWED, action
    fresh = Directory(MemoryStore(), SystemClock(), Sealer([SECRET]))
    with pytest.raises(NotFound):
        fresh.bring_back_admin()


def test_setup_is_done_once(kv: MemoryStore) -> None:
    directory = Directory(kv, SystemClock(), Sealer([SECRET]))
    assert directory.admin() is None
    with pytest.raises(UsageError):
        directory.set_up("admin", ("x", Secret("short")))
    credential, secret = directory.set_up("admin", ("MYKEY", Secret("a secret of my own")))
    assert (credential.id, secret.reveal()) == ("MYKEY", "a secret of my own")
    with pytest.raises(AlreadyExists):
        directory.set_up("other")
    assert directory.admin() == "admin"
    assert names(directory.groups_of("admin")) == ["Admins"]
    assert [one.effect for one in directory.statements_of("admin")] == ["allow"] * 3


def test_ties_and_pages(directory: Directory) -> None:
    for name in ("ann", "bob", "cat"):
        directory.create_user(name, friendly_name=name.title())
    directory.create_group("crew")
    directory.create_policy("reads", RULE)
    for name in ("bob", "ann", "ann"):
        directory.add_member("crew", name)
    directory.attach("reads", "group", "crew")
    directory.attach("reads", "user", "cat")
    assert names(directory.members("crew")) == ["ann", "bob"]
    assert names(directory.every(User, after="ann", amount=2)) == ["bob", "cat"]
    assert names(directory.every(User, prefix="c")) == ["cat"]
    assert names(directory.effective_policies("ann")) == ["reads"]
    assert directory.statements_of("cat") == list(RULE)
    directory.remove_member("crew", "ann")
    directory.detach("reads", "user", "cat")
    assert directory.statements_of("ann") == directory.statements_of("cat") == []
    changed = directory.change_policy("reads", (Statement("deny", ("fs:*",), "*"),))
    assert directory.statements_of("bob") == list(changed.statements)


def test_deleting_takes_all_along(directory: Directory, kv: MemoryStore) -> None:
    before = dict(kv.scan(PARTITION))
    directory.create_user("ann")
    directory.create_group("crew")
    directory.create_policy("reads", RULE)
    directory.add_member("crew", "ann")
    directory.attach("reads", "user", "ann")
    directory.attach("reads", "group", "crew")
    credential, _ = directory.create_credential("ann")
    directory.delete_user("ann")
    assert not [key for key, value in kv.scan(PARTITION) if b"ann" in key and (key, value) != (b"user/ann", GONE)]
    directory.delete_group("crew")
    assert not [key for key, value in kv.scan(PARTITION) if b"crew" in key and (key, value) != (b"group/crew", GONE)]
    directory.delete_policy("reads")
    assert directory.credential(credential.id) is None
    after = dict(kv.scan(PARTITION))
    assert {after.pop(key) for key in (b"user/ann", b"group/crew", b"policy/reads")} == {GONE}
    assert before.pop(b"epoch") != after.pop(b"epoch")
    assert after == before
    for call in (directory.delete_user, directory.delete_group, directory.delete_policy):
        with pytest.raises(NotFound):
            call("ann")


def test_what_cannot_be_deleted(directory: Directory) -> None:
    for call, name in (
        (directory.delete_user, "admin"),
        (directory.delete_group, "Admins"),
        (directory.delete_policy, "FSFullAccess"),
    ):
        with pytest.raises(NotAllowed):
            call(name)


class Failing(MemoryStore):
    """A store whose process dies at a call."""

    left = 1 << 60

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("The process died.", happened="no")

    def set(self, *given: Any) -> None:
        self._count()
        super().set(*given)

    def set_if(self, *given: Any) -> None:
        self._count()
        super().set_if(*given)

    def delete(self, *given: Any) -> None:
        self._count()
        super().delete(*given)


def dying(steps: Callable[[Directory], Any], check: Callable[[Directory], None]) -> None:
    """Die at each write of some steps; check what is left, then do the steps again."""
    for at in range(100):
        kv = Failing()
        directory = Directory(kv, SystemClock(), Sealer([SECRET]))
        directory.set_up("admin")
        directory.create_user("ann")
        directory.create_group("crew")
        directory.create_policy("reads", RULE)
        directory.add_member("crew", "ann")
        directory.attach("reads", "group", "crew")
        directory.attach("reads", "user", "ann")
        directory.create_credential("ann", ("ANNSKEY", Secret("a secret of my own")))
        kv.left = at
        try:
            steps(directory)
        except StoreUnavailable:
            kv.left = 1 << 60
            check(directory)
            with suppress(NotFound):  # it had come as far as that
                steps(directory)
            check(directory)
            continue
        assert at > 3
        check(directory)
        return
    raise AssertionError("the steps never ended")


def test_a_deletion_that_died_goes_on() -> None:
    def check_user(directory: Directory) -> None:
        is_there = "ann" in names(directory.every(User))
        if not is_there:
            assert names(directory.members("crew")) == []
            with pytest.raises(NotFound):
                directory.add_member("crew", "ann")

    dying(lambda directory: directory.delete_user("ann"), check_user)

    def check_policy(directory: Directory) -> None:
        if "reads" not in names(directory.every(Policy)):
            assert directory.statements_of("ann") == []

    dying(lambda directory: directory.delete_policy("reads"), check_policy)

    def check_group(directory: Directory) -> None:
        if "crew" not in names(directory.every(Group)):
            assert names(directory.groups_of("ann")) == []

    dying(lambda directory: directory.delete_group("crew"), check_group)


def test_a_tie_to_what_is_leaving_is_taken_back(
    directory: Directory, kv: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create_user("ann")
    directory.create_group("crew")
    first = Directory._changed

    def meanwhile(self: Directory) -> None:
        monkeypatch.setattr(Directory, "_changed", first)
        directory.delete_user("ann")
        first(self)

    monkeypatch.setattr(Directory, "_changed", meanwhile)
    with pytest.raises(NotFound):
        directory.add_member("crew", "ann")
    assert not [key for key, value in kv.scan(PARTITION) if b"ann" in key and (key, value) != (b"user/ann", GONE)]


def test_every_change_is_another_epoch(directory: Directory) -> None:
    directory.create_user("ann")
    directory.create_policy("reads", RULE)
    seen = {directory.epoch()}
    changes: list[Callable[[], Any]] = [
        lambda: directory.add_member("Viewers", "ann"),
        lambda: directory.remove_member("Viewers", "ann"),
        lambda: directory.attach("reads", "user", "ann"),
        lambda: directory.change_policy("reads", RULE),
        lambda: directory.detach("reads", "user", "ann"),
        lambda: directory.create_credential("ann", ("KEYOFANN", Secret("a secret of my own"))),
        lambda: directory.delete_credential("ann", "KEYOFANN"),
        lambda: directory.end_sessions("ann"),
        lambda: directory.delete_policy("reads"),
        lambda: directory.delete_user("ann"),
    ]
    for change in changes:
        change()
        assert directory.epoch() not in seen
        seen.add(directory.epoch())


def test_secrets_are_sealed(directory: Directory, kv: MemoryStore) -> None:
    directory.create_user("ann")
    credential, secret = directory.create_credential("ann")
    assert secret.reveal().encode() not in b"".join(value for _, value in kv.scan(PARTITION))
    assert directory.secret_of(credential) == secret
    import msgspec

    stolen = msgspec.structs.replace(credential, user="bob")
    with pytest.raises(Exception, match="changed"):
        directory.secret_of(stolen)
    other = Directory(kv, SystemClock(), Sealer([Secret("another secret key of a server")]))
    with pytest.raises(InvalidSettings, match="secret key"):
        other.secret_of(credential)
    rotated = Directory(kv, SystemClock(), Sealer([Secret("another secret key of a server"), SECRET]))
    assert rotated.secret_of(credential) == secret
    newer, _ = rotated.create_credential("ann")
    assert newer.sealed_with != credential.sealed_with


def test_keys_have_a_limit(directory: Directory) -> None:
    directory.create_user("ann")
    for _ in range(CREDENTIALS_MAX):
        directory.create_credential("ann")
    with pytest.raises(UsageError):
        directory.create_credential("ann")
    with pytest.raises(AlreadyExists):
        held: Credential = next(directory.credentials("ann"))
        directory.delete_credential("ann", next(directory.credentials("ann", after=held.id)).id)
        directory.create_credential("ann", (held.id, Secret("a secret of my own")))
    assert directory.credential(held.id) == held
    with pytest.raises(NotFound):
        directory.delete_credential("admin", held.id)


@pytest.mark.parametrize("name", ["", "a/b", "a%b", " a", "a\n", "\x00", "ü" * 64, "\udc80", 7])
def test_names_that_are_refused(directory: Directory, name: Any) -> None:
    for call in (directory.create_user, directory.create_group):
        with pytest.raises(InvalidName):
            call(name)
    with pytest.raises(InvalidName):
        directory.create_policy(name, RULE)


def test_odd_names_are_kept(directory: Directory) -> None:
    for name in ("a b", "ünïcödé", "a@b.c", "x" * 127, "{user}", "*"):
        directory.create_user(name)
        directory.add_member("Viewers", name)
        assert directory.get(User, name).name == name
    assert len(names(directory.members("Viewers"))) == 6


def test_the_secret_of_an_embedded_lake(tmp_path: Path) -> None:
    place = tmp_path / "key"
    secret = secret_file(place)
    assert secret_file(place) == secret
    assert place.stat().st_mode & 0o777 == 0o600
    place.chmod(0o644)
    with pytest.raises(InvalidSettings, match="chmod 600"):
        secret_file(place)
    for short in ([], [Secret("short")]):
        with pytest.raises(InvalidSettings):
            Sealer(short)
    assert "the secret" not in repr(SECRET)


def test_a_slow_deletion_leaves_whoever_has_the_name_since_then(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create_user("ann")
    first = Directory._gone

    def meanwhile(self: Directory, leaving: Any) -> None:
        monkeypatch.setattr(Directory, "_gone", first)
        directory.delete_user("ann")  # goes on with the same deletion, and ends it
        directory.create_user("ann")
        directory.add_member("Viewers", "ann")
        first(self, leaving)

    monkeypatch.setattr(Directory, "_gone", meanwhile)
    directory.delete_user("ann")
    assert [group.name for group in directory.groups_of("ann")] == ["Viewers"]
    with pytest.raises(AlreadyExists):
        directory.create_user("ann")


def test_secret_keys_are_exchanged(kv: MemoryStore) -> None:
    old, new = Secret("the old secret key of the server"), Secret("the new secret key of the server")
    before = Directory(kv, SystemClock(), Sealer([old]))
    credential, secret = before.set_up("admin")
    both = Directory(kv, SystemClock(), Sealer([new, old]))
    assert both.reseal() == 1
    assert both.reseal() == 0
    after = Directory(kv, SystemClock(), Sealer([new]))
    found = after.credential(credential.id)
    assert found is not None
    assert after.secret_of(found).reveal() == secret.reveal()
    after.check_secrets()
    with pytest.raises(InvalidSettings):
        before.check_secrets()
