"""Chunks that are written beside their reader: all of them, in order, or the first error."""

from __future__ import annotations

import threading

import pytest

from strandline.blob.write_behind import DIRECT_CHUNKS, WriteBehind

MANY = [bytes([n]) * 3 for n in range(1, DIRECT_CHUNKS + 30)]


@pytest.mark.parametrize("count", [0, 1, DIRECT_CHUNKS, DIRECT_CHUNKS + 1, len(MANY)])
def test_all_chunks_in_their_order(count: int) -> None:
    found: list[bytes] = []
    with WriteBehind(found.append) as out:
        for chunk in MANY[:count]:
            out.write(chunk)
    assert found == MANY[:count]


@pytest.mark.parametrize("at", [0, DIRECT_CHUNKS - 1, DIRECT_CHUNKS, DIRECT_CHUNKS + 5, len(MANY) - 1])
def test_an_error_reaches_the_reader_and_ends_the_writing(at: int) -> None:
    found: list[bytes] = []

    def write(chunk: bytes) -> None:
        if len(found) == at:
            raise OSError("the disk is full")
        found.append(chunk)

    def copy() -> None:
        with WriteBehind(write) as out:
            for chunk in MANY:
                out.write(chunk)

    with pytest.raises(OSError, match="full"):
        copy()
    assert found == MANY[:at]
    assert not [one for one in threading.enumerate() if one.name == "strandline-write"]


def test_a_reader_that_fails_leaves_nothing_running() -> None:
    found: list[bytes] = []

    def copy() -> None:
        with WriteBehind(found.append) as out:
            for chunk in MANY:
                out.write(chunk)
            raise ValueError("no more can be read")

    with pytest.raises(ValueError, match="no more"):
        copy()
    assert found == MANY[: len(found)]
    assert not [one for one in threading.enumerate() if one.name == "strandline-write"]


def test_without_more_threads_chunks_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found: list[bytes] = []
    with WriteBehind(found.append) as out:
        for chunk in MANY:
            out.write(chunk)
    assert found == MANY
