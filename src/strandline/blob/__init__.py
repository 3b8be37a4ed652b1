"""Object stores: the bytes of the users' objects, and all immutable metadata."""

from strandline.blob.address import Resolver, is_absolute, join_url, open_store
from strandline.blob.store import BlobExists, BlobInfo, BlobNotFound, BlobStore, PutMode, without_marks

__all__ = [
    "BlobExists",
    "BlobInfo",
    "BlobNotFound",
    "BlobStore",
    "PutMode",
    "Resolver",
    "is_absolute",
    "join_url",
    "open_store",
    "without_marks",
]
