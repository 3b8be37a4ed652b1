"""The Range header, and conditions of GET: against a plain model of RFC 9110, and over both interfaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.server.ranges import NotSatisfiable, wanted_range
from tests.server.inside import BASE, body_of, inside, run

numbers = st.integers(0, 12) | st.just(None)


@given(first=numbers, last=numbers, size=st.integers(0, 8))
def test_a_range_is_what_the_bytes_say(first: int | None, last: int | None, size: int) -> None:
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    data = bytes(range(size))
    if first is None:
        expected = data[max(0, size - last) :] if last else b""
    else:
        expected = data[first:] if last is None else data[first : last + 1]
    is_malformed = (first is None and last is None) or (first is not None and last is not None and last < first)
    try:
        found = wanted_range(header, size)
    except NotSatisfiable:
        assert not is_malformed
        assert expected == b""
        return
    assert (found is None) == is_malformed
    if found is not None:
        assert data[found[0] : found[1]] == expected != b""


@pytest.mark.parametrize(
    "header", ["", "bytes=", "bytes=a-b", "bytes=1-2,4-5", "items=0-1", "bytes=-", "bytes=" + "1" * 99]
)
def test_what_is_no_range_is_passed_over(header: str) -> None:
    assert wanted_range(header, 10) is None


def test_both_interfaces_answer_ranges_and_conditions_alike() -> None:
    async def test() -> None:
        with inside() as server:
            main = server.lake.create_repository("repo").branch("main")
            main.put("x", b"hello")
            main.put("empty", b"")
            target = f"{BASE}/repositories/repo/refs/main/objects?path="

            async def both(path: str, **headers: str) -> set[tuple[int, bytes, bytes]]:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                found = set()
                for response in (
                    await server.ask("GET", target + path, headers=named),
                    await server.sign("GET", f"/repo/main/{path}", b"", None, **named),
                ):
                    held = dict(response.headers)
                    data = body_of(response) if response.status in (200, 206) else b""
                    found.add((response.status, data, held.get(b"Content-Range", b"")))
                return found

            assert await both("x", range="bytes=1-2") == {(206, b"el", b"bytes 1-2/5")}
            assert await both("x", range="bytes=3-") == {(206, b"lo", b"bytes 3-4/5")}
            for behind in ("bytes=5-", "bytes=9-", "bytes=7-8", "bytes=-0"):
                assert await both("x", range=behind) == {(416, b"", b"bytes */5")}, behind
            assert await both("empty", range="bytes=0-") == {(416, b"", b"bytes */0")}
            etag = dict((await server.ask("GET", target + "x")).headers)[b"ETag"].decode()
            assert await both("x", range="bytes=1-2", if_range=etag) == {(206, b"el", b"bytes 1-2/5")}
            assert await both("x", range="bytes=1-2", if_range='"other"') == {(200, b"hello", b"")}
            assert await both("x", range="bytes=1-2", if_range="Sat, 01 Jan 2000 00:00:00 GMT") == {
                (200, b"hello", b"")
            }
            assert await both("x", if_none_match=etag) == {(304, b"", b"")}
            assert await both("x", if_match='"other"', if_none_match=etag) == {(412, b"", b"")}
            assert await both("x", if_unmodified_since="Sat, 01 Jan 2000 00:00:00 GMT") == {(412, b"", b"")}
            assert await both("x", if_modified_since="Fri, 01 Jan 2100 00:00:00 GMT") == {(304, b"", b"")}

    run(test())
