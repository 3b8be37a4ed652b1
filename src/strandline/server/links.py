"""What the server signs for others to show it later: addresses that it gave out, and links to objects.

Each is judged again when it is used: by the key, by its time, and by what its user may do then.
"""

from __future__ import annotations

import base64
import hmac
from typing import TypeVar

import msgspec

from strandline.server.refusals import BadRequest, NotAuthenticated

LINK_MAX_S = 7 * 24 * 3600
PRESIGNED_S = 15 * 60
ADDRESS_LASTS_S = 24 * 3600
Claims = TypeVar("Claims", bound=msgspec.Struct)
_MAC_BYTES = 16


class AddressClaims(msgspec.Struct, frozen=True, array_like=True):
    """An address of the namespace that a caller was given to write an object to."""

    repository_id: str
    branch_id: str
    path: str
    address: str
    issued_s: int
    user: str


class LinkClaims(msgspec.Struct, frozen=True, array_like=True):
    """A link to read an object, or to write the bytes of one.

    Attributes:
        repository, repository_id: its name, and which one of the name is meant.
        ref: the id of a commit, or the name of a branch.
        branch_id: which branch of the name is meant; "" for a commit.
        place: the address that is written to; "" for reading.
        size_max: how many bytes may be written.
        user, key_id: who asked for it, and the access key that it showed. Without them the link is void.
    """

    method: str
    repository: str
    repository_id: str
    ref: str
    branch_id: str
    path: str
    place: str
    size_max: int
    expires_s: int
    user: str
    key_id: str
    issued_us: int


class Links:
    """Signs claims, and reads what it signed.

    Args:
        key: 32 bytes, that signs.
        older: keys that have signed.
    """

    def __init__(self, key: bytes, *older: bytes) -> None:
        self._keys = (key, *older)

    def sign(self, claims: msgspec.Struct) -> str:
        """A text of letters, digits, "-", "_" and "." that holds the claims."""
        body = msgspec.msgpack.encode(claims)
        return f"{_text(body)}.{_text(_mac(self._keys[0], type(claims), body))}"

    def read(self, kind: type[Claims], text: str) -> Claims:
        """The claims of a text; their time is the caller's to judge.

        Raises:
            NotAuthenticated: the server did not sign this, or not as such claims.
        """
        body_text, _, mac_text = text.partition(".")
        try:
            body, mac = _bytes(body_text), _bytes(mac_text)
        except ValueError:
            raise BadRequest("The link is malformed.") from None
        if not self._is_ours(kind, body, mac):
            raise NotAuthenticated("The link is not one of this server.", status=403)
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError:
            raise NotAuthenticated("The link is of another version of the server.", status=403) from None

    def seal_address(self, claims: AddressClaims) -> str:
        """The short proof that an address was given out; the claims themselves are known when it comes back."""
        return _text(_mac(self._keys[0], AddressClaims, msgspec.msgpack.encode(claims)))

    def sealed_address(self, claims: AddressClaims, proof: str) -> bool:
        """Whether this is the proof of an address."""
        try:
            mac = _bytes(proof)
        except ValueError:
            return False
        return self._is_ours(AddressClaims, msgspec.msgpack.encode(claims), mac)

    def _is_ours(self, kind: type[msgspec.Struct], body: bytes, mac: bytes) -> bool:
        return any(hmac.compare_digest(mac, _mac(key, kind, body)) for key in self._keys)


def _mac(key: bytes, kind: type[msgspec.Struct], body: bytes) -> bytes:
    return hmac.digest(key, kind.__name__.encode() + b"\0" + body, "sha256")[:_MAC_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
