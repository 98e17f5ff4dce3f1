"""DynamoDB Local for tests: tables live in memory, and every key is accepted.

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

from harness.aws import AwsEndpoint
from harness.java import jars, java
from harness.server import Server

_POM = Path(__file__).resolve().parent / "resources" / "dynamodb" / "pom.xml"
_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--enable-native-access=ALL-UNNAMED")


@dataclass(frozen=True, slots=True)
class DynamoDBEndpoint(AwsEndpoint):
    """Where a DynamoDB is, and who we are there."""

    service = "dynamodb"

    def make_table(self) -> str:
        """A new table as Lance wants it: `base_uri` is the hash key, `version` the range key."""
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
        """Every item of a table, by version; each attribute as its text."""
        found: list[dict[str, str]] = []
        for page in self.client().get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
            found += [{name: next(iter(value.values())) for name, value in item.items()} for item in page["Items"]]
        return sorted(found, key=lambda item: (item["base_uri"], int(item["version"])))

    def storage_options(self) -> dict[str, str]:
        """What pylance takes as `storage_options` besides those of S3."""
        return {"dynamodb_endpoint": self.url}

    def through(self, url: str) -> DynamoDBEndpoint:
        """The same by way of a proxy at `url`."""
        return DynamoDBEndpoint(url, self.access_key, self.secret_key, self.region)


class DynamoDBLocal(Server):
    """One in-memory DynamoDB; all keys and regions see the same tables. It listens on every address."""

    name = "dynamodb"

    def __init__(self) -> None:
        super().__init__()
        self.access_key = secrets.token_hex(8)
        self.secret_key = secrets.token_hex(16)

    @property
    def endpoint(self) -> DynamoDBEndpoint:
        """How to get there."""
        return DynamoDBEndpoint(self.url, self.access_key, self.secret_key)

    def command(self, port: int) -> Sequence[str | Path]:
        libs = dynamodb_jars()
        native = self.folder / "native"
        if not native.exists():
            native.mkdir()
            for library in (*libs.glob("libsqlite4java-linux-*.so"), *libs.glob("libsqlite4java-osx-*.dylib")):
                shutil.copy(library, native)
                # It is looked for without its version too.
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
    """The folder with DynamoDB Local's jars: from the cache, else downloaded with Maven."""
    return jars("dynamodb-local", _POM)
