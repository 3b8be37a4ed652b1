"""The tools that people have, each doing the same things through the server: a row a tool, a column an operation.

A tool that lacks a method does not do that. Paths are those of the branch `main` of a repository.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from tests.harness.serving import Served

MIB = 1 << 20


def is_refused(status: int) -> bool:
    """Whether a write was refused for what was there; any other failure of it is one of the test."""
    if status != 412:
        raise AssertionError(f"status {status}")
    return True


class Tool(ABC):
    """What every row begins with.

    Args:
        repository: whose branch `main` is used.
    """

    def __init__(self, served: Served, repository: str) -> None:
        self.served = served
        self.repository = repository
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Connect the tool to the server."""


class LakefsSdk(Tool):
    def open(self) -> None:
        self.sdk: Any = importlib.import_module("lakefs_sdk")
        made = self.sdk.Configuration(host=self.served.address, username=self.served.key, password=self.served.secret)
        self.client: Any = importlib.import_module("lakefs_sdk.client").LakeFSClient(made)

    def write(self, path: str, data: bytes) -> None:
        self.client.objects_api.upload_object(self.repository, "main", path, content=data)

    def read(self, path: str) -> bytes:
        return bytes(self.client.objects_api.get_object(self.repository, "main", path))

    def read_part(self, path: str, start: int, end: int) -> bytes:
        wanted = f"bytes={start}-{end - 1}"
        return bytes(self.client.objects_api.get_object(self.repository, "main", path, range=wanted))

    def size(self, path: str) -> int:
        return int(self.client.objects_api.stat_object(self.repository, "main", path).size_bytes)

    def list(self, prefix: str) -> Any:
        found: Any = []
        after = ""
        while True:
            page = self.client.objects_api.list_objects(self.repository, "main", prefix=prefix, after=after, amount=2)
            found += [one.path for one in page.results]
            if not page.pagination.has_more:
                return found
            after = page.pagination.next_offset

    def delete(self, path: str) -> None:
        self.client.objects_api.delete_object(self.repository, "main", path)

    def delete_many(self, paths: Any) -> None:
        listed = self.sdk.PathList(paths=paths)
        assert not self.client.objects_api.delete_objects(self.repository, "main", listed).errors

    def copy(self, source: str, target: str) -> None:
        made = self.sdk.ObjectCopyCreation(src_path=source)
        self.client.objects_api.copy_object(self.repository, "main", target, made)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self.client.objects_api.upload_object(self.repository, "main", path, content=data, if_none_match="*")
        except self.sdk.exceptions.ApiException as error:
            return not is_refused(error.status)
        return True


class LakefsHighLevel(Tool):
    def open(self) -> None:
        import lakefs
        from lakefs.client import Client

        client = Client(host=self.served.address, username=self.served.key, password=self.served.secret)
        self.branch: Any = lakefs.Repository(self.repository, client=client).branch("main")
        self.errors = lakefs.exceptions

    def write(self, path: str, data: bytes) -> None:
        self.branch.object(path).upload(data=data, mode="wb")

    def read(self, path: str) -> bytes:
        return bytes(self.branch.object(path).reader(mode="rb").read())

    def read_part(self, path: str, start: int, end: int) -> bytes:
        with self.branch.object(path).reader(mode="rb") as file:
            file.seek(start)
            return bytes(file.read(end - start))

    def size(self, path: str) -> int:
        return int(self.branch.object(path).stat().size_bytes or 0)

    def list(self, prefix: str) -> Any:
        return [one.path for one in self.branch.objects(prefix=prefix)]

    def delete(self, path: str) -> None:
        self.branch.object(path).delete()

    def delete_many(self, paths: Any) -> None:
        self.branch.delete_objects(paths)

    def copy(self, source: str, target: str) -> None:
        self.branch.object(source).copy("main", target)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self.branch.object(path).upload(data=data, mode="xb")
        except self.errors.ObjectExistsException:
            return False
        return True


class Fsspec(Tool):
    """What the tools that are file systems of fsspec have in common."""

    fs: Any
    root: str

    def write(self, path: str, data: bytes) -> None:
        with self.fs.open(f"{self.root}/{path}", "wb") as file:
            file.write(data)

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(f"{self.root}/{path}"))

    def read_part(self, path: str, start: int, end: int) -> bytes:
        with self.fs.open(f"{self.root}/{path}", "rb") as file:
            file.seek(start)
            return bytes(file.read(end - start))

    def size(self, path: str) -> int:
        return int(self.fs.info(f"{self.root}/{path}")["size"])

    def list(self, prefix: str) -> Any:
        found = self.fs.find(f"{self.root}/{prefix}")
        return sorted(name.removeprefix(f"{self.root}/") for name in found)

    def delete(self, path: str) -> None:
        self.fs.rm(f"{self.root}/{path}")


class LakefsSpec(Fsspec):
    def open(self) -> None:
        from lakefs_spec import LakeFSFileSystem

        self.fs = LakeFSFileSystem(
            host=self.served.address,
            username=self.served.key,
            password=self.served.secret,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self.root = f"{self.repository}/main"

    def copy(self, source: str, target: str) -> None:
        self.fs.cp_file(f"{self.root}/{source}", f"{self.root}/{target}")


class S3fs(Fsspec):
    def open(self) -> None:
        import s3fs

        self.fs = s3fs.S3FileSystem(
            key=self.served.key,
            secret=self.served.secret,
            endpoint_url=self.served.address,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self.root = f"{self.repository}/main"

    def copy(self, source: str, target: str) -> None:
        self.fs.copy(f"{self.root}/{source}", f"{self.root}/{target}")

    def delete_many(self, paths: Any) -> None:
        self.fs.rm([f"{self.root}/{path}" for path in paths])

    def rename(self, source: str, target: str) -> None:
        self.fs.mv(f"{self.root}/{source}", f"{self.root}/{target}")


def boto_client(served: Served, **options: Any) -> Any:
    """A client of boto3 that signs by version 4."""
    import boto3
    from botocore.config import Config

    settings: dict[str, Any] = {"signature_version": "s3v4", "retries": {"max_attempts": 1}}
    return boto3.client(
        "s3",
        endpoint_url=served.address,
        aws_access_key_id=options.pop("key", served.key),
        aws_secret_access_key=options.pop("secret", served.secret),
        region_name="us-east-1",
        config=Config(**settings, **options),
    )


class Boto3(Tool):
    def open(self) -> None:
        import botocore.exceptions

        self.client = boto_client(self.served)
        self.failed = botocore.exceptions.ClientError

    def write(self, path: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.repository, Key=f"main/{path}", Body=data)

    def read(self, path: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.repository, Key=f"main/{path}")["Body"].read())

    def read_part(self, path: str, start: int, end: int) -> bytes:
        wanted = f"bytes={start}-{end - 1}"
        found = self.client.get_object(Bucket=self.repository, Key=f"main/{path}", Range=wanted)
        return bytes(found["Body"].read())

    def size(self, path: str) -> int:
        return int(self.client.head_object(Bucket=self.repository, Key=f"main/{path}")["ContentLength"])

    def list(self, prefix: str) -> Any:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.repository, Prefix=f"main/{prefix}", PaginationConfig={"PageSize": 2}
        )
        return [one["Key"].removeprefix("main/") for page in pages for one in page.get("Contents", [])]

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket=self.repository, Key=f"main/{path}")

    def delete_many(self, paths: Any) -> None:
        keys = [{"Key": f"main/{path}"} for path in paths]
        found = self.client.delete_objects(Bucket=self.repository, Delete={"Objects": keys})
        assert "Errors" not in found
        assert len(found["Deleted"]) == len(paths)

    def copy(self, source: str, target: str) -> None:
        given = {"Bucket": self.repository, "Key": f"main/{source}"}
        self.client.copy_object(Bucket=self.repository, Key=f"main/{target}", CopySource=given)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self.client.put_object(Bucket=self.repository, Key=f"main/{path}", Body=data, IfNoneMatch="*")
        except self.failed as error:
            return not is_refused(error.response["ResponseMetadata"]["HTTPStatusCode"])
        return True

    def write_in_parts(self, path: str, data: bytes) -> None:
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=4)
        self.client.upload_fileobj(io.BytesIO(data), self.repository, f"main/{path}", Config=config)


class Obstore(Tool):
    def open(self) -> None:
        from obstore.store import S3Store

        self.store = S3Store(
            self.repository,
            prefix="main",
            endpoint=self.served.address,
            access_key_id=self.served.key,
            secret_access_key=self.served.secret,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def write(self, path: str, data: bytes) -> None:
        import obstore

        obstore.put(self.store, path, data)

    def read(self, path: str) -> bytes:
        import obstore

        return bytes(obstore.get(self.store, path).bytes())

    def read_part(self, path: str, start: int, end: int) -> bytes:
        import obstore

        return bytes(obstore.get_range(self.store, path, start=start, end=end))

    def size(self, path: str) -> int:
        import obstore

        return int(obstore.head(self.store, path)["size"])

    def list(self, prefix: str) -> Any:
        import obstore

        return sorted(str(one["path"]) for page in obstore.list(self.store, prefix) for one in page)

    def delete(self, path: str) -> None:
        import obstore

        obstore.delete(self.store, path)

    def delete_many(self, paths: Any) -> None:
        import obstore

        obstore.delete(self.store, paths)

    def copy(self, source: str, target: str) -> None:
        import obstore

        obstore.copy(self.store, source, target)

    def create(self, path: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self.store, path, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def write_in_parts(self, path: str, data: bytes) -> None:
        import obstore

        obstore.put(self.store, path, data, use_multipart=True, chunk_size=5 * MIB)


class Pyarrow(Tool):
    def open(self) -> None:
        from pyarrow import fs

        self.fs = fs.S3FileSystem(
            access_key=self.served.key,
            secret_key=self.served.secret,
            endpoint_override=self.served.host,
            scheme="http",
            region="us-east-1",
        )
        self.root = f"{self.repository}/main"

    def write(self, path: str, data: bytes) -> None:
        with self.fs.open_output_stream(f"{self.root}/{path}") as file:
            file.write(data)

    def read(self, path: str) -> bytes:
        with self.fs.open_input_stream(f"{self.root}/{path}") as file:
            return bytes(file.read())

    def read_part(self, path: str, start: int, end: int) -> bytes:
        with self.fs.open_input_file(f"{self.root}/{path}") as file:
            return bytes(file.read_at(end - start, start))

    def size(self, path: str) -> int:
        return int(self.fs.get_file_info(f"{self.root}/{path}").size)

    def list(self, prefix: str) -> Any:
        from pyarrow import fs

        found = self.fs.get_file_info(fs.FileSelector(f"{self.root}/{prefix}".rstrip("/"), recursive=True))
        return sorted(one.path.removeprefix(f"{self.root}/") for one in found if one.type == fs.FileType.File)

    def delete(self, path: str) -> None:
        self.fs.delete_file(f"{self.root}/{path}")

    def copy(self, source: str, target: str) -> None:
        self.fs.copy_file(f"{self.root}/{source}", f"{self.root}/{target}")

    def rename(self, source: str, target: str) -> None:
        self.fs.move(f"{self.root}/{source}", f"{self.root}/{target}")

    def write_in_parts(self, path: str, data: bytes) -> None:
        with self.fs.open_output_stream(f"{self.root}/{path}", buffer_size=0) as file:
            for first in range(0, len(data), MIB):
                file.write(data[first : first + MIB])


class AwsCli(Tool):
    """The command line of AWS, whose libraries lie beside those of the tests: `scripts/setup.sh servers`."""

    def open(self) -> None:
        place = Path(__file__).parents[2] / ".cache" / "aws-cli"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
            "PYTHONPATH": str(place),
            "AWS_ACCESS_KEY_ID": self.served.key,
            "AWS_SECRET_ACCESS_KEY": self.served.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": str(self.served.folder.parent / "aws-config"),
        }
        # its links are signed by version 2 unless it is told otherwise
        (self.served.folder.parent / "aws-config").write_text("[default]\ns3 =\n  signature_version = s3v4\n")
        self.root = f"s3://{self.repository}/main"

    def run(self, *arguments: str, data: bytes = b"") -> bytes:
        command = [sys.executable, "-m", "awscli", "--endpoint-url", self.served.address, *arguments]
        done = subprocess.run(command, input=data, capture_output=True, env=self.environment, timeout=60)
        if done.returncode:
            raise AssertionError(done.stderr.decode())
        return done.stdout

    def write(self, path: str, data: bytes) -> None:
        self.run("s3", "cp", "-", f"{self.root}/{path}", data=data)

    def read(self, path: str) -> bytes:
        return self.run("s3", "cp", f"{self.root}/{path}", "-")

    def list(self, prefix: str) -> Any:
        shown = self.run("s3api", "list-objects-v2", "--bucket", self.repository, "--prefix", f"main/{prefix}")
        return [one["Key"].removeprefix("main/") for one in json.loads(shown)["Contents"]]

    def delete(self, path: str) -> None:
        self.run("s3", "rm", f"{self.root}/{path}")

    def copy(self, source: str, target: str) -> None:
        self.run("s3", "cp", f"{self.root}/{source}", f"{self.root}/{target}")

    def rename(self, source: str, target: str) -> None:
        self.run("s3", "mv", f"{self.root}/{source}", f"{self.root}/{target}")

    def write_in_parts(self, path: str, data: bytes) -> None:
        self.write(path, data)  # above 8 MiB it makes parts by itself


class DuckDb(Tool):
    """DuckDB reads and writes by way of fsspec: its own extension for S3 is in no registry of packages."""

    def open(self) -> None:
        import duckdb
        import s3fs
        from lakefs_spec import LakeFSFileSystem

        endpoint = {"endpoint_url": self.served.address}
        self.connection = duckdb.connect()
        self.connection.register_filesystem(
            s3fs.S3FileSystem(key=self.served.key, secret=self.served.secret, client_kwargs=endpoint)
        )
        self.connection.register_filesystem(
            LakeFSFileSystem(host=self.served.address, username=self.served.key, password=self.served.secret)
        )

    def scan(self, scheme: str, pattern: str) -> Any:
        place = f"{scheme}://{self.repository}/main/{pattern}"
        return self.connection.execute(f"select count(*), sum(a) from read_parquet('{place}')").fetchone()

    def write_table(self, path: str, rows: int) -> None:
        place = f"s3://{self.repository}/main/{path}"
        self.connection.execute(f"copy (select range as a from range({rows})) to '{place}' (format parquet)")


TOOLS: tuple[type[Tool], ...] = (LakefsSdk, LakefsHighLevel, LakefsSpec, Boto3, S3fs, Obstore, Pyarrow, AwsCli)
OPERATIONS = (
    "write",
    "read",
    "read_part",
    "size",
    "list",
    "delete",
    "delete_many",
    "copy",
    "rename",
    "create",
    "write_in_parts",
)


def cells() -> list[tuple[type[Tool], str]]:
    """Each tool with each operation that it has."""
    return [(tool, operation) for tool in TOOLS for operation in OPERATIONS if hasattr(tool, operation)]
