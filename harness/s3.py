"""Runs S3 servers for tests and the demo: versitygw, or MinIO to compare; or uses a server that already runs.

python -m harness.s3            versitygw until Ctrl-C; prints what a client needs
python -m harness.s3 --fetch    only build both
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from harness import PartMissingError
from harness.aws import REGION, AwsEndpoint
from harness.golang import GoProgram
from harness.server import Server

VERSITYGW = GoProgram("versitygw", "v1.8.0", "github.com/versity/versitygw/cmd/versitygw", "versitygw")
MINIO = GoProgram("minio", "v0.0.0-20260212201848-7aac2a2c5b7c", "github.com/minio/minio", "minio")
KMS_KEY = "tables"
"""The id of the key that `Minio` has."""


@dataclass(frozen=True, slots=True)
class S3Endpoint(AwsEndpoint):
    """The URL and credentials of an S3 server; addresses are path-style."""

    service = "s3"
    config = AwsEndpoint.config.merge(Config(s3={"addressing_style": "path"}))

    def make_bucket(self) -> str:
        """Create a bucket; returns its name. It is removed with our own server, and stays on another one."""
        name = f"committerd-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name

    def remove_bucket(self, name: str) -> None:
        """Remove a bucket and its objects."""
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for found in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=found["Key"])
        client.delete_bucket(Bucket=name)

    def storage_options(self) -> dict[str, str]:
        """The `storage_options` for pylance."""
        return {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": self.region,
            "aws_endpoint": self.url,
            "allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }

    def through(self, url: str) -> S3Endpoint:
        """The same server through a proxy at `url`."""
        return S3Endpoint(url, self.access_key, self.secret_key, self.region)


class _S3Server(Server):
    def __init__(self) -> None:
        super().__init__()
        self.access_key = secrets.token_hex(8)
        self.secret_key = secrets.token_hex(16)
        self.data = self.folder / "data"
        self.data.mkdir()

    @property
    def endpoint(self) -> S3Endpoint:
        """Its URL and credentials."""
        return S3Endpoint(self.url, self.access_key, self.secret_key)

    def answers(self) -> bool:
        try:
            self.endpoint.client().list_buckets()  # only our own server knows these keys
        except (BotoCoreError, ClientError):
            return False
        return True


class Versitygw(_S3Server):
    """versitygw on a folder: objects are files in `data/BUCKET`."""

    name = "versitygw"

    def __init__(self, *, logs_requests: bool = False) -> None:
        """`logs_requests`: whether it writes each request to `requests`."""
        super().__init__()
        self._logs_requests = logs_requests
        self.requests = self.folder / "requests.log"
        """A line for each request, in the format of S3's server access logs, with names such as `s3_GetObject`."""

    def command(self, port: int) -> Sequence[str | Path]:
        logged = ("--access-log", self.requests) if self._logs_requests else ()
        options = ("--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", *logged)
        return [VERSITYGW.built(), *options, "posix", self.data]

    def environment(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}


class Minio(_S3Server):
    """MinIO with one drive, and one key for encryption by SSE-KMS."""

    name = "minio"

    def command(self, port: int) -> Sequence[str | Path]:
        return [MINIO.built(), "server", "--quiet", "--address", f"127.0.0.1:{port}", self.data]

    def environment(self) -> Mapping[str, str]:
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{base64.b64encode(secrets.token_bytes(32)).decode()}",
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }


def given_endpoint() -> S3Endpoint | None:
    """The server in `COMMITTERD_TEST_S3_ENDPOINT`, with the keys in the usual AWS variables; None if it is not set."""
    url = os.environ.get("COMMITTERD_TEST_S3_ENDPOINT")
    if not url:
        return None
    try:
        access_key, secret_key = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    except KeyError as error:
        raise PartMissingError(f"COMMITTERD_TEST_S3_ENDPOINT is set and {error.args[0]} is not: set it too") from None
    return S3Endpoint(url, access_key, secret_key, os.environ.get("AWS_REGION", REGION))


@contextlib.contextmanager
def s3_server() -> Iterator[S3Endpoint]:
    """The S3 server in `COMMITTERD_TEST_S3_ENDPOINT`, else our own versitygw.

    Raises `PartMissingError` if it can't be built.
    """
    given = given_endpoint()
    if given is not None:
        yield given
        return
    with Versitygw() as server:
        yield server.endpoint


def _main() -> None:
    try:
        with Versitygw() as server, contextlib.suppress(KeyboardInterrupt):
            for name, value in server.endpoint.storage_options().items():
                print(f"{name}={value}", flush=True)
            threading.Event().wait()
    except PartMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
