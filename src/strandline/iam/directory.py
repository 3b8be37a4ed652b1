"""Users, groups, policies and access keys in a key-value store, and what ties them together.

Every tie is written under both of its ends, as an index. A deletion marks its entity as leaving, then removes its ties,
then the entity itself. A call that ties two entities writes the tie, reads both again, and takes the tie back if one is
leaving; and readers ignore ties whose ends are missing or leaving. So each crash point is safe, and a repetition goes
on.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from strandline.clock import Clock
from strandline.envelope import decode, encode
from strandline.errors import AlreadyExists, InvalidSettings, NotAllowed, NotFound, UsageError
from strandline.iam import fixed
from strandline.iam.policy import check_statements
from strandline.iam.records import Credential, Group, Policy, Statement, User, check_name
from strandline.iam.sealing import Sealer
from strandline.ids import keys_behind, new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store, page_keys_of
from strandline.redaction import Secret

PARTITION = b"iam"
EPOCH = b"epoch"
SETUP = b"setup"
KEY_ID_CHARS = 20
KEY_ID_PREFIX = "AKIA"
SECRET_BYTES = 30
CREDENTIALS_MAX = 20
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
ATTEMPTS = 16
FAILURE_PLACES = 4_096
GONE = b""
"""What the key of a deleted entity holds: deleting the key itself could take another one of the name away."""

Entity = TypeVar("Entity", User, Group, Policy)
Holder = Literal["user", "group"]
KINDS: dict[type, str] = {User: "user", Group: "group", Policy: "policy"}


class _Leaving(NamedTuple):
    """What a deletion has marked: its key, and the record with the mark."""

    key: bytes
    raw: bytes


class SetupRecord(msgspec.Struct, frozen=True):
    """Says that the first admin was made.

    Attributes:
        admin: its name.
    """

    admin: str
    at: int


class Failures(msgspec.Struct, frozen=True):
    """How many wrong secrets were shown, as of a moment in microseconds since 1970 UTC."""

    level: float
    at: int


def _place_of(name: str) -> bytes:
    place = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") % FAILURE_PLACES
    return b"failure/%d" % place


def first_admin(kv: Store) -> str | None:
    """The name of the first admin; None if there is none yet."""
    raw = kv.get(PARTITION, SETUP)
    return None if raw is None else str(decode(SetupRecord, raw, "the setup").admin)


class Directory:
    """Safe to share between threads.

    Args:
        sealer: encrypts the secrets of access keys.
    """

    def __init__(self, kv: Store, clock: Clock, sealer: Sealer) -> None:
        self._kv = kv
        self._clock = clock
        self._sealer = sealer

    # --- the epoch ----------------------------------------------------------------------------------------------------

    def epoch(self) -> bytes:
        """A value that is another one after every change of anything here; what was decided before is void then."""
        return self._kv.get(PARTITION, EPOCH) or b""

    def _changed(self) -> None:
        # a value that was never there before needs no swap: of two that change something at once both are seen
        self._kv.set(PARTITION, EPOCH, new_id().encode())

    # --- failures of logins -------------------------------------------------------------------------------------------

    def failures(self, name: str, regained_each_s: float) -> float:
        """How many wrong secrets all workers have seen for a name lately: one is forgotten every so many seconds.

        Names share some thousand places, so that strangers cannot fill the store; two that meet in one count together.
        """
        return self._failures(name, regained_each_s)[1]

    def count_failure(self, name: str, regained_each_s: float) -> None:
        """Count a wrong secret for a name; of several at one instant one may be left out."""
        raw, level = self._failures(name, regained_each_s)
        record = encode(Failures(level + 1, self._clock.now_us()))
        with suppress(PredicateFailed):
            self._kv.set_if(PARTITION, _place_of(name), record, ABSENT if raw is None else raw)

    def _failures(self, name: str, regained_each_s: float) -> tuple[bytes | None, float]:
        raw = self._kv.get(PARTITION, _place_of(name))
        if raw is None:
            return None, 0.0
        found: Failures = decode(Failures, raw, "failures of logins")
        passed_s = max(0, self._clock.now_us() - found.at) / 1_000_000
        return raw, max(0.0, found.level - passed_s / regained_each_s)

    # --- setup --------------------------------------------------------------------------------------------------------

    def admin(self) -> str | None:
        """The name of the first admin; None if there is none yet."""
        return first_admin(self._kv)

    def set_up(self, name: str, key: tuple[str, Secret] | None = None) -> tuple[Credential, Secret]:
        """Make the fixed groups and policies, and the first admin with an access key; once.

        Args:
            key: the id and the secret of the key; by default new ones.

        Raises:
            AlreadyExists: somebody has done it.
        """
        check_name(name, "user")
        if key is not None:
            check_key(*key)
        taken = AlreadyExists(
            "This server was set up before.", next="Use the keys of its admin, or let the admin make a user for you."
        )
        if self.admin() is not None:
            raise taken
        # all of this may be there already, of a setup that died; only the record below says that it is done
        self._ensure_fixed(fixed.GROUPS)
        self._ensure(User(name=name, created_at=self._clock.now_us()))
        self.add_member(fixed.ADMINS, name)
        made = self.create_credential(name, key)
        try:
            record = encode(SetupRecord(name, self._clock.now_us()))
            self._kv.set_if(PARTITION, SETUP, record, ABSENT)
        except PredicateFailed:
            self.delete_credential(name, made[0].id)
            if self.admin() != name:
                self.remove_member(fixed.ADMINS, name)
            raise taken from None
        self._changed()
        return made

    def _ensure_fixed(self, groups: Iterable[str]) -> None:
        """Have the fixed policies there, and some of the fixed groups with theirs."""
        for policy, statements in fixed.POLICIES.items():
            self._ensure(Policy(name=policy, created_at=self._clock.now_us(), statements=statements))
        for group in groups:
            self._ensure(Group(name=group, created_at=self._clock.now_us()))
            for policy in fixed.GROUPS[group]:
                self.attach(policy, "group", group)

    def bring_back_admin(self) -> tuple[Credential, Secret]:
        """Give the first admin all rights again, and another access key: the way out for those who hold the lake.

        The group of admins gets its own policies back, as they were, and no others; the admin keeps none but by that
        group. What other groups lost stays lost.

        Raises:
            NotFound: the server was not set up.
        """
        name = self.admin()
        if name is None:
            raise NotFound("The server was not set up yet.", next="Start it without --new-admin-key.")
        self._ensure_fixed([fixed.ADMINS])
        own = fixed.GROUPS[fixed.ADMINS]
        for policy in own:
            self.change_policy(policy, fixed.POLICIES[policy])
        self._ensure(User(name=name, created_at=self._clock.now_us()))
        self.add_member(fixed.ADMINS, name)
        holders: tuple[tuple[Holder, str], ...] = (("user", name), ("group", fixed.ADMINS))
        for holder, at in holders:
            for one in list(self.policies_of(holder, at)):
                if holder == "user" or one.name not in own:
                    self.detach(one.name, holder, at)
        for group in list(self.groups_of(name)):
            if group.name != fixed.ADMINS:
                self.remove_member(group.name, name)  # it may deny something
        return self.create_credential(name)

    def reseal(self) -> int:
        """Seal all secrets with the first key, so that the others can be taken away; returns how many were sealed anew.

        Raises:
            InvalidSettings: one was sealed with a key that is not there.
        """
        count = 0
        for key, raw in list(self._scan("credential/")):
            credential = decode(Credential, raw, f"access key {_last(key)}")
            if credential.sealed_with == self._sealer.first:
                continue
            sealed, sealed_with = self._sealer.seal(self.secret_of(credential), credential.id, credential.user)
            with suppress(PredicateFailed):  # it was deleted meanwhile
                self._kv.set_if(
                    PARTITION, key, encode(replace(credential, sealed=sealed, sealed_with=sealed_with)), raw
                )
                count += 1
        return count

    def check_secrets(self) -> None:
        """Raise `InvalidSettings` if the secret keys of the server open none of the access keys."""
        error: InvalidSettings | None = None
        for key, raw in self._scan("credential/"):
            try:
                self.secret_of(decode(Credential, raw, f"access key {_last(key)}"))
                return
            except InvalidSettings as wrong:
                error = wrong
        if error is not None:
            raise error

    def _ensure(self, entity: Entity) -> None:
        try:
            self._create(entity)
        except AlreadyExists:
            pass

    # --- entities -----------------------------------------------------------------------------------------------------

    def create_user(self, name: str, friendly_name: str = "", email: str = "") -> User:
        """Make a user, which may do nothing yet; raises `AlreadyExists`."""
        user = User(
            name=check_name(name, "user"),
            created_at=self._clock.now_us(),
            friendly_name=check_text(friendly_name),
            email=check_text(email),
        )
        return self._create(user)

    def create_group(self, name: str, description: str = "") -> Group:
        """Make a group; raises `AlreadyExists`."""
        made = Group(
            name=check_name(name, "group"), created_at=self._clock.now_us(), description=check_text(description)
        )
        return self._create(made)

    def create_policy(self, name: str, statements: tuple[Statement, ...]) -> Policy:
        """Make a policy; raises `AlreadyExists`."""
        checked = check_statements(statements)
        return self._create(
            Policy(name=check_name(name, "policy"), created_at=self._clock.now_us(), statements=checked)
        )

    def _create(self, entity: Entity) -> Entity:
        kind = KINDS[type(entity)]
        for before in (ABSENT, GONE):  # a name that belonged to somebody else is free again
            try:
                self._kv.set_if(PARTITION, _key(kind, entity.name), encode(entity), before)
                return entity
            except PredicateFailed:
                continue
        raise AlreadyExists(f"There is a {kind} {entity.name!r} already.", next="Take another name.")

    def change_policy(self, name: str, statements: tuple[Statement, ...]) -> Policy:
        """Replace the statements of a policy, for all who have it."""
        checked = check_statements(statements)
        return self._change(Policy, name, lambda policy: replace(policy, statements=checked))

    def end_sessions(self, name: str) -> User:
        """Make all tokens of a user void that were issued up to now."""
        now_us = self._clock.now_us()
        return self._change(User, name, lambda user: replace(user, sessions_from=now_us))

    def _change(self, kind: type[Entity], name: str, change: Callable[[Entity], Entity]) -> Entity:
        """Swap an entity, which is not made anew if it goes meanwhile."""
        self._changed()
        for _ in range(ATTEMPTS):
            raw, found = self._read(kind, name)
            changed = change(found)
            try:
                self._kv.set_if(PARTITION, _key(KINDS[kind], name), encode(changed), raw)
            except PredicateFailed:
                continue
            self._changed()
            return changed
        raise NotAllowed(f"Others keep changing the {KINDS[kind]} {name!r}.", next="Repeat the call.")

    def get(self, kind: type[Entity], name: str) -> Entity:
        """A user, a group or a policy by its name; raises `NotFound`."""
        return self._read(kind, name)[1]

    def _read(self, kind: type[Entity], name: str) -> tuple[bytes, Entity]:
        word = KINDS[kind]
        raw = self._kv.get(PARTITION, _key(word, check_name(name, word)))
        found = decode(kind, raw, f"{word} {name!r}") if raw else None
        if raw is None or found is None or found.is_leaving:
            raise NotFound(f"There is no {word} {name!r}.", next=f"List the {word} names to see which there are.")
        return raw, found

    def every(
        self, kind: type[Entity], prefix: str = "", after: str = "", amount: int | None = None
    ) -> Iterator[Entity]:
        """Users, groups or policies by name.

        Args:
            after: begin behind this name.
            amount: the most that are returned.
        """
        word = KINDS[kind]
        found = (
            decode(kind, value, f"{word} {key.decode()!r}")
            for key, value in self._scan(f"{word}/", prefix, after, amount)
            if value
        )
        return islice((one for one in found if not one.is_leaving), amount)

    def _scan(
        self, below: str, prefix: str = "", after: str = "", amount: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        start, end = keys_behind(below + prefix, below + after if after else "")
        return self._kv.scan(PARTITION, start, end, page_keys_of(amount))

    # --- deleting -----------------------------------------------------------------------------------------------------

    def delete_user(self, name: str) -> None:
        """Delete a user with its keys; its tokens and keys are void in every worker that reads the epoch after that."""
        if name == self.admin():
            raise NotAllowed(f"{name!r} is the first admin and cannot be deleted.", next="Delete its keys instead.")
        leaving = self._leave(User, name)
        for credential in list(self.credentials(name, leaving=True)):
            self._drop_credential(credential)
        groups = [_last(key) for key, _ in self._scan(f"member-of/{name}/")]
        self._detach_all(leaving, [(f"member/{group}/{name}", f"member-of/{name}/{group}") for group in groups])
        self._detach_all(leaving, self._policies_tied("user", name))
        self._gone(leaving)

    def delete_group(self, name: str) -> None:
        """Delete a group; what its members could do by it, they cannot any more."""
        if name in fixed.GROUPS:
            raise NotAllowed(f"{name!r} is one of the fixed groups.", next="Take users out of it instead.")
        leaving = self._leave(Group, name)
        users = [_last(key) for key, _ in self._scan(f"member/{name}/")]
        self._detach_all(leaving, [(f"member/{name}/{user}", f"member-of/{user}/{name}") for user in users])
        self._detach_all(leaving, self._policies_tied("group", name))
        self._gone(leaving)

    def delete_policy(self, name: str) -> None:
        """Delete a policy, which then allows and denies nothing."""
        if name in fixed.POLICIES:
            raise NotAllowed(f"{name!r} is one of the fixed policies.", next="Detach it instead.")
        leaving = self._leave(Policy, name)
        holders = [key.decode().split("/")[2:] for key, _ in self._scan(f"attached/{name}/")]
        ties = [(f"{kind}-policy/{of}/{name}", f"attached/{name}/{kind}/{of}") for kind, of in holders]
        self._detach_all(leaving, ties)
        self._gone(leaving)

    def _leave(self, kind: type[Entity], name: str) -> _Leaving:
        word = KINDS[kind]
        self._changed()
        for _ in range(ATTEMPTS):
            key = _key(word, check_name(name, word))
            raw = self._kv.get(PARTITION, key)
            if not raw:
                raise NotFound(f"There is no {word} {name!r}.", next=f"List the {word} names to see which there are.")
            found = decode(kind, raw, f"{word} {name!r}")
            if found.is_leaving:  # a deletion that died: this one goes on with it
                return _Leaving(key, raw)
            try:
                leaving = encode(replace(found, is_leaving=True))
                self._kv.set_if(PARTITION, key, leaving, raw)
                return _Leaving(key, leaving)
            except PredicateFailed:
                continue
        raise NotAllowed(f"Others keep changing the {word} {name!r}.", next="Repeat the call.")

    def _gone(self, leaving: _Leaving) -> None:
        """End a deletion. Invariant: only what was marked goes; whoever has the name since another deletion stays."""
        with suppress(PredicateFailed):
            self._kv.set_if(PARTITION, leaving.key, GONE, leaving.raw)
        self._changed()

    def _detach_all(self, leaving: _Leaving, ties: Iterable[tuple[str, str]]) -> None:
        """Remove ties of what leaves, as long as its name is not somebody else's."""
        for both in ties:
            if self._kv.get(PARTITION, leaving.key) != leaving.raw:
                return
            self._untie(*both)

    def _policies_tied(self, holder: Holder, name: str) -> list[tuple[str, str]]:
        policies = [_last(key) for key, _ in self._scan(f"{holder}-policy/{name}/")]
        return [(f"{holder}-policy/{name}/{policy}", f"attached/{policy}/{holder}/{name}") for policy in policies]

    # --- ties ---------------------------------------------------------------------------------------------------------

    def add_member(self, group: str, user: str) -> None:
        """Put a user into a group; it may be in it already."""
        self._tie((Group, group), (User, user), f"member/{group}/{user}", f"member-of/{user}/{group}")

    def remove_member(self, group: str, user: str) -> None:
        """Take a user out of a group."""
        self._changed()
        self._untie(f"member/{check_name(group, 'group')}/{check_name(user, 'user')}", f"member-of/{user}/{group}")
        self._changed()

    def attach(self, policy: str, holder: Holder, name: str) -> None:
        """Give a policy to a user or a group; it may have it already."""
        kind: Any = User if holder == "user" else Group
        ties = f"{holder}-policy/{name}/{policy}", f"attached/{policy}/{holder}/{name}"
        self._tie((kind, name), (Policy, policy), *ties)

    def detach(self, policy: str, holder: Holder, name: str) -> None:
        """Take a policy from a user or a group."""
        self._changed()
        check_name(policy, "policy"), check_name(name, holder)
        self._untie(f"{holder}-policy/{name}/{policy}", f"attached/{policy}/{holder}/{name}")
        self._changed()

    def _tie(self, one: tuple[type[Any], str], other: tuple[type[Any], str], *keys: str) -> None:
        before = self.get(*one).created_at, self.get(*other).created_at
        self._changed()
        for key in keys:
            self._kv.set(PARTITION, key.encode(), b"")
        try:  # an end that was marked as leaving may have listed its ties before these were there
            after = self.get(*one).created_at, self.get(*other).created_at
            if after != before:
                raise NotFound(f"{one[1]!r} or {other[1]!r} was deleted and made anew.", next="Repeat the call.")
        except NotFound:
            self._untie(*keys)
            raise
        self._changed()

    def _untie(self, *keys: str) -> None:
        for key in keys:
            self._kv.delete(PARTITION, key.encode())

    def members(self, group: str, prefix: str = "", after: str = "", amount: int | None = None) -> Iterator[User]:
        """The users of a group, by name."""
        self.get(Group, group)
        return self._tied(User, f"member/{group}/", prefix, after, amount)

    def groups_of(self, user: str, prefix: str = "", after: str = "", amount: int | None = None) -> Iterator[Group]:
        """The groups of a user, by name."""
        return self._tied(Group, f"member-of/{user}/", prefix, after, amount)

    def policies_of(
        self, holder: Holder, name: str, prefix: str = "", after: str = "", amount: int | None = None
    ) -> Iterator[Policy]:
        """The policies that were given to a user or a group itself, by name."""
        return self._tied(Policy, f"{holder}-policy/{name}/", prefix, after, amount)

    def _tied(self, kind: type[Entity], below: str, prefix: str, after: str, amount: int | None) -> Iterator[Entity]:
        def found() -> Iterator[Entity]:
            for key, _ in self._scan(below, prefix, after, amount):
                try:
                    yield self.get(kind, _last(key))
                except NotFound:
                    continue

        return islice(found(), amount)

    def statements_of(self, user: str) -> list[Statement]:
        """All statements that hold for a user: of its own policies, and of those of its groups."""
        policies = {policy.name: policy for policy in self.policies_of("user", user)}
        for group in self.groups_of(user):
            policies |= {policy.name: policy for policy in self.policies_of("group", group.name)}
        return [statement for _, policy in sorted(policies.items()) for statement in policy.statements]

    def effective_policies(
        self, user: str, prefix: str = "", after: str = "", amount: int | None = None
    ) -> list[Policy]:
        """The policies that hold for a user, its groups' too, by name."""
        found = {policy.name: policy for policy in self.policies_of("user", user)}
        for group in self.groups_of(user):
            found |= {policy.name: policy for policy in self.policies_of("group", group.name)}
        return [found[name] for name in sorted(found) if name.startswith(prefix) and name > after][:amount]

    # --- access keys --------------------------------------------------------------------------------------------------

    def create_credential(self, user: str, key: tuple[str, Secret] | None = None) -> tuple[Credential, Secret]:
        """Make an access key of a user. The secret is returned this once.

        Raises:
            UsageError: the user has as many as it may have.
        """
        self.get(User, user)
        if len(list(self.credentials(user))) >= CREDENTIALS_MAX:
            raise UsageError(f"A user has at most {CREDENTIALS_MAX} access keys.", next="Delete one that is not used.")
        id, secret = key or new_key()
        sealed, sealed_with = self._sealer.seal(secret, id, user)
        made = Credential(id=id, user=user, sealed=sealed, sealed_with=sealed_with, created_at=self._clock.now_us())
        # the index first: a key that works is always found by those who delete its user
        self._kv.set(PARTITION, f"user-credential/{user}/{id}".encode(), b"")
        try:
            self._kv.set_if(PARTITION, _key("credential", id), encode(made), ABSENT)
        except PredicateFailed:
            held = self.credential(id)
            if held is None or held.user != user:
                self._untie(f"user-credential/{user}/{id}")
            raise AlreadyExists(f"The access key {id} exists.", next="Take another one.") from None
        try:
            self.get(User, user)
        except NotFound:
            self._drop_credential(made)
            raise
        self._changed()
        return made, secret

    def credential(self, id: str) -> Credential | None:
        """An access key by its id, or None."""
        if not 1 <= len(id) <= KEY_ID_CHARS or not id.isascii() or not id.isalnum():
            return None
        raw = self._kv.get(PARTITION, _key("credential", id))
        return None if raw is None else decode(Credential, raw, f"access key {id}")

    def secret_of(self, credential: Credential) -> Secret:
        """The secret of an access key."""
        return self._sealer.open(credential.sealed, credential.sealed_with, credential.id, credential.user)

    def credentials(
        self, user: str, after: str = "", amount: int | None = None, *, leaving: bool = False
    ) -> Iterator[Credential]:
        """The access keys of a user, by id."""
        if not leaving:
            self.get(User, user)

        def found() -> Iterator[Credential]:
            for key, _ in self._scan(f"user-credential/{user}/", "", after, amount):
                credential = self.credential(_last(key))
                if credential is not None and credential.user == user:
                    yield credential

        return islice(found(), amount)

    def delete_credential(self, user: str, id: str) -> None:
        """Make an access key void."""
        found = self.credential(id)
        if found is None or found.user != user:
            raise NotFound(f"The user {user!r} has no access key {id!r}.", next="List its keys.")
        self._changed()
        self._drop_credential(found)
        self._changed()

    def _drop_credential(self, credential: Credential) -> None:
        self._kv.delete(PARTITION, _key("credential", credential.id))
        self._untie(f"user-credential/{credential.user}/{credential.id}")


def new_key() -> tuple[str, Secret]:
    """A new access key id and its secret."""
    id = KEY_ID_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(KEY_ID_CHARS - len(KEY_ID_PREFIX)))
    return id, Secret(secrets.token_urlsafe(SECRET_BYTES))


def check_key(id: str, secret: Secret) -> None:
    """Refuse an access key, given by somebody, that could not sign, or would be guessed."""
    is_fine = 3 <= len(id) <= KEY_ID_CHARS and id.isascii() and id.isalnum() and len(secret.reveal()) >= 16
    if not is_fine:
        raise UsageError(
            "The access key cannot be used.",
            next=f"An id has 3 to {KEY_ID_CHARS} letters and digits, a secret 16 or more characters.",
        )


def check_text(text: str) -> str:
    """A free text about an entity, which is short."""
    if len(text) > 255:
        raise UsageError("The text has more than 255 characters.", next="Shorten it.")
    return text


def _key(kind: str, name: str) -> bytes:
    return f"{kind}/{name}".encode()


def _last(key: bytes) -> str:
    return key.rpartition(b"/")[2].decode()
