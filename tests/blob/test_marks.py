"""Marks of folders in listings of object stores: objects of no bytes, whose keys have lost their last slash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.blob import BlobInfo, without_marks
from strandline.blob.remote import RemoteBlobStore, open_remote
from strandline.errors import StoreUnavailable


def blob(key: str, size: int = 1) -> BlobInfo:
    return BlobInfo(key, size, "tag", 0)


def keys(pages: Iterator[list[BlobInfo]]) -> list[str]:
    return [info.key for page in pages for info in page]


def test_a_mark_is_known_by_its_place() -> None:
    page = [blob("a", 0), blob("city=San Jose/p"), blob("city=San", 0), blob("city=San/p")]
    assert keys(without_marks([page])) == ["a", "city=San Jose/p", "city=San/p"]
    assert keys(without_marks([page[:2], page[2:3], page[3:]])) == ["a", "city=San Jose/p", "city=San/p"]
    assert keys(without_marks([page[2:]], "city=San Jose/p")) == ["city=San/p"]
    for other in ([blob("b"), blob("a", 0)], [blob("a-b"), blob("a", 1)]):  # of another order, or with bytes
        assert keys(without_marks([other])) == [info.key for info in other]


def test_a_listing_in_slices_passes_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_remote("memory://marks")
    listed = [blob("us-east/p"), blob("us", 0), blob("us/p")]
    monkeypatch.setattr(RemoteBlobStore, "_list_after", lambda *_: iter([listed]))
    assert keys(store.list_between("", "", None)) == ["us-east/p", "us/p"]
    assert keys(store.list_between("", "us-east/p", None)) == ["us/p"]
    listed[1] = blob("us", 5)
    with pytest.raises(StoreUnavailable, match="out of their order"):
        keys(store.list_between("", "", None))


def test_a_key_that_cannot_be_named_is_said() -> None:
    with pytest.raises(StoreUnavailable, match="Rename the object"):
        open_remote("memory://keys").put("new\nline", b"x")
