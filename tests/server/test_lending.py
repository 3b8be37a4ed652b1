"""Which requests to the object store are signed for a client, and what a policy lets lent credentials do."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidSettings
from strandline.server.lending.lender import Lender, policy
from strandline.server.lending.scope import Scope, StorePlace, judge
from strandline.server.refusals import BadRequest, Forbidden

KEY = "0" * 20
OTHER = "1" * 20
PLACE = StorePlace("lake", "some/root/", "127.0.0.1:9000", "us-east-1")
AWS = StorePlace("lake", "some/root/", "", "eu-west-1")
READS, WRITES = f"ice/{KEY}/", f"ice/{KEY}/branch/"
FOREIGN = "data/sl_branch=x/sl_write=y/part.parquet"
BASE = "http://127.0.0.1:9000/lake/some/root/"


def scope(place: StorePlace = PLACE, writes: str = WRITES) -> Scope:
    return Scope(place, READS, writes, lambda key: key == FOREIGN)


def verdict(method: str, uri: str, headers: dict[str, list[str]] | None = None, of: Scope | None = None) -> str:
    try:
        judge(of or scope(), method, uri, headers or {})
    except Forbidden:
        return "forbidden"
    except BadRequest:
        return "bad"
    return "signed"


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", f"{BASE}ice/{KEY}/branch/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/other/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/other/data/p%3D1/a%20b.parquet?x-id=GetObject"),
        ("HEAD", f"{BASE}ice/{KEY}/branch/metadata/x.avro"),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/new.parquet"),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/new.parquet?partNumber=1&uploadId=abc"),
        ("POST", f"{BASE}ice/{KEY}/branch/data/new.parquet?uploads"),
        ("POST", f"{BASE}ice/{KEY}/branch/data/new.parquet?uploads="),
        ("POST", f"{BASE}ice/{KEY}/branch/data/new.parquet?uploadId=abc"),
        ("DELETE", f"{BASE}ice/{KEY}/branch/data/new.parquet?uploadId=abc"),
        ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix=some%2Froot%2Fice%2F{KEY}%2F&max-keys=10"),
        ("GET", f"http://127.0.0.1:9000/lake/?list-type=2&prefix=some/root/ice/{KEY}/branch/data"),
        ("GET", BASE + FOREIGN),
    ],
)
def test_what_is_signed(method: str, uri: str) -> None:
    assert verdict(method, uri) == "signed"
    is_write = method in ("PUT", "POST", "DELETE")
    assert verdict(method, uri, of=scope(writes="")) == ("forbidden" if is_write else "signed")


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", f"{BASE}ice/{OTHER}/branch/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}x/branch/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/../{OTHER}/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/%2e%2e/{OTHER}/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/.%2E/{OTHER}/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}//a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/"),
        ("GET", f"{BASE}_strandline/ranges/a.parquet"),
        ("GET", BASE),
        ("GET", "http://127.0.0.1:9000/lake"),
        ("GET", f"http://127.0.0.1:9000/other/some/root/ice/{KEY}/branch/data/a.parquet"),
        ("GET", f"http://127.0.0.1:9000/lake/ice/{KEY}/branch/data/a.parquet"),
        ("GET", f"http://other.127.0.0.1:9000/some/root/ice/{KEY}/branch/data/a.parquet"),
        ("GET", f"http://evil.example/lake/some/root/ice/{KEY}/branch/data/a.parquet"),
        ("GET", f"http://127.0.0.1/lake/some/root/ice/{KEY}/branch/data/a.parquet"),
        ("GET", f"{BASE}ice/{KEY}/branch/data/a.parquet?acl"),
        ("GET", f"{BASE}ice/{KEY}/branch/data/a.parquet?versionId=1"),
        ("GET", f"{BASE}data/sl_branch=x/sl_write=y/other.parquet"),
        ("PUT", f"{BASE}ice/{KEY}/other/data/new.parquet"),
        ("PUT", BASE + FOREIGN),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/new.parquet?acl"),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/new.parquet?tagging"),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/new.parquet?partNumber=1"),
        ("POST", "http://127.0.0.1:9000/lake?delete"),
        ("POST", f"{BASE}ice/{KEY}/branch/data/new.parquet?restore"),
        ("DELETE", f"{BASE}ice/{KEY}/branch/data/a.parquet"),
        ("DELETE", f"{BASE}ice/{KEY}/branch/data/a.parquet?versionId=1"),
        # some stores take this for the deletion of the object
        ("DELETE", f"{BASE}ice/{KEY}/branch/data/a.parquet?uploadId="),
        ("DELETE", f"{BASE}ice/{KEY}/branch/data/a.parquet?uploadId=../../"),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/a.parquet?partNumber=1&uploadId="),
        ("PUT", f"{BASE}ice/{KEY}/branch/data/a.parquet?partNumber=x&uploadId=abc"),
        # a store that knows no buckets in hosts takes "some" for the bucket
        ("GET", f"http://lake.127.0.0.1:9000/some/root/ice/{KEY}/branch/data/a.parquet"),
        ("PATCH", f"{BASE}ice/{KEY}/branch/data/a.parquet"),
        ("get", f"{BASE}ice/{KEY}/branch/data/a.parquet"),
        ("GET", "http://127.0.0.1:9000/lake?list-type=2"),
        ("GET", "http://127.0.0.1:9000/lake?list-type=2&prefix="),
        ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix=some/root/ice/{KEY}"),
        ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix=some/root/ice/{KEY}/../"),
        ("GET", "http://127.0.0.1:9000/lake?list-type=2&prefix=some/root/"),
        ("GET", f"http://127.0.0.1:9000/lake?list-type=2&versions&prefix=some/root/ice/{KEY}/"),
    ],
)
def test_what_is_more_than_a_table(method: str, uri: str) -> None:
    assert verdict(method, uri) == "forbidden"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "x",
        "ftp://127.0.0.1:9000/lake/x",
        f"http://user@127.0.0.1:9000/lake/some/root/ice/{KEY}/branch/data/a",
        f"{BASE}ice/{KEY}/branch/data/a#b",
        f"{BASE}ice/{KEY}/branch/data/a\n",
        f"{BASE}ice/{KEY}/branch/data/ü",
        f"http://127.0.0.1:9000/lake?list-type=2&prefix=some/root/ice/{KEY}/&prefix=",
        f"http://[::1/lake/some/root/ice/{KEY}/branch/data/a",
        f"{BASE}ice/{KEY}/branch/data/%FF",
        BASE + "x" * 5_000,
    ],
)
def test_what_is_no_request(uri: str) -> None:
    assert verdict("GET", uri) == "bad"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Range": ["bytes=0-9"], "x-amz-content-sha256": ["UNSIGNED-PAYLOAD"], "X-Amz-Date": ["x"]}, "signed"),
        ({"x-amz-checksum-crc64nvme": ["abc"], "x-amz-sdk-checksum-algorithm": ["CRC32"]}, "signed"),
        ({"x-amz-content-sha256": ["STREAMING-UNSIGNED-PAYLOAD-TRAILER"], "x-amz-trailer": ["x"]}, "signed"),
        ({"x-amz-content-sha256": ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD"]}, "forbidden"),
        ({"x-amz-copy-source": ["/lake/secret"]}, "forbidden"),
        ({"X-Amz-Copy-Source": ["/lake/secret"]}, "forbidden"),
        ({"x-amz-acl": ["public-read"]}, "forbidden"),
        ({"x-amz-grant-read": ["x"]}, "forbidden"),
        ({"x-amz-tagging": ["x"]}, "forbidden"),
        ({"x-amz-storage-class": ["GLACIER"]}, "forbidden"),
        ({"x-amz-object-lock-mode": ["COMPLIANCE"]}, "forbidden"),
        ({"x-amz-website-redirect-location": ["x"]}, "forbidden"),
        ({"x-y": ["a\r\nx-amz-acl: public-read"]}, "bad"),
    ],
)
def test_which_headers_are_signed(headers: dict[str, list[str]], expected: str) -> None:
    assert verdict("PUT", f"{BASE}ice/{KEY}/branch/data/a.parquet", headers) == expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (f"https://lake.s3.eu-west-1.amazonaws.com/some/root/ice/{KEY}/b/data/a", "signed"),
        (f"https://lake.s3.amazonaws.com/some/root/ice/{KEY}/b/data/a", "signed"),
        (f"https://s3.eu-west-1.amazonaws.com/lake/some/root/ice/{KEY}/b/data/a", "signed"),
        (f"https://lake.s3.dualstack.eu-west-1.amazonaws.com/some/root/ice/{KEY}/b/data/a", "signed"),
        (f"https://other.s3.eu-west-1.amazonaws.com/some/root/ice/{KEY}/b/data/a", "forbidden"),
        (f"https://lake.s3.eu-west-1.amazonaws.com.evil.example/some/root/ice/{KEY}/b/data/a", "forbidden"),
        (f"https://lake.sts.eu-west-1.amazonaws.com/some/root/ice/{KEY}/b/data/a", "forbidden"),
    ],
)
def test_the_hosts_of_amazon(uri: str, expected: str) -> None:
    assert verdict("GET", uri, of=scope(AWS)) == expected


@given(
    st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]),
    st.lists(st.sampled_from(["ice", KEY, OTHER, "branch", "data", "..", ".", "", "%2e%2e", "%2F", "a", "%00", "é"])),
    st.lists(st.tuples(st.sampled_from(["uploads", "uploadId", "partNumber", "acl", "x-id", "delete"]), st.text())),
)
def test_nothing_signed_leads_out_of_the_table(method: str, parts: list[str], query: list[tuple[str, str]]) -> None:
    """Whatever is signed means, decoded once as the store does, a key below the table's prefix."""
    from urllib.parse import unquote, urlsplit

    uri = BASE + "/".join(parts)
    if query:
        uri += "?" + "&".join(f"{name}={quote(value)}" for name, value in query)
    if verdict(method, uri) != "signed":
        return
    key = unquote(urlsplit(uri).path).removeprefix("/lake/some/root/")
    below = READS if method in ("GET", "HEAD") else WRITES
    assert key.startswith(below)
    assert not {"..", ".", ""} & set(key.split("/"))
    assert not {"acl", "delete"} & {name for name, _ in query}


def allows(text: str, action: str, key: str) -> bool:
    """Whether a policy allows an action on a key, or on the bucket with the key as prefix."""
    for one in json.loads(text)["Statement"]:
        assert one["Effect"] == "Allow"
        actions = [one["Action"]] if isinstance(one["Action"], str) else one["Action"]
        if action not in actions:
            continue
        if "Condition" in one:
            return fnmatchcase(key, one["Condition"]["StringLike"]["s3:prefix"])
        if fnmatchcase(f"arn:aws:s3:::lake/{key}", one["Resource"]):
            return True
    return False


def test_a_policy_is_of_one_table_and_deletes_nothing() -> None:
    text = policy(scope())
    own, other, branch = (f"some/root/ice/{one}" for one in (f"{KEY}/branch/x", f"{OTHER}/branch/x", f"{KEY}/other/x"))
    assert allows(text, "s3:GetObject", own)
    assert allows(text, "s3:GetObject", branch)
    assert not allows(text, "s3:GetObject", other)
    assert allows(text, "s3:PutObject", own)
    assert not allows(text, "s3:PutObject", branch)
    assert allows(text, "s3:ListBucket", own)
    assert not allows(text, "s3:ListBucket", other)
    assert "Delete" not in text
    assert not allows(policy(scope(writes="")), "s3:PutObject", own)
    assert len(text) < 2_048  # what an STS takes


def test_a_server_without_credentials_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidSettings, match="no credentials"):
        Lender().check()


def test_headers_that_say_whose_request_it_is_are_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's Host would make the signature one for another bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    given = {
        "Host": ["other.127.0.0.1:9000"],
        "HOST": ["third"],
        "authorization": ["x"],
        "X-Amz-Date": ["19700101T000000Z"],
        "x-amz-security-token": ["stolen"],
        "Range": ["bytes=0-1"],
    }
    made = Lender().signed(PLACE, "GET", f"{BASE}ice/{KEY}/branch/data/a", given)
    lower = {name.lower(): value for name, value in made.items()}
    assert lower.get("host", ["127.0.0.1:9000"]) == ["127.0.0.1:9000"]
    assert lower["authorization"][0].startswith("AWS4-HMAC-SHA256 Credential=AK/")
    assert "host" in lower["authorization"][0]
    assert lower["x-amz-date"] != given["X-Amz-Date"]
    assert "x-amz-security-token" not in lower
    assert lower["range"] == ["bytes=0-1"]
