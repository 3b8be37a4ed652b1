"""A table that both sides of a merge have changed: read, merged, and stored as the object that holds both."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from strandline.blob import BlobNotFound
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Corrupted, ObjectMissing
from strandline.iceberg import names
from strandline.iceberg.merging import settle_table
from strandline.iceberg.publishing import JSON, url_of
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.relocation import moved
from strandline.iceberg.replay import merged_table
from strandline.iceberg.schemas import Json
from strandline.iceberg.shapes import check_metadata, encoded
from strandline.iceberg.tables import told_of
from strandline.ids import BranchId
from strandline.repository.commits.settling import Sides
from strandline.tables.merging import Clash
from strandline.tree.rows import Entry, user_metadata_json


def merged_entry(core: RepositoryCore, branch_id: BranchId, path: str, given: Sides) -> Entry:
    """The entry of a table with the changes of both sides; its files are stored, and nothing refers to them yet.

    Raises:
        Clash: both changed the same thing in different ways.
        Corrupted, ObjectMissing: a file of a table cannot be read.
    """
    blobs, now_us = core.resolver.namespace, core.stores.clock.now_us()

    def read(entry: Entry | None) -> Json | None:
        return None if entry is None else read_metadata(core, path, entry.physical_address)

    dest = given.dest
    theirs, ours = (read_metadata(core, path, one.physical_address) for one in (given.source, dest))
    others = [(read(one), read(before)) for one, before in given.others]
    plan = settle_table(blobs, read(given.base), theirs, ours, others, is_serializable=given.is_serializable)
    key = names.table_key_of(dest.physical_address)
    if key is None:
        raise Clash("its files on the branch do not lie where tables' files lie")
    folder = names.files_below(key, branch_id)
    try:
        made = merged_table(
            plan,
            ours,
            url_of(core.resolver.namespace, dest.physical_address),
            folder,
            lambda one: url_of(core.resolver.namespace, one),
            now_us // 1_000,
        )
    except BadUpdate as error:
        raise Clash(f"what the source changed cannot be applied: {error.what.removesuffix('.')}") from error
    if made.metadata is ours:
        return dest  # the branch has all of it
    metadata = {**made.metadata, "location": url_of(core.resolver.namespace, folder)}
    data = encoded(metadata)
    place = names.new_metadata_key(key, branch_id, names.version_of(dest.physical_address) + 1)
    for name, content in (*made.files.items(), (place, data)):
        blobs.put(name, content, "fresh")
    checksum = f"blake3:{blake3(data).hexdigest()}"
    return Entry(place, len(data), checksum, now_us, JSON, user_metadata_json(told_of(metadata)))


def read_metadata(core: RepositoryCore, path: str, address: str) -> Json:
    """The metadata of the table at a path, with addresses of where the lake is now.

    Raises:
        Corrupted, ObjectMissing: it cannot be read.
    """
    blobs, key = core.resolver.resolve(address)
    try:
        metadata: Json = msgspec.json.decode(blobs.get(key))
        check_metadata(metadata)
    except BlobNotFound:
        raise ObjectMissing(
            f"The metadata of the table {path!r} is gone: {address}.", next="Restore it from a backup."
        ) from None
    except (msgspec.MsgspecError, BadUpdate) as error:
        raise Corrupted(f"The metadata of the table {path!r} cannot be read: {error}.") from None
    return moved(metadata, address, core.resolver.namespace, lambda one: url_of(core.resolver.namespace, one))
