"""Runs DynamoDB Local for tests: tables are in memory, and it accepts every key.

python -m harness.dynamodb --fetch    only download
"""

from __future__ import annotations

import secrets
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from committerd.dev.jars import jars
from harness.aws import AwsEndpoint
from harness.java import BRIEFLY, LOCKS, java
from harness.server import Server

DYNAMODB = LOCKS / "dynamodb-local-3.1.0.lock"
"""The lock of its jars and native libraries."""
_JVM = (*BRIEFLY, "-Xmx192m", "--enable-native-access=ALL-UNNAMED")


@dataclass(frozen=True, slots=True)
class DynamoDBEndpoint(AwsEndpoint):
    """The URL and credentials of a DynamoDB."""

    service = "dynamodb"

    def make_table(self) -> str:
        """Create a table as Lance requires it (hash key `base_uri`, range key `version`); returns its name."""
        name = f"manifests-{uuid.uuid4().hex[:12]}"
        self.client().create_table(
            TableName=name,
            KeySchema=[
                {"AttributeName": "base_uri", "KeyType": "HASH"},
                {"AttributeName": "version", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "base_uri", "AttributeType": "S"},
                {"AttributeName": "version", "AttributeType": "N"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def items(self, table: str) -> list[dict[str, str]]:
        """All items of a table, in order of version; attributes as text."""
        found: list[dict[str, str]] = []
        for page in self.client().get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
            found += [{name: next(iter(value.values())) for name, value in item.items()} for item in page["Items"]]
        return sorted(found, key=lambda item: (item["base_uri"], int(item["version"])))

    def storage_options(self) -> dict[str, str]:
        """The `storage_options` for pylance, in addition to those of S3."""
        return {"dynamodb_endpoint": self.url}

    def through(self, url: str) -> DynamoDBEndpoint:
        """The same service through a proxy at `url`."""
        return DynamoDBEndpoint(url, self.access_key, self.secret_key, self.region)


class DynamoDBLocal(Server):
    """An in-memory DynamoDB; all keys and regions share the same tables. It listens on all addresses."""

    name = "dynamodb"

    def __init__(self) -> None:
        super().__init__()
        self.access_key = secrets.token_hex(8)
        self.secret_key = secrets.token_hex(16)

    @property
    def endpoint(self) -> DynamoDBEndpoint:
        """Its URL and credentials."""
        return DynamoDBEndpoint(self.url, self.access_key, self.secret_key)

    def command(self, port: int) -> Sequence[str | Path]:
        libs = dynamodb_jars()
        native = self.folder / "native"
        if not native.exists():
            native.mkdir()
            for library in (*libs.glob("libsqlite4java-linux-*.so"), *libs.glob("libsqlite4java-osx-*.dylib")):
                shutil.copy(library, native)
                # DynamoDB Local also looks for the library without the version in its name.
                plain = library.stem.rpartition("-")[0] + library.suffix
                shutil.copy(library, native / plain)
        return [
            java("DynamoDB Local"),
            *_JVM,
            f"-Djava.library.path={native}",
            *("-cp", f"{libs}/*", "software.amazon.dynamodb.services.local.main.ServerRunner"),
            *("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)),
        ]

    def answers(self) -> bool:
        try:
            self.endpoint.client().list_tables()
        except (BotoCoreError, ClientError):
            return False
        return True


def dynamodb_jars() -> Path:
    """The folder of DynamoDB Local's jars: from the cache, else downloaded."""
    return jars(DYNAMODB)
