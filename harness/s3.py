"""S3 servers for tests and the demo: versitygw, MinIO as the second opinion, or one that somebody else runs.

python -m harness.s3            versitygw until Ctrl-C; prints what a client needs
python -m harness.s3 --fetch    only build both
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class S3Endpoint(AwsEndpoint):
    """Where an S3 server is, and who we are there; addresses are path-style."""

    service = "s3"
    config = AwsEndpoint.config.merge(Config(s3={"addressing_style": "path"}))

    def make_bucket(self) -> str:
        """A new bucket's name; it goes with the server, or stays where somebody else runs it."""
        name = f"committerd-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name

    def remove_bucket(self, name: str) -> None:
        """With all that is in it."""
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for found in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=found["Key"])
        client.delete_bucket(Bucket=name)

    def storage_options(self) -> dict[str, str]:
        """What pylance takes as `storage_options`."""
        return {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": self.region,
            "aws_endpoint": self.url,
            "allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }

    def through(self, url: str) -> S3Endpoint:
        """The same server by way of a proxy at `url`."""
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
        """How to get there."""
        return S3Endpoint(self.url, self.access_key, self.secret_key)

    def answers(self) -> bool:
        try:
            self.endpoint.client().list_buckets()  # with these keys: only ours knows them
        except (BotoCoreError, ClientError):
            return False
        return True


class Versitygw(_S3Server):
    """versitygw over a folder: objects are the files below `data/BUCKET`."""

    name = "versitygw"

    def command(self, port: int) -> Sequence[str | Path]:
        return [VERSITYGW.built(), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", "posix", self.data]

    def environment(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}


class Minio(_S3Server):
    """MinIO with one drive."""

    name = "minio"

    def command(self, port: int) -> Sequence[str | Path]:
        return [MINIO.built(), "server", "--quiet", "--address", f"127.0.0.1:{port}", self.data]

    def environment(self) -> Mapping[str, str]:
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }


def given_endpoint() -> S3Endpoint | None:
    """The server that `COMMITTERD_TEST_S3_ENDPOINT` names, with the keys of the usual AWS variables."""
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
    """The S3 server that `COMMITTERD_TEST_S3_ENDPOINT` names, else a versitygw of our own.

    Raises `PartMissingError` when there can be none.
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
