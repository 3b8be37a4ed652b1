"""Where bytes are put: physical keys, which no two writes ever share, with prefixes that name the writer."""

from __future__ import annotations

import re

from strandline.ids import BranchId, new_id

PHYSICAL_ROOT = "data"
ICEBERG_ROOT = "ice"
"""Where the files of Iceberg's tables lie: collectors of versions that do not read their metadata never list it."""
TRANSACTIONS_FOLDER = "_strandline/txn"
_UNSAFE = re.compile(r"[^A-Za-z0-9.]")
SUFFIX_MAX_CHARS = 24


def physical_suffix(path: str) -> str:
    """The end of a path's last part that tells what it is: readers such as Spark go by it ("a.csv.gz" is gzip)."""
    name = path.rpartition("/")[2]
    _, dot, suffix = name.lstrip("._").partition(".")
    return _UNSAFE.sub("", dot + suffix)[-SUFFIX_MAX_CHARS:] if dot else ""


def new_key(branch_id: BranchId, path: str) -> str:
    """A key that no other write uses, ever."""
    return f"{PHYSICAL_ROOT}/{branch_id}/{new_id()}{physical_suffix(path)}"


def write_folder(branch_id: BranchId, write_id: str) -> str:
    """The private folder of one write of a table.

    Its parts look like partitions, so that Spark sees all writes of a table as one partitioned folder and finds the
    partition values of files in their own paths, from all branches and writes at once.
    """
    return f"{PHYSICAL_ROOT}/sl_branch={branch_id}/sl_write={write_id}"


def transaction_prefix(branch_id: BranchId, id: int) -> str:
    """What all data keys of a transaction begin with, and no others: ids are never used again on a branch.

    A folder of its own, so that one LIST finds them, however much else the branch has written.
    """
    return f"{PHYSICAL_ROOT}/sl_branch={branch_id}.txn-{id:016d}/"


def iceberg_part(branch_id: BranchId, id: int) -> str:
    """What a transaction's files of an Iceberg table lie below, where a branch's lie below its id."""
    return f"{branch_id}.txn-{id:016d}"


def staged_part_key(branch_id: BranchId) -> str:
    """Where a part of what is staged is copied to, for whatever folds it; nothing refers to it afterwards.

    Below the transaction with the id 0, which there is never: all versions take what a dead process left there.
    """
    return f"{transaction_folder(branch_id, 0)}checkpoint-{new_id()}.parquet"


def transaction_folder(branch_id: BranchId, id: int) -> str:
    """Where a transaction's manifests and deadlists are."""
    return f"{TRANSACTIONS_FOLDER}/{branch_id}/{id:016d}/"
