"""Addresses and texts without the secrets in them.

What people and programs see of an address passes through here: errors, `repr`, log lines, spans, pickles. Better too
much is hidden than too little: an address that cannot be parsed hides all that may be a password.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
LONGEST = 8_192
"""Characters of a text that are looked at; what is behind them is not shown at all."""
_NAME = (
    r"[\w-]{0,40}(?:pass(?:word|wd|phrase)|pwd|secret|token|credential|signature"
    r"|(?:access|account|api|private|shared)[_-]?key)[\w-]{0,40}"
)
_OPTION_NAME = rf"(?:{_NAME}|pass|passfile|sig|sas|key)"
_VALUE = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&;,'\"}]+)"
_QUOTED = re.compile(r"(['\"])([\w+.-]*:?)//(.*?)(?<!\\)\1")
_ADDRESS = re.compile(r"(//|\b\w[\w+.-]*:/(?!/))([^\s\"]*)")
_MISTYPED = re.compile(r"(?:[a-zA-Z][\w+.-]+:?/{1,2}|[a-zA-Z][\w+.-]*:)[^/@]*:[^@]*@|[\w.-]+:[^/@]+@[\w.-]+/")
_BARE = re.compile(r"(?<![\w/.@-])((?:\w[\w+.-]{0,40}:)?)[\w.-]{0,64}:[^\s/@\"']{1,256}@(?=[\w\[])")
"""A user and a password before a host, where the slashes of the address are missing."""
_AFTER_PORT = ".,;:!?)]}>'\""
_INNER = re.compile(r"(=[\w+.-]*:?//)([^&]*)")
"""An address as an option of another one."""
_ENCODED = re.compile(r"(?i)(%2f%2f)[^&\s'\"]*(%40)")
_ANYWHERE = re.compile(rf"(?i)(?<![\w-])({_NAME}\s{{0,3}}=\s{{0,3}})(?!…|\.\.\.){_VALUE}")
_NAMED = re.compile(rf"(?i)(?<![\w-])((?:[\"']{_NAME}[\"']|\w*password)\s{{0,3}}:\s{{0,3}})(?!…|\.\.\.){_VALUE}")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{{8,}}".replace("{{", "{").replace("}}", "}"))
_OPTION = re.compile(r"([?&;])([^=?&;\s'\"]{1,80})=[^\s&;'\"]*")
_IS_SECRET = re.compile(rf"(?i){_OPTION_NAME}")


def redacted(text: str) -> str:
    """A text in which each user, password and option that holds a secret is replaced by `***`."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… and {len(text) - LONGEST:,} characters more"
    if "/" in text and ("@" in text or ":" in text):
        text = _QUOTED.sub(lambda found: f"{found[1]}{found[2]}//{_without_user(found[3])}{found[1]}", text)
        text = _ADDRESS.sub(lambda found: found[1] + _without_user(found[2]), text)
    if "@" in text:
        text = _BARE.sub(rf"\1{HIDDEN}@", text)
    if "%40" in text:
        text = _ENCODED.sub(rf"\1{HIDDEN}\2", text)
    if "=" in text or ":" in text:
        text = _OPTION.sub(_hidden_option, text)
        text = _ANYWHERE.sub(rf"\1{HIDDEN}", text)
        text = _NAMED.sub(rf"\1{HIDDEN}", text)
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


def _hidden_option(found: re.Match[str]) -> str:
    is_shown = not _IS_SECRET.fullmatch(unquote(found[2])) or found[0].endswith("=…")
    return found[0] if is_shown else f"{found[1]}{found[2]}={HIDDEN}"


def _without_user(rest: str, depth: int = 0) -> str:
    """What comes after the slashes of an address, with the user hidden."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    host, colon, port = authority.rpartition(":")
    # a port may end a sentence
    is_plain = "@" not in authority and (not colon or port.rstrip(_AFTER_PORT).isdigit() or host.startswith("["))
    if is_plain and depth > 1:
        return HIDDEN  # an address in an address in an address
    if is_plain:
        inner = rest[len(authority) :]
        return authority + _INNER.sub(lambda found: found[1] + _without_user(found[2], depth + 1), inner)
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
    kept = [pair for pair in query.split("&") if not _IS_SECRET.fullmatch(unquote(pair.partition("=")[0]))]
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
