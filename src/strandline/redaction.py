"""Addresses and texts without the secrets in them.

What people and programs see of an address passes through here: errors, `repr`, log lines, spans, pickles. Better too
much is hidden than too little: an address that cannot be parsed hides all that may be a password.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_NAMES = r"pass(?:word|wd|phrase)?|pwd|sslpassword|\w*secret\w*|\w*(?:access|account|api|private|shared)[_-]?key\w*"
_OPTION_NAMES = rf"{_NAMES}|passfile|\w*token\w*|\w*credential\w*|sig|signature|sas|key"
_QUOTED = re.compile(r"(['\"])([\w+.-]*:?)//(.*?)(?<!\\)\1")
_ADDRESS = re.compile(r"(//|\b\w[\w+.-]*:/(?!/))([^\s'\"]*)")
_MISTYPED = re.compile(r"[a-zA-Z][\w+.-]+:?/{1,2}[^/@]*:[^@]*@")
_INNER = re.compile(r"(=[\w+.-]*:?//)([^&]*)")
"""An address as an option of another one."""
_ENCODED = re.compile(r"(?i)(%2f%2f)[^&\s'\"]*(%40)")
_ANYWHERE = re.compile(rf"(?i)\b({_NAMES})=(?!…)([^\s&'\"]+|'[^']*'|\"[^\"]*\")")
_OPTION = re.compile(rf"(?i)([?&;])({_OPTION_NAMES})=(?!…)[^\s&;'\"]*")
_IS_SECRET = re.compile(rf"(?i){_OPTION_NAMES}")


def redacted(text: str) -> str:
    """A text in which each user, password and option that holds a secret is replaced by `***`."""
    if ("/" in text and "@" in text) or "//" in text:
        text = _QUOTED.sub(lambda found: f"{found[1]}{found[2]}//{_without_user(found[3])}{found[1]}", text)
        text = _ADDRESS.sub(lambda found: found[1] + _without_user(found[2]), text)
    text = _ENCODED.sub(rf"\1{HIDDEN}\2", text)
    if "=" in text:
        text = _OPTION.sub(rf"\1\2={HIDDEN}", text)
        text = _ANYWHERE.sub(rf"\1={HIDDEN}", text)
    return text


def _without_user(rest: str) -> str:
    """What comes after the slashes of an address, with the user hidden."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    host, colon, port = authority.rpartition(":")
    is_plain = "@" not in authority and (not colon or port.isdigit() or host.startswith("["))
    if is_plain:
        return authority + _INNER.sub(lambda found: found[1] + _without_user(found[2]), rest[len(authority) :])
    # a password with an unescaped "/" or "@" ends at the last "@", whatever a parser would say
    user, at, after = rest.rpartition("@")
    return f"{HIDDEN}@{after}" if at else f"{user}{HIDDEN}"


def without_secrets(url: str) -> str:
    """A URL without user, password and options that hold secrets: what may travel to another process."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return redacted(url)
    rest = _without_user(rest).removeprefix(f"{HIDDEN}@")
    path, mark, query = rest.partition("?")
    kept = [pair for pair in query.split("&") if not _IS_SECRET.fullmatch(pair.partition("=")[0])]
    return redacted(scheme + separator + path + (mark + "&".join(kept) if query and kept else ""))


def looks_like_url(text: str) -> bool:
    """Whether a text is a URL and not a path, or was meant to be one: `postgresql//me:word@host` is not a folder."""
    return "://" in text or _MISTYPED.match(text) is not None


class Secret:
    """A text that is never shown: `str`, `repr` and pickles do not hold it.

    Args:
        text: with its secrets.
    """

    __slots__ = ("_revealed",)

    def __init__(self, text: str) -> None:
        self._revealed = text

    def reveal(self) -> str:
        """The whole text, for the driver that needs it."""
        return self._revealed

    def __str__(self) -> str:
        return HIDDEN if self._revealed else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.reveal() == self._revealed

    def __hash__(self) -> int:
        return hash(self._revealed)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return type(self), (str(self),)


class SecretUrl(Secret):
    """A URL that may hold secrets: it is shown and pickled without them."""

    __slots__ = ()

    def __str__(self) -> str:
        return without_secrets(self._revealed)
