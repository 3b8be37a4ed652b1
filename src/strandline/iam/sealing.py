"""Secrets of access keys, encrypted at rest with AES-256-GCM under keys that are not in the lake.

A signature can only be checked with the secret itself, so it is kept, and kept encrypted. The additional data of each
seal is the key id and the user, so that a sealed secret that was moved to another record does not open.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from strandline.errors import Corrupted, InvalidSettings, StoreUnavailable
from strandline.redaction import Secret

NONCE_BYTES = 12
KEY_BYTES = 32
SECRET_MIN_CHARS = 16
KEY_ID_CHARS = 8


class Sealer:
    """Seals and opens secrets, and derives the other keys of a server.

    Args:
        secrets: the server's secret keys, the one that seals first; the others only open what they sealed.
    """

    def __init__(self, secrets: Sequence[Secret]) -> None:
        if not secrets or any(len(one.reveal()) < SECRET_MIN_CHARS for one in secrets):
            raise InvalidSettings(
                f"The server's secret key is missing, or shorter than {SECRET_MIN_CHARS} characters; commas separate "
                "several.",
                next="Set STRANDLINE_SECRET_KEY to a long random text, and keep a copy of it: without it all access "
                "keys are lost.",
            )
        self._keys = {_key_id(one): one for one in secrets}
        self._first = _key_id(secrets[0])

    @property
    def first(self) -> str:
        """The id of the key that seals."""
        return self._first

    def seal(self, secret: Secret, credential: str, user: str) -> tuple[bytes, str]:
        """The sealed secret, and the id of the key that it is sealed with."""
        nonce = os.urandom(NONCE_BYTES)
        box = AESGCM(self.derive("credentials", self._first))
        return nonce + box.encrypt(nonce, secret.reveal().encode(), _about(credential, user)), self._first

    def open(self, sealed: bytes, sealed_with: str, credential: str, user: str) -> Secret:
        """The secret.

        Raises:
            InvalidSettings: it was sealed with a key that this server does not have.
            Corrupted: it was changed, or belongs to another credential.
        """
        if sealed_with not in self._keys:
            raise InvalidSettings(
                f"The access key {credential} is sealed with a secret key that this server does not have.",
                next="Start the server with the STRANDLINE_SECRET_KEY that it was made with.",
            )
        box = AESGCM(self.derive("credentials", sealed_with))
        try:
            opened = box.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _about(credential, user))
        except (InvalidTag, ValueError):
            raise Corrupted(
                f"The sealed secret of the access key {credential} was changed.", next="Make a new access key."
            ) from None
        return Secret(opened.decode())

    def derive_all(self, purpose: str) -> list[bytes]:
        """As `derive`, of each secret key, the first one first."""
        others = [id for id in self._keys if id != self._first]
        return [self.derive(purpose, id) for id in (self._first, *others)]

    def derive(self, purpose: str, key_id: str = "") -> bytes:
        """A key of 32 bytes for one purpose; see RFC 5869."""
        secret = self._keys[key_id or self._first].reveal().encode()
        return HKDF(SHA256(), KEY_BYTES, None, f"strandline {purpose}".encode()).derive(secret)


def _key_id(secret: Secret) -> str:
    return hashlib.blake2b(secret.reveal().encode(), person=b"strandline-key").hexdigest()[:KEY_ID_CHARS]


def _about(credential: str, user: str) -> bytes:
    return f"{credential}\0{user}".encode()


def secret_file(path: Path) -> Secret:
    """The secret in a file that only its owner may read; it is made if it is not there.

    Raises:
        InvalidSettings: others may read it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise _unusable(path, error) from error
    else:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
    try:
        mode = path.stat().st_mode
        text = path.read_text().strip()
    except OSError as error:
        raise _unusable(path, error) from error
    if mode & 0o077:
        raise InvalidSettings(
            f"Others may read {path}, which holds the server's secret key.", next=f"Run `chmod 600 {path}`."
        )
    return Secret(text)


def _unusable(path: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"The file of the server's secret key, {path}, cannot be used: {error.strerror}.",
        happened="no",
        next="Give this user the right to read and write it, or set STRANDLINE_SECRET_KEY.",
    )
