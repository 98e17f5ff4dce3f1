"""Opens the store that a table's URI names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from committerd.errors import SettingsError
from committerd.settings.clouds import CloudSettings
from committerd.settings.dynamodb import DynamoDBSettings
from committerd.settings.s3 import S3Settings
from committerd.stores.cloud import Cloud
from committerd.stores.clouds import CLOUDS, CloudPlace, cloud_place, require_obstore
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.local import LocalStore, local_path
from committerd.stores.measured import MeasuredLocalStore, MeasuredManifests, MeasuredStore
from committerd.stores.port import ObjectStore
from committerd.stores.probing import Neighbours
from committerd.stores.retries import Fault, ignored
from committerd.stores.watched import WatchedManifests, WatchedStore

if TYPE_CHECKING:
    from committerd.stores.aws import AwsClient
    from committerd.stores.obstore_store import ObstoreClient
    from committerd.telemetry import ProcessTelemetry, Telemetry

# Imported lazily: the modules for S3 and DynamoDB take 17 MiB of memory, obstore 10, and only tables there need them.


class Stores:
    """Opens the stores of one process: for the table, its base paths, and the sources of Clones.

    The stores share one client per service. This is a context manager that closes the clients at exit; the stores can't
    be used after that.
    """

    def __init__(
        self,
        s3: S3Settings,
        dynamodb: DynamoDBSettings,
        *,
        clouds: Mapping[Cloud, CloudSettings] | None = None,
        durable: bool = True,
        telemetry: ProcessTelemetry | None = None,
    ) -> None:
        """`clouds`: the settings of each cloud (`cloud_settings`); None = defaults."""
        self._s3 = s3
        self._dynamodb = dynamodb
        self._clouds = clouds or {cloud: cloud.defaults for cloud in CLOUDS}
        self._durable = durable
        self._telemetry = telemetry
        self._clients: dict[str, AwsClient] = {}
        self._containers: dict[str, ObstoreClient] = {}
        self._neighbours: dict[str, Neighbours] = {}

    def neighbours(self, uri: str) -> Neighbours:
        """What the table at this URI shares with the others in its bucket; a folder on a file system is by itself."""
        parts = urlsplit(uri)
        place = uri if local_path(uri) is not None else f"{parts.scheme}://{parts.netloc}?{parts.query}"
        return self._neighbours.setdefault(place, Neighbours())

    def open(self, uri: str, telemetry: Telemetry | None = None) -> ObjectStore:
        """Open the store that a URI names; with the telemetry of a dataset, its requests are measured.

        Without telemetry, as in a command, a store that does not answer is told (`committerd.waiting`). Raises
        `SettingsError` for a scheme that is not supported.
        """
        path = local_path(uri)
        if path is not None:
            local = LocalStore(path, durable=self._durable)
            return (
                WatchedStore(local, f"the file system of {path}")
                if telemetry is None
                else MeasuredLocalStore(local, telemetry)
            )
        cloud = cloud_place(uri)
        if cloud is not None:
            store = self._in_cloud(cloud)
            return (
                self._watched(store, uri, self._clouds[cloud.cloud].endpoint_url)
                if telemetry is None
                else MeasuredStore(store, telemetry)
            )
        from committerd.stores.directory_bucket import DirectoryBucketStore
        from committerd.stores.dynamodb import DynamoStore, dynamo_place, dynamodb_client
        from committerd.stores.s3 import S3Store, s3_client, s3_place

        place = dynamo_place(uri)
        bucket = s3_place(uri) if place is None else place.objects
        if bucket is None:
            raise SettingsError(_not_served(uri))
        kind = DirectoryBucketStore if bucket.is_in_directory_bucket else S3Store
        objects: ObjectStore = kind(self._client("s3", partial(s3_client, self._s3)), bucket, failed=self._failed("s3"))
        objects = (
            self._watched(objects, uri, self._s3.endpoint_url)
            if telemetry is None
            else MeasuredStore(objects, telemetry)
        )
        if place is None:
            return objects
        client = self._client("dynamodb", partial(dynamodb_client, self._s3, endpoint_url=self._dynamodb.endpoint_url))
        entries = DynamoStore(client, table=place.table, base_uri=place.base_uri, failed=self._failed("dynamodb"))
        if telemetry is None:
            at = self._dynamodb.endpoint_url
            whom = f"the DynamoDB table {place.table}{f' at {at}' if at else ''}"
            return ExternalManifests(objects, WatchedManifests(entries, whom), uri=uri)
        return ExternalManifests(
            objects,
            MeasuredManifests(entries, telemetry),
            uri=uri,
            count=lambda event: telemetry.external_manifests.add(event=event),
        )

    def _in_cloud(self, place: CloudPlace) -> ObjectStore:
        require_obstore(place.cloud)
        from committerd.stores.obstore_store import ObstoreClient, ObstoreStore

        if place.root not in self._containers:
            self._containers[place.root] = ObstoreClient(place.cloud, place.root, self._clouds[place.cloud])
        return ObstoreStore(self._containers[place.root], place, failed=self._failed(place.cloud.service))

    def _watched(self, store: ObjectStore, uri: str, at: str | None) -> ObjectStore:
        return WatchedStore(store, f"the store of {uri}{f' at {at}' if at else ''}")

    def _client(self, service: str, make: Callable[[], AwsClient]) -> AwsClient:
        if service not in self._clients:
            client = self._clients[service] = make()
            if self._telemetry is not None:
                self._telemetry.credentials_expiry.track(client.credentials_end, service=service)
        return self._clients[service]

    def _failed(self, service: str) -> Callable[[Fault], None]:
        telemetry = self._telemetry
        if telemetry is None:
            return ignored
        return lambda fault: telemetry.store_failed_requests.add(service=service, fault=fault.value)

    @property
    def versioning_advice(self) -> str:
        """What to do if a bucket that was written to keeps what is replaced or deleted in it; else empty."""
        advice = {client.versioning_advice for client in self._clients.values()}
        advice |= {client.versioning_advice for client in self._containers.values()}
        return max(advice, default="")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._clients:
            await self._clients.popitem()[1].aclose()


def _not_served(uri: str) -> str:
    served = [
        "a path or file:// URI of a file system on this machine",
        "s3://bucket/path",
        "s3+ddb://bucket/path?ddbTableName=TABLE",
        *(cloud.form for cloud in CLOUDS),
    ]
    return f"tables of the scheme {uri.partition('://')[0].lower()}:// are not served; served are {', '.join(served)}"
