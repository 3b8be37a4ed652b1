"""The conformance suite of `strandline.blob.BlobStore`: one test for each sentence of the interface."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import BinaryIO, cast

import pytest

from strandline.blob import BlobExists, BlobNotFound, BlobStore, PutMode
from strandline.errors import InvalidName

PASSES_BYTES = 8 << 20
"""What some stores send at once."""
MODES: tuple[PutMode, ...] = ("overwrite", "create", "fresh")


class _Passing:
    """A file that can only be read, in pieces of odd sizes; perhaps its end is an error."""

    def __init__(self, body: bytes, error: Exception | None = None) -> None:
        self._left = memoryview(body)
        self._error = error

    def read(self, most: int = -1) -> bytes:
        most = min(1_000_003, most if most >= 0 else len(self._left))
        piece, self._left = bytes(self._left[:most]), self._left[most:]
        if not piece and self._error is not None:
            raise self._error
        return piece


class BlobStoreTests:
    """Inherit, and give a `store` fixture that yields an empty store."""

    @pytest.fixture
    def store(self) -> Iterator[BlobStore]:
        # which store is tested is what each inheriting class says; without an answer its tests must not pass
        pytest.fail("Give the test class a fixture `store` that yields an empty store.")

    def test_a_blob_that_was_put_is_read_back(self, store: BlobStore) -> None:
        store.put("a/b.txt", b"hello")
        assert store.get("a/b.txt") == b"hello"

    def test_new_blobs_are_stored_together(self, store: BlobStore) -> None:
        store.put_new([(f"new/{n}", b"%d" % n) for n in range(20)])
        assert {key: store.get(key) for key in store.list_keys("new/")} == {f"new/{n}": b"%d" % n for n in range(20)}
        with pytest.raises(BlobExists):
            store.put_new([("new/20", b"x"), ("new/7", b"x")])
        assert store.get("new/7") == b"7"
        store.put_new([])

    def test_an_empty_blob_is_a_blob(self, store: BlobStore) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        assert store.head("empty").size == 0

    def test_what_is_not_there_is_not_found(self, store: BlobStore) -> None:
        for call in (store.get, store.head, store.open_read):
            with pytest.raises(BlobNotFound):
                call("nothing/here")

    def test_a_part_is_read_by_its_bytes(self, store: BlobStore) -> None:
        store.put("k", b"0123456789")
        assert store.get("k", 2, 5) == b"234"
        assert store.get("k", 7) == b"789"
        assert store.get("k", 0, 3) == b"012"

    def test_what_lies_beyond_the_end_is_left_out(self, store: BlobStore) -> None:
        store.put("k", b"0123456789")
        assert store.get("k", 8, 100) == b"89"
        assert store.get("k", 10, 20) == b""

    def test_p01_a_put_overwrites(self, store: BlobStore) -> None:
        store.put("k", b"1")
        store.put("k", b"2", "overwrite")
        assert store.get("k") == b"2"

    def test_mode_create_refuses_a_taken_key_and_writes_nothing(self, store: BlobStore) -> None:
        store.put("k", b"1", "create")
        with pytest.raises(BlobExists):
            store.put("k", b"2", "create")
        assert store.get("k") == b"1"

    def test_of_many_that_create_a_key_at_once_one_wins(self, store: BlobStore) -> None:
        won: list[bytes] = []

        def create(body: bytes) -> None:
            try:
                store.put("race", body, "create")
                won.append(body)
            except BlobExists:
                pass

        threads = [threading.Thread(target=create, args=(b"%d" % i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [store.get("race")]

    def test_a_file_is_read_to_its_end(self, store: BlobStore) -> None:
        body = bytes(range(256)) * 50_000
        store.put("large", io.BytesIO(body))
        assert store.get("large") == body

    def test_a_file_is_read_from_where_it_stands(self, store: BlobStore) -> None:
        file = io.BytesIO(b"skipped, kept")
        file.seek(9)
        store.put("k", file)
        assert store.get("k") == b"kept"

    def test_a_file_is_read_once_and_need_not_seek(self, store: BlobStore) -> None:
        for size in (0, 5, PASSES_BYTES - 1, PASSES_BYTES, 2 * PASSES_BYTES + 3):
            body = (bytes(range(256)) * (size // 256 + 1))[:size]
            store.put(f"passing/{size}", cast("BinaryIO", _Passing(body)), "fresh")
            assert store.get(f"passing/{size}") == body

    def test_a_file_that_cannot_be_read_to_its_end_is_not_stored(self, store: BlobStore) -> None:
        for mode in MODES:
            for good in (0, 5, 2 * PASSES_BYTES + 3):
                for error in (LookupError("mine"), OSError(5, "mine"), FileExistsError("mine")):
                    with pytest.raises(type(error), match="mine") as raised:
                        store.put("torn", cast("BinaryIO", _Passing(b"x" * good, error)), mode)
                    assert raised.value is error
                with pytest.raises(BlobNotFound):
                    store.get("torn")
        assert list(store.list()) == []
        assert store.half_written(2**62) == []

    def test_a_fresh_blob_is_stored_as_any_other(self, store: BlobStore) -> None:
        store.put("a/b/fresh", b"1", "fresh")
        assert store.get("a/b/fresh") == b"1"
        assert [(info.key, info.size) for info in store.list()] == [("a/b/fresh", 1)]

    def test_a_file_of_the_same_store_is_stored(self, store: BlobStore) -> None:
        data = bytes(range(256)) * (40 << 10)
        store.put("x/source", data)
        with store.open_read("x/source") as file:
            store.put("x/copy", file)
        assert store.get("x/copy") == data

    def test_head_tells_the_size(self, store: BlobStore) -> None:
        store.put("k", b"12345")
        info = store.head("k")
        assert (info.key, info.size) == ("k", 5)

    def test_the_etag_changes_with_the_bytes(self, store: BlobStore) -> None:
        store.put("k", b"1")
        before = store.head("k").etag
        store.put("k", b"22")
        assert before
        assert store.head("k").etag != before

    def test_a_deleted_blob_is_gone(self, store: BlobStore) -> None:
        store.put("a", b"1")
        store.put("b", b"2")
        store.delete_many(["a"])
        assert [info.key for info in store.list()] == ["b"]

    def test_p02_deleting_what_is_not_there_is_fine(self, store: BlobStore) -> None:
        store.put("a", b"1")
        store.delete_many(["nothing", "a", "no/such/folder"])
        assert list(store.list()) == []

    def test_p03_a_list_has_all_blobs_below_a_prefix(self, store: BlobStore) -> None:
        for key in ("a/1", "a/2/x", "ab", "b/1"):
            store.put(key, key.encode())
        assert sorted(info.key for info in store.list("a")) == ["a/1", "a/2/x", "ab"]
        assert sorted(store.list_keys("a")) == ["a/1", "a/2/x", "ab"]
        assert sorted(info.key for info in store.list("a/")) == ["a/1", "a/2/x"]
        assert sorted(info.key for info in store.list("a/2/")) == ["a/2/x"]
        assert list(store.list("c")) == []
        assert len(list(store.list())) == 4

    def test_p03_a_listed_blob_is_as_head_tells_it(self, store: BlobStore) -> None:
        store.put("a/1", b"123")
        assert list(store.list("a/")) == [store.head("a/1")]

    def test_a_list_longer_than_a_page_is_complete(self, store: BlobStore) -> None:
        for i in range(1_100):
            store.put(f"many/{i:04d}", b"")
        assert sorted(info.key for info in store.list("many/")) == [f"many/{i:04d}" for i in range(1_100)]

    def test_stretches_of_a_list_have_each_key_once_and_in_order(self, store: BlobStore) -> None:
        keys = sorted(
            f"a/{name}" for name in ("b/c", "b/d", "b", "b c", "b.d/e", "é", "~", "z/1", "z/2", "z0", "\U0001f600")
        )
        keys = [key for key in keys if key != "a/b"]  # which would be a file and a folder
        for key in (*keys, "A", "a.x", "b/c"):
            store.put(key, key.encode())
        for cuts in ([], ["a/b/c"], ["a/b", "a/b/", "a/z"], ["0", "a/b/cc", "a/z/1", "zz"], ["a/é", "a/\U0001f600"]):
            edges = list(zip(["", *cuts], [*cuts, None], strict=True))
            found = [[info.key for page in store.list_between("a/", *edge) for info in page] for edge in edges]
            assert found == [[k for k in keys if k > after and (last is None or k <= last)] for after, last in edges]
        (info,) = (one for page in store.list_between("", "a/b/c", "a/b/d") for one in page)
        assert info == store.head("a/b/d")

    def test_a_list_is_cut_where_it_has_keys(self, store: BlobStore) -> None:
        for number in range(1_100):
            store.put(f"p/{number % 7}/{number:04}", b"")
        cuts = store.cuts("p/", 5)
        assert 2 <= len(cuts) <= 12
        assert cuts == sorted(set(cuts))
        edges = zip(["", *cuts], [*cuts, None], strict=True)
        sizes = [sum(len(page) for page in store.list_between("p/", *edge)) for edge in edges]
        assert sum(sizes) == 1_100
        assert max(sizes) < 800
        assert store.cuts("q/", 5) == []
        assert store.cuts("p/3/", 1) == []

    def test_a_blob_opens_as_a_seekable_file(self, store: BlobStore) -> None:
        store.put("k", b"0123456789")
        with store.open_read("k") as file:
            assert bytes(file.read(3)) == b"012"
            file.seek(8)
            assert bytes(file.read()) == b"89"

    def test_odd_keys_are_kept_as_they_are(self, store: BlobStore) -> None:
        for key in ("sp ace", "plus+", "per%20cent", "ümläut", "日本", "a=b&c", "[x]{y}", "~tilde"):
            store.put(key, key.encode())
            assert store.get(key) == key.encode()
            assert [info.key for info in store.list(key)] == [key]

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "a/../b", "./a", "a\0b", ".."])
    def test_a_key_that_breaks_the_rule_is_refused(self, store: BlobStore, key: str) -> None:
        with pytest.raises(InvalidName):
            store.put(key, b"x")
        with pytest.raises(InvalidName):
            store.get(key)

    def test_syncing_blobs_that_others_wrote_is_fine(self, store: BlobStore) -> None:
        store.put("a/1", b"1")
        store.sync(["a/1"])
        assert store.get("a/1") == b"1"
