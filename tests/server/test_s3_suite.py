"""versitygw's own tests of S3 against the gateway, each a process: `make s3-suite`.

What fails is listed with a reason in s3_suite.txt. A case that passes now must leave the list, and the list may only
get shorter.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness import servers
from tests.harness.serving import Served, serving
from tests.server.tools import boto_client

pytestmark = [pytest.mark.suite, pytest.mark.server, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]
EXPECTED = Path(__file__).parent / "s3_suite.txt"
ABOUT = re.compile(
    r"(?:Authentication|PresignedAuth|PutObject|GetObject|HeadObject|CopyObject|UploadPart|CreateMultipartUpload"
    r"|CompleteMultipartUpload|AbortMultipartUpload|ListParts|ListMultipartUploads|ListObjects|ListObjectsV2"
    r"|DeleteObject|DeleteObjects|SignedStreaming|UnsignedStreaming|HeadBucket|ListBuckets|CreateBucket|DeleteBucket)"
    r"[A-Za-z0-9]*_\w+"
)
LEFT_OUT = re.compile(
    r"Acl|Policy|Tagging|Lock|Versioning|legal|retention|Ownership|Cors|website|Attributes|Configuration|ObjectVersions"
)
"""What the gateway does not have at all."""


def cases(program: str) -> list[str]:
    told = subprocess.run([program, "test", "--help"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^\s+(\w+)\s+Runs \w+ integration test", told, re.M)
    return sorted(name for name in names if ABOUT.fullmatch(name) and not LEFT_OUT.search(name))


def outcome(program: str, served: Served, case: str) -> str:
    """Nothing if a case passes, else what it said."""
    command = [program, "test", "-a", served.key, "-s", served.secret, "-e", served.address, case]
    env = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, cwd=Path(program).parent)
    except subprocess.TimeoutExpired:
        return "it did not end"
    told = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    return "" if "PASS" in told and "FAIL" not in told else told


def clean(served: Served) -> None:
    """Delete what a case that failed has left: all cases use the same names of buckets."""
    client = boto_client(served)
    for bucket in client.list_buckets()["Buckets"]:
        name = bucket["Name"]
        while found := client.list_objects_v2(Bucket=name).get("Contents", []):
            client.delete_objects(Bucket=name, Delete={"Objects": [{"Key": one["Key"]} for one in found]})
        client.delete_bucket(Bucket=name)


def test_versitygw_tests_the_gateway(tmp_path: Path) -> None:
    program = servers.needed("STRANDLINE_TEST_VERSITYGW", "versitygw")
    expected = dict(line.split(": ", 1) for line in EXPECTED.read_text().splitlines() if line and line[0] != "#")
    failed: dict[str, str] = {}
    with serving(tmp_path, "lake", "--s3-flat", "main") as served:
        every = cases(program)
        for case in every:
            if told := outcome(program, served, case):
                failed[case] = told[:300]
                clean(served)
    print(f"{len(every)} cases, {len(every) - len(failed)} passed, {len(failed)} failed, {len(expected)} expected to")
    Path(os.environ.get("STRANDLINE_TEST_SUITE_LOG", os.devnull)).write_text(
        "".join(f"{case}: {' '.join(told.split())}\n" for case, told in sorted(failed.items()))
    )
    assert {case: told for case, told in failed.items() if case not in expected} == {}
    assert sorted(set(expected) - set(failed)) == [], "these pass now: take them off the list"
