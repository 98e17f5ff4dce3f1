"""The cases on S3, with and without DynamoDB: a table goes up, one commit, and what the bucket holds comes down again.

For a scorer that knows folders only there are `s3` and `s3_ddb`: functions of (folder, file of the staged transaction,
create options) that commit to the folder by way of a bucket and return {"outcome": ...}.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import http.client
import random
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from anyio.from_thread import start_blocking_portal
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from committerd.committer import direct
from committerd.errors import RequestError
from committerd.lance.operations.permissions import ANYTHING
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.open import Stores
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.prepare import create_options
from committerd.table.refusals import refused_by
from committerd.table.versions import Table
from committerd_common.paths import VERSIONS, parse_manifest_name
from committerd_common.request import decode_transaction
from harness.dynamodb import DynamoDBEndpoint, DynamoDBLocal
from harness.s3 import S3Endpoint, s3_server

Kind = Literal["s3", "s3+ddb"]


class StoreRunner:
    """Commits to tables in one bucket; with DynamoDB their versions are entries there."""

    def __init__(self, s3: S3Endpoint, dynamodb: DynamoDBEndpoint | None = None) -> None:
        self._s3 = s3
        self._dynamodb = dynamodb
        self._bucket = s3.make_bucket()
        self._entries = dynamodb.make_table() if dynamodb else ""
        self._settings = S3Settings.model_validate(
            {
                "endpoint_url": s3.url,
                "access_key_id": s3.access_key,
                "secret_access_key": s3.secret_key,
                "region": s3.region,
                "addressing_style": "path",
            }
        )
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stores = self._stack.enter_context(self._portal.wrap_async_context_manager(self._made()))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _made(self) -> Stores:
        return Stores(self._settings, DynamoDBSettings(endpoint_url=self._dynamodb.url if self._dynamodb else None))

    @property
    def storage_options(self) -> dict[str, str]:
        """pylance's storage options for the tables in the bucket."""
        return self._s3.storage_options() | (self._dynamodb.storage_options() if self._dynamodb else {})

    def uri(self, name: str) -> str:
        """The URI of the table with this name."""
        plain = f"{self._bucket}/{name}/table.lance"
        return f"s3+ddb://{plain}?ddbTableName={self._entries}" if self._entries else f"s3://{plain}"

    def commit(self, folder: Path, staged: bytes, options: Mapping[str, Any]) -> tuple[str, str]:
        """Commit to a copy of the table in the folder, and bring the result back there.

        Returns the outcome in lower case, and the URI of the table from now on.
        """
        name = uuid.uuid4().hex
        sums = self._upload(folder, f"{name}/table.lance/")
        answer = self._portal.call(functools.partial(self._commit, self.uri(name), staged, options))
        self._download(folder, f"{name}/table.lance/", sums)
        return answer.status.value.lower(), self.uri(name)

    async def _commit(self, uri: str, staged: bytes, options: Mapping[str, Any]) -> direct.DirectOutcome:
        try:
            return await direct.commit(
                Table(self._stores.open(uri)),
                decode_transaction(staged, bytes_max=2**31 - 1),
                options=PrepareOptions(
                    allowed=ANYTHING,
                    verify_files=True,
                    create=create_options(dict(options)),
                    copy_clone=True,
                ),
                sources=Sources(
                    wall_clock=lambda: datetime.now(UTC),
                    random=random.Random(),
                    new_uuid=uuid.uuid4,
                ),
                open_store=self._stores.open,
                backoff=Backoff(random.Random()),
            )
        except RequestError as error:
            refused = refused_by(error)
            return direct.DirectOutcome(status=refused.status, reason=refused.reason, message=refused.message)

    def _upload(self, folder: Path, prefix: str) -> dict[str, str]:
        """Upload every file; returns the MD5 of each by its key, which is also its ETag."""
        bodies = bodies_in(folder, prefix)
        with contextlib.closing(http.client.HTTPConnection(urlsplit(self._s3.url).netloc, timeout=60)) as connection:
            for key, body in bodies.items():
                self._put(connection, key, body)
        if self._dynamodb is not None:
            self._enter(self._dynamodb.client(), prefix, bodies)
        return {key: hashlib.md5(body, usedforsecurity=False).hexdigest() for key, body in bodies.items()}

    def _put(self, connection: http.client.HTTPConnection, key: str, body: bytes) -> None:
        """Send one PUT. A table has dozens of files, and botocore's client takes ten times longer to make a request."""
        path = f"/{self._bucket}/{quote(key)}"
        request = AWSRequest(method="PUT", url=self._s3.url + path, data=body)
        S3SigV4Auth(Credentials(self._s3.access_key, self._s3.secret_key), "s3", self._s3.region).add_auth(request)
        connection.request("PUT", path, body, dict(request.headers))
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == http.HTTPStatus.OK, f"PUT {path}: {answer.status} {said!r}"

    def _enter(self, client: Any, prefix: str, bodies: Mapping[str, bytes]) -> None:
        """Make the entries that the table's versions would have."""
        for key, body in bodies.items():
            named = parse_manifest_name(key.removeprefix(prefix + VERSIONS))
            if named is not None and key.startswith(prefix + VERSIONS):
                item = {
                    "base_uri": {"S": prefix.removesuffix("/")},
                    "version": {"N": str(named.version)},
                    "path": {"S": key},
                    "committer": {"S": "lancedb"},
                    "size": {"N": str(len(body))},
                }
                client.put_item(TableName=self._entries, Item=item)

    def _download(self, folder: Path, prefix: str, sums: Mapping[str, str]) -> None:
        """Make the folder equal to the bucket: new and changed objects, without those that are gone."""
        client = self._s3.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        found = {one["Key"]: one["ETag"].strip('"') for page in pages for one in page.get("Contents", ())}

        for key, etag in found.items():
            if sums.get(key) != etag:
                target = folder / key.removeprefix(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(client.get_object(Bucket=self._bucket, Key=key)["Body"].read())
        for key in sums.keys() - found.keys():
            (folder / key.removeprefix(prefix)).unlink()


def bodies_in(folder: Path, prefix: str) -> dict[str, bytes]:
    """The content of every file in a folder, by its key in a store."""
    files = {prefix + str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {key: path.read_bytes() for key, path in files.items()}


@contextlib.contextmanager
def store_runner(kind: Kind) -> Iterator[StoreRunner]:
    """A runner on servers of its own. Raises `PartMissingError`."""
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(s3_server())
        dynamodb = stack.enter_context(DynamoDBLocal()).endpoint if kind == "s3+ddb" else None
        yield stack.enter_context(StoreRunner(s3, dynamodb))


@functools.cache
def _shared(kind: Kind) -> StoreRunner:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(store_runner(kind))


def s3(folder: str, staged: str, options: Mapping[str, Any]) -> dict[str, str]:
    """For a scorer: commit through S3."""
    return {"outcome": _shared("s3").commit(Path(folder), Path(staged).read_bytes(), options)[0]}


def s3_ddb(folder: str, staged: str, options: Mapping[str, Any]) -> dict[str, str]:
    """For a scorer: commit through S3 and DynamoDB."""
    return {"outcome": _shared("s3+ddb").commit(Path(folder), Path(staged).read_bytes(), options)[0]}
