"""The server's own rights in an object store, lent for one table: signatures of requests, and credentials of an STS.

botocore finds the server's credentials where Amazon's tools look for them: environment, files, the machine's role.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline import forks
from strandline.errors import InvalidSettings, StoreUnavailable
from strandline.redaction import Secret
from strandline.server.lending.scope import Scope, StorePlace

UNSIGNED = "UNSIGNED-PAYLOAD"
SESSION_MAX_CHARS = 64
KEPT_MAX = 1_000
_OWN_HEADERS = ("host", "authorization", "x-amz-date", "x-amz-security-token")
"""These say whose request it is, to whom, and when: a client's own would make it another one than was judged."""
_SESSION = re.compile(r"[^\w+=,.@-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lent:
    """Credentials for a while.

    Attributes:
        ends_at: in seconds since 1970 UTC.
    """

    key_id: str
    secret: Secret
    session: Secret
    ends_at: float


@dataclass
class Lender:
    """Signs, and asks an STS.

    Args:
        role: that is assumed for clients.
        sts: the endpoint of the STS; "" for Amazon's.
        lasts_s: for how long credentials are lent.
    """

    role: str = ""
    sts: str = ""
    lasts_s: int = 3_600
    _lock: threading.Lock = field(default_factory=forks.lock, repr=False)
    _session: Any = field(default=None, repr=False)
    _kept: dict[tuple[str, ...], Lent] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Raise `InvalidSettings` unless botocore is there and finds credentials."""
        self._credentials()

    def signed(
        self, place: StorePlace, method: str, uri: str, headers: Mapping[str, list[str]]
    ) -> dict[str, list[str]]:
        """The headers with which the store takes a request for the server's own.

        Args:
            uri: in its normal spelling (`scope.normal`).
        """
        from botocore.auth import S3SigV4Auth  # noqa: PLC0415 - only servers that lend need it
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        kept = {name: values for name, values in headers.items() if name.lower() not in _OWN_HEADERS}
        # the others may change on their way: clients count attempts in one of them
        held = {name: ", ".join(values) for name, values in kept.items() if name.lower().startswith("x-amz-")}
        body = next((value for name, value in held.items() if name.lower() == "x-amz-content-sha256"), UNSIGNED)

        request = AWSRequest(method, uri, held)
        signer: Any = S3SigV4Auth(self._credentials(), "s3", place.region)
        signer.payload = lambda _: body
        signer.add_auth(request)
        signed = {name: [str(value)] for name, value in request.headers.items()}
        own = {name.lower() for name in signed}
        return {name: values for name, values in kept.items() if name.lower() not in own} | signed

    def lent(self, scope: Scope, user: str) -> Lent:
        """Credentials for the prefix of a table alone: they read there, write where this branch writes, delete nothing.

        Raises:
            StoreUnavailable: the STS does not give any.
        """
        key = (scope.place.bucket, scope.place.root, scope.reads, scope.writes, user)
        now = time.time()
        with self._lock:
            held = self._kept.get(key)
            if held is not None and held.ends_at - now > self.lasts_s / 2:
                return held
        made = self._assumed(scope, user)
        with self._lock:
            if len(self._kept) >= KEPT_MAX:
                self._kept = {one: lent for one, lent in self._kept.items() if lent.ends_at - now > self.lasts_s / 2}
            if len(self._kept) < KEPT_MAX:
                self._kept[key] = made
        return made

    def _assumed(self, scope: Scope, user: str) -> Lent:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        self._credentials()
        try:
            client = self._session.create_client("sts", region_name=scope.place.region, endpoint_url=self.sts or None)
            given = client.assume_role(
                RoleArn=self.role,
                RoleSessionName=_SESSION.sub("-", f"strandline-{user}")[:SESSION_MAX_CHARS],
                DurationSeconds=self.lasts_s,
                Policy=policy(scope),
            )["Credentials"]
        except (BotoCoreError, ClientError) as error:
            raise StoreUnavailable(
                f"The STS gives no credentials for {self.role!r}: {type(error).__name__}.",
                happened="no",
                next="Look at the role's trust and at iceberg_sts in the configuration of the server.",
            ) from error
        return Lent(
            given["AccessKeyId"],
            Secret(given["SecretAccessKey"]),
            Secret(given["SessionToken"]),
            given["Expiration"].timestamp(),
        )

    def _credentials(self) -> Any:
        try:
            import botocore.exceptions  # noqa: PLC0415 - only servers that lend need it
            import botocore.session  # noqa: PLC0415 - only servers that lend need it
        except ModuleNotFoundError as error:
            raise InvalidSettings(
                "Lending credentials needs the Python package 'botocore', which is not installed.",
                next="Run: pip install 'strandline[credentials]'",
            ) from error
        with self._lock:
            if self._session is None:
                self._session = botocore.session.get_session()
            try:
                found = self._session.get_credentials()
            except botocore.exceptions.BotoCoreError as error:
                raise InvalidSettings(
                    f"The server's own credentials cannot be found: {error}.",
                    next="Look at the variables and the files of Amazon's tools, such as AWS_PROFILE.",
                ) from error
        if found is None:
            raise InvalidSettings(
                "The server has no credentials of its own to lend.",
                next="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give its machine a role.",
            )
        return found.get_frozen_credentials()


def policy(scope: Scope) -> str:
    """What lent credentials may do, in the language of policies of Amazon's; it only narrows what the role may."""
    place = scope.place
    bucket = f"arn:aws:s3:::{place.bucket}"
    below = f"{place.root}{scope.reads}*"
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/{below}"},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": below}},
        },
    ]
    if scope.writes:
        actions = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": f"{bucket}/{place.root}{scope.writes}*"})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
