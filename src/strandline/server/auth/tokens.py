"""Tokens of a login: JSON Web Tokens, signed with a key that only the server has."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jwt

from strandline.server.refusals import NotAuthenticated

ALGORITHM = "HS256"
ISSUER = "strandline"
LASTS_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Token:
    """What a valid token says.

    Attributes:
        key_id: the access key that it was given for; without it the token is void.
        issued_us: in microseconds since 1970 UTC; tokens from before the user's `sessions_from` are void.
    """

    user: str
    key_id: str
    id: str
    issued_us: int
    expires_s: int


class Expired(NotAuthenticated):
    """The token was good once."""


class Tokens:
    """Issues tokens, and reads them.

    Args:
        key: 32 bytes, that signs.
        older: keys that have signed.
    """

    def __init__(self, key: bytes, *older: bytes) -> None:
        self._key = key
        self._keys = (key, *older)

    def issue(self, user: str, key_id: str, now_us: int, lasts_s: int = LASTS_S) -> tuple[str, int]:
        """A new token, and when it expires, in seconds since 1970 UTC."""
        expires_s = now_us // 1_000_000 + lasts_s
        claims = {
            "iss": ISSUER,
            "sub": user,
            "key": key_id,
            "jti": secrets.token_hex(8),
            "iat": now_us // 1_000_000,
            "us": now_us,
            "exp": expires_s,
        }
        return jwt.encode(claims, self._key, ALGORITHM), expires_s

    def read(self, text: str, now_us: int) -> Token:
        """What a token says.

        Raises:
            NotAuthenticated: it is not one of this server.
            Expired: it has expired.
        """
        options: Any = {"require": ["iss", "sub", "jti", "iat", "exp"], "verify_exp": False, "verify_iat": False}
        try:
            claims = self._decoded(text, options)
            token = Token(
                str(claims["sub"]), str(claims["key"]), str(claims["jti"]), int(claims["us"]), int(claims["exp"])
            )
        except (jwt.PyJWTError, KeyError, ValueError, TypeError):
            raise NotAuthenticated("The token is not one of this server.", next="Log in again.") from None
        if now_us // 1_000_000 >= token.expires_s:
            expired = datetime.fromtimestamp(token.expires_s, UTC)
            raise Expired(f"The token expired at {expired:%Y-%m-%d %H:%M:%S} UTC.", next="Log in again.")
        return token

    def _decoded(self, text: str, options: Any) -> dict[str, Any]:
        for key in self._keys[:-1]:
            with suppress(jwt.InvalidSignatureError):
                return jwt.decode(text, key, [ALGORITHM], issuer=ISSUER, options=options)
        return jwt.decode(text, self._keys[-1], [ALGORITHM], issuer=ISSUER, options=options)
