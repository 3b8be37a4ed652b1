"""Objects whose bytes a client writes itself: addresses, links, staging in bulk."""

from __future__ import annotations

import re
from urllib.parse import unquote

import msgspec

from strandline.blob import BlobNotFound, is_absolute
from strandline.core.texts import check_entries, check_metadata
from strandline.ids import check_path
from strandline.repository.branch import Branch
from strandline.results.rows import as_info
from strandline.server.links import ADDRESS_LASTS_S, PRESIGNED_S, AddressClaims
from strandline.server.messages import Response
from strandline.server.namespaces import address_below, shown_address
from strandline.server.operation import Call, Operation, Staging, branch_to_write, object_arn, object_need
from strandline.server.refusals import BadRequest, NotSupported
from strandline.server.rest import shapes
from strandline.server.rest.objects import stats_of
from strandline.server.rest.replies import json
from strandline.tree.rows import Entry, user_metadata_json

BULK_MAX_BYTES = 16 << 20
PUT_MAX_BYTES = 5 << 30
NAMESPACE_ARN = "arn:lakefs:fs:::namespace/"
FOREIGN_SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class At(msgspec.Struct, frozen=True):
    """A path, and whether a link to write there is wanted."""

    path: str
    presign: bool = False


def _claims(call: Call, branch: Branch, path: str, address: str, issued_s: int) -> AddressClaims:
    id = branch._core.stores.repository_id
    return AddressClaims(id, branch.branch_id, path, address, issued_s, call.principal.user)


def get_physical_address(call: Call) -> Response:
    repository = call.path["repository"]
    branch = branch_to_write(call)
    path = call.query.path
    check_path(path)
    branch._refuse_early(path)
    key = branch._new_key(path)
    now_s = call.services.clock.now_us() // 1_000_000
    proof = call.services.links.seal_address(_claims(call, branch, path, key, now_s))
    address = shown_address(call.services.namespace_shown(repository), key)
    location = shapes.StagingLocation(f"{address},{now_s}.{proof}")
    if call.query.presign:
        blobs = branch._core.resolver.namespace
        expires_s = now_s + PRESIGNED_S
        url = blobs.presigned("PUT", key, PRESIGNED_S)
        if url is None:
            url = call.services.link_of("PUT", call.principal, repository, branch, path, expires_s, key, PUT_MAX_BYTES)
        location.presigned_url, location.presigned_url_expiry = url, expires_s
    return json(200, location)


def link_physical_address(call: Call) -> Response | Staging:
    repository, given = call.path["repository"], call.body
    branch = branch_to_write(call)
    path = call.query.path
    only_new = call.request.header(b"if-none-match")
    if only_new and only_new.strip() != "*":
        raise NotSupported("Of If-None-Match only * is known here.")
    address = _address(call, branch, path, given.staging.physical_address)
    checksum = f"etag:{given.checksum.strip(chr(34))}"
    if is_absolute(address) or only_new:
        info = branch.link(
            path,
            address,
            size=given.size_bytes,
            checksum=checksum,
            content_type=given.content_type or None,
            metadata=given.user_metadata,
            create=bool(only_new),
            modified_at_us=_microseconds(given.mtime),
        )
        return json(200, stats_of(call, repository, info))
    # an address of our own of today is younger than any grace of a collection: no link has to be announced
    branch._refuse_early(path)
    metadata, moment_us = check_metadata(given.user_metadata), _microseconds(given.mtime)
    moment_us = call.services.clock.now_us() if moment_us is None else moment_us
    entry = Entry(address, given.size_bytes, checksum, moment_us, given.content_type or None, metadata)
    check_entries([(path, entry)])
    try:
        found = branch._core.resolver.namespace.head(address)
    except BlobNotFound:
        raise BadRequest("Nothing was written to the address.", next="Write the bytes first.") from None
    if found.size != given.size_bytes:
        raise BadRequest(f"{found.size:,} bytes were written to the address, not {given.size_bytes:,}.")
    return Staging(branch, path, entry, lambda: json(200, stats_of(call, repository, as_info(path, entry))))


def _address(call: Call, branch: Branch, path: str, given: str) -> str:
    """Where the bytes are, as the lake knows it.

    Raises:
        BadRequest: the address was given out for another path, too long ago, or to somebody else.
    """
    shown, comma, proof = given.rpartition(",")
    if not comma:
        shown = given
    key = address_below(shown, call.services.namespace_shown(call.path["repository"]))
    if key is None:
        if not is_absolute(given):
            raise BadRequest(f"{given[:200]!r} is not an address.", next="Ask for one: GET …/staging/backing.")
        return _foreign(call, given)  # bytes that this server did not give an address for
    issued, _, mac = proof.partition(".")
    now_s = call.services.clock.now_us() // 1_000_000
    if not (comma and issued.isascii() and issued.isdigit() and len(issued) <= 12):
        raise BadRequest("The address lacks its proof.", next="Ask for one: GET …/staging/backing.")
    if now_s - int(issued) > ADDRESS_LASTS_S:
        raise BadRequest("The address was given out more than a day ago.", next="Ask for a new one.")
    if not call.services.links.sealed_address(_claims(call, branch, path, key, int(issued)), mac):
        raise BadRequest(
            "The address was given out for another path, branch or user.", next="Ask for one: GET …/staging/backing."
        )
    return key


def _microseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1_000_000


def stage_object(call: Call) -> Response:
    repository, given = call.path["repository"], call.body
    branch = branch_to_write(call)
    info = branch.link(
        call.query.path,
        _foreign(call, given.physical_address),
        size=given.size_bytes,
        checksum=f"etag:{given.checksum.strip(chr(34))}",
        content_type=given.content_type or None,
        metadata=given.metadata,
        modified_at_us=_microseconds(given.mtime),
    )
    return json(201, stats_of(call, repository, info))


def _foreign(call: Call, address: str) -> str:
    """An address outside of the namespaces of this server, of an object that the caller may import."""
    foreign_place(address)
    # it is judged by what is read, and percent signs are taken apart before that
    call.permit("fs:ImportFromStorage", NAMESPACE_ARN + foreign_place(unquote(address)))
    return address


def foreign_place(address: str) -> str:
    """An address in an object store, of which there is but one spelling.

    Raises:
        BadRequest: it is none, or could be read as another one.
    """
    scheme, _, rest = address.partition("://")
    bucket, *folders = rest.split("/")
    # a query could send the server's own credentials to any host, and a folder of the server is nobody's object
    is_fine = scheme in FOREIGN_SCHEMES and _BUCKET.fullmatch(bucket) and not set(rest) & set("?#@")
    is_plain = not (
        any(char < " " or char == "\x7f" for char in rest) or {".", ".."} & set(folders) or "" in folders[:-1]
    )
    if not (is_fine and is_plain):
        raise BadRequest(
            f"{address[:200]!r} is not the address of an object in an object store.",
            next=f"Give scheme://bucket/key, with one of {', '.join(FOREIGN_SCHEMES)}.",
        )
    return address


def stage_many(call: Call) -> Response:
    given: shapes.BulkStage = call.body
    repository = call.path["repository"]
    for one in given.objects:
        call.permit("fs:WriteObject", object_arn(repository, one.path))
    branch = branch_to_write(call)
    now_us = call.services.clock.now_us()
    entries = []
    for one in given.objects:
        entry = Entry(
            physical_address=_foreign(call, one.physical_address),
            size=one.size_bytes,
            checksum=f"etag:{one.checksum.strip(chr(34))}",
            modified_at=now_us if one.mtime is None else one.mtime * 1_000_000,
            content_type=one.content_type or None,
            user_metadata=user_metadata_json(one.metadata),
        )
        entries.append((one.path, entry))
    return json(200, shapes.StagedCount(branch.link_many(entries, atomic=given.atomic)))


_BRANCH = "/repositories/{repository}/branches/{branch}"

OPERATIONS = (
    Operation(
        "getPhysicalAddress",
        "GET",
        _BRANCH + "/staging/backing",
        object_need("fs:WriteObject"),
        get_physical_address,
        "An address to write an object's bytes to",
        {200: shapes.StagingLocation},
        "staging",
        query=At,
    ),
    Operation(
        "linkPhysicalAddress",
        "PUT",
        _BRANCH + "/staging/backing",
        object_need("fs:WriteObject"),
        link_physical_address,
        "Stage an object whose bytes were written there",
        {200: shapes.ObjectStats, 412: shapes.Error},
        "staging",
        query=At,
        cost="upload",
        body=shapes.StagingMetadata,
    ),
    Operation(
        "stageObject",
        "PUT",
        _BRANCH + "/objects",
        object_need("fs:WriteObject"),
        stage_object,
        "Stage an object whose bytes are in an object store",
        {201: shapes.ObjectStats},
        "staging",
        query=At,
        body=shapes.ObjectStageCreation,
    ),
    Operation(
        "stageObjects",
        "POST",
        _BRANCH + "/objects/stage",
        object_need("fs:WriteObject", "{objects}"),
        stage_many,
        "Stage many objects whose bytes are in an object store",
        {200: shapes.StagedCount},
        "staging",
        body=shapes.BulkStage,
        body_max=BULK_MAX_BYTES,
        judges_each=True,
        is_ours=True,
    ),
)
