"""What a server refuses besides what the core does: errors that know their status and their code of S3."""

from __future__ import annotations

from strandline.errors import StrandlineError


class Refusal(StrandlineError):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        s3_code: the code in S3's error document.
        retry_after_s: when it is worth another try; 0 if that is not known.
    """

    status = 400
    s3_code = "InvalidRequest"
    word = "bad-request"

    @property
    def kind(self) -> str:
        """A word for programs, stable between versions."""
        return self.word

    def __init__(
        self, what: str, *, status: int = 0, s3_code: str = "", next: str = "", retry_after_s: int = 0
    ) -> None:
        super().__init__(what, next=next)
        self.status = status or self.status
        self.s3_code = s3_code or self.s3_code
        self.retry_after_s = retry_after_s


class BadRequest(Refusal):
    """The request cannot mean anything."""


class NotAuthenticated(Refusal):
    """The caller did not show who it is, or what it showed is wrong."""

    status = 401
    s3_code = "AccessDenied"
    word = "not-authenticated"


class Forbidden(Refusal):
    """No policy allows the caller what it asked for. lakeFS's clients know this as 401."""

    status = 401
    s3_code = "AccessDenied"
    word = "forbidden"


class TooLarge(Refusal):
    """More than the server takes."""

    status = 413
    s3_code = "EntityTooLarge"
    word = "too-large"


class Busy(Refusal):
    """The server has more to do than it can; the same request is fine a little later."""

    status = 503
    s3_code = "SlowDown"
    word = "busy"

    def __init__(self, what: str, *, retry_after_s: int = 1) -> None:
        super().__init__(what, next="Repeat the request a little later.", retry_after_s=retry_after_s)


class BrokenBody(Refusal):
    """The body ended before it was complete, or came too slowly."""

    s3_code = "IncompleteBody"
    word = "broken-body"


class NotSupported(Refusal):
    """Something that other servers do, and this one does not."""

    status = 501
    s3_code = "NotImplemented"
    word = "not-supported"
