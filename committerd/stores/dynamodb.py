"""Lance's external manifest store in a DynamoDB table: one item for each version.

    base_uri   S  partition key: the table's path in its bucket, without the bucket
    version    N  sort key
    path       S  the manifest's path in the bucket: its final or its staging key
    committer  S  lancedb
    size       N  the manifest's size in bytes; may be missing
    e_tag      S  the manifest's ETag, a cache key for pylance 4, which writes it; committerd ignores it

pylance opens the same table by the same URI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from committerd.errors import CorruptTable, SettingsError
from committerd.settings.s3 import S3Settings
from committerd.stores.aws import AwsClient
from committerd.stores.port import Created, Exists, ManifestEntry
from committerd.stores.retries import ConditionFailed, Fault, RequestFailed, Retries, ignored
from committerd.stores.s3 import S3Place, s3_place
from committerd_common.paths import VERSION_MAX

_FORM = "a table with a manifest store in DynamoDB is s3+ddb://bucket/path?ddbTableName=TABLE"
_KEYS = {"base_uri": ("HASH", "S"), "version": ("RANGE", "N")}
_MAKE = (
    "`aws dynamodb create-table --table-name TABLE --billing-mode PAY_PER_REQUEST --attribute-definitions "
    "AttributeName=base_uri,AttributeType=S AttributeName=version,AttributeType=N --key-schema "
    "AttributeName=base_uri,KeyType=HASH AttributeName=version,KeyType=RANGE`"
)
_ADVICE = {
    "AccessDeniedException": "the credentials may not do this: allow dynamodb:DescribeTable, dynamodb:GetItem, "
    "dynamodb:PutItem and dynamodb:Query on the table, and dynamodb:DeleteItem for `committerd maintain`",
}


@dataclass(frozen=True, slots=True)
class DynamoPlace:
    """The locations of a Lance table's objects and of its manifest entries."""

    objects: S3Place
    table: str
    """Name of the DynamoDB table."""

    @property
    def base_uri(self) -> str:
        return self.objects.prefix.removesuffix("/")


def dynamo_place(uri: str) -> DynamoPlace | None:
    """Parse an `s3+ddb://bucket/path?ddbTableName=TABLE` URI; None for another scheme.

    Raises `SettingsError` for a URI without a path, with any other query, or with a directory bucket.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.lower() != "s3+ddb":
        return None
    location, _, query = rest.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    if [name for name, _ in given] != ["ddbTableName"] or not given[0][1]:
        raise SettingsError(f"{uri!r}: the URI must have exactly one parameter, with a value; {_FORM}")
    objects = s3_place(f"s3://{location}")
    if objects is None or not objects.prefix:
        raise SettingsError(f"{uri!r}: a table at the root of a bucket has no name in the manifest store; {_FORM}")
    if objects.is_in_directory_bucket:
        raise SettingsError(
            f"{uri!r} is in a directory bucket (S3 Express One Zone), which needs no manifest store: keep the table "
            f"there as {objects.uri}"
        )
    return DynamoPlace(objects, given[0][1])


def dynamodb_client(settings: S3Settings, *, endpoint_url: str | None) -> AwsClient:
    """Create the client that all manifest stores share, with the credentials, region and timeouts of S3."""
    return AwsClient("dynamodb", settings, endpoint_url=endpoint_url, advice=_ADVICE)


class DynamoStore:
    """`ManifestStore` in a DynamoDB table, which many Lance tables may share. The caller owns and closes the client."""

    def __init__(
        self, client: AwsClient, *, table: str, base_uri: str, failed: Callable[[Fault], None] = ignored
    ) -> None:
        """`base_uri`: the Lance table's path in its bucket, without leading and trailing slashes.

        `failed`: called with the fault of each request that fails.
        """
        self._client = client
        self._retries = Retries(client.settings.attempts, failed)
        self._table = table
        self._base_uri = base_uri
        self._checked = False

    async def get(self, version: int) -> ManifestEntry | None:
        response = await self._repeated("get_item", Key=self._key(version), ConsistentRead=True)
        item = response.get("Item")
        return None if item is None else self._entry(item)

    async def latest(self) -> ManifestEntry | None:
        """As the port says; sends one Query, with an upper bound because detached versions have entries too."""
        response = await self._repeated(
            "query",
            KeyConditionExpression="base_uri = :base_uri AND version <= :version",
            ExpressionAttributeValues={":base_uri": {"S": self._base_uri}, ":version": {"N": str(VERSION_MAX)}},
            ScanIndexForward=False,
            Limit=1,
            ConsistentRead=True,
        )
        return next((self._entry(item) for item in response["Items"]), None)

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        await self._check()
        put = self._client.send(
            "put_item",
            self._where,
            TableName=self._table,
            Item=self._item(entry),
            ConditionExpression="attribute_not_exists(base_uri) AND attribute_not_exists(version)",
        )
        return await self._retries.once(put, f"the entry of version {entry.version} in {self._table}")

    async def replace(self, entry: ManifestEntry) -> bool:
        try:
            await self._repeated(
                "put_item",
                Item=self._item(entry),
                ConditionExpression="attribute_exists(base_uri) AND attribute_exists(version)",
            )
        except ConditionFailed:
            return False
        return True

    async def delete(self, version: int, *, key: str) -> None:
        with suppress(ConditionFailed):
            await self._repeated(
                "delete_item",
                Key=self._key(version),
                ConditionExpression="#path = :path",
                ExpressionAttributeNames={"#path": "path"},
                ExpressionAttributeValues={":path": {"S": f"{self._base_uri}/{key}"}},
            )

    @property
    def _where(self) -> str:
        return f"{self._base_uri!r} in table {self._table}"

    async def _check(self) -> None:
        """Check that the DynamoDB table has Lance's key schema, until it is known to have it.

        Raises `SettingsError` for another one, and `StoreUnavailable` if there is no such table, or if it can't be
        described.
        """
        if self._checked:
            return
        response = await self._retries.repeated(self._describe)
        found = _keys(response["Table"])
        if found != _KEYS:
            listed = ", ".join(f"{name} ({role}, type {kind})" for name, (role, kind) in found.items())
            raise SettingsError(
                f"the DynamoDB table {self._table} is not a manifest store: its key is {listed}; Lance needs "
                "base_uri (HASH, type S) and version (RANGE, type N). Name another table in ddbTableName, or "
                f"make one with {_MAKE}"
            )
        self._checked = True

    async def _describe(self) -> dict[str, Any]:
        try:
            return await self._client.send("describe_table", self._where, TableName=self._table)
        except RequestFailed as failure:
            if failure.code == "ResourceNotFoundException":
                made = _MAKE.replace("TABLE", self._table)
                failure.message += (
                    f"; there is no such table in this region or at dynamodb.endpoint_url: make it with {made}"
                )
            raise

    async def _repeated(self, operation: str, **parameters: Any) -> dict[str, Any]:
        await self._check()
        send = partial(self._client.send, operation, self._where, TableName=self._table, **parameters)
        return await self._retries.repeated(send)

    def _key(self, version: int) -> dict[str, Any]:
        return {"base_uri": {"S": self._base_uri}, "version": {"N": str(version)}}

    def _item(self, entry: ManifestEntry) -> dict[str, Any]:
        item = {
            **self._key(entry.version),
            "path": {"S": f"{self._base_uri}/{entry.key}"},
            "committer": {"S": "lancedb"},
        }
        return item if entry.size is None else {**item, "size": {"N": str(entry.size)}}

    def _entry(self, item: Mapping[str, Any]) -> ManifestEntry:
        try:
            size, path = item.get("size"), item["path"]["S"]
            return ManifestEntry(
                version=int(item["version"]["N"]),
                key=path.removeprefix(f"{self._base_uri}/"),
                size=None if size is None else int(size["N"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptTable(
                f"an item of {self._where} is not one of Lance's ({error!r}): it needs version and size of type N and "
                "path of type S",
                code="manifest_entry",
            ) from error


def _keys(table: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    kinds = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
    return {one["AttributeName"]: (one["KeyType"], kinds[one["AttributeName"]]) for one in table["KeySchema"]}
