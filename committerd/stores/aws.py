"""An aiobotocore client that lives as long as the process, and sends each request once.

The retries of botocore and aiohttp are off, so that each attempt is visible in `committerd.stores.retries`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext, suppress
from datetime import datetime
from functools import cache
from typing import Any

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, NoRegionError, ProfileNotFound
from botocore.loaders import create_loader
from botocore.utils import parse_timestamp

from committerd.errors import SettingsError
from committerd.settings.s3 import S3Settings
from committerd.stores.aws_failures import ERRORS, failure_of
from committerd.stores.plain_reads import PlainReads
from committerd.stores.retries import Fault, RequestFailed

_log = logging.getLogger(__name__)

_VERSIONING_ADVICE = (
    "the bucket keeps every object that is replaced or deleted (S3 Versioning): give it a lifecycle rule that ends "
    "noncurrent versions and expired delete markers, or its size grows with each start, cleanup and compaction; see "
    "docs/stores.md"
)

REGION_OF_A_SERVER = "us-east-1"
"""The region for a server that is not AWS, where none is configured."""
_CREDENTIALS_SECONDS = 1.0
"""Interval between checks whether a credentials file has changed."""
_FROM_A_FILE = ("shared-credentials-file", "config-file")
"""Names of botocore's credential providers that read a file only once. The others renew expiring credentials."""
_SENT_BYTES_PER_SECOND_MIN = 1 << 20
"""Slowest upload rate: the timeout of a request grows by its body's size divided by this rate."""


class _PlainSession(AIOHTTPSession):  # type: ignore[misc]  # untyped
    """aiobotocore's HTTP session, without aiohttp's retries and without `Expect: 100-continue`.

    aiohttp retries a PUT when the connection breaks. If the first attempt landed and the retry fails with `connection
    refused`, the failure would look as if nothing had been sent. `Expect: 100-continue` costs a round trip for each
    PUT, and aiohttp waits for the server's response to it without a timeout.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session

    async def send(self, request: Any) -> Any:
        if "Expect" in request.headers:
            del request.headers["Expect"]
        return await super().send(request)


class AwsClient:
    """A client of one service, created at the first request. Stores may share it; its creator closes it."""

    def __init__(
        self,
        service: str,
        settings: S3Settings,
        *,
        endpoint_url: str | None,
        advice: Mapping[str, str],
    ) -> None:
        """`advice`: hints for error messages by error code, besides those for all services."""
        self._service = service
        self.settings = settings
        self.versioning_advice = ""
        """Not empty if a bucket that was written to keeps what is replaced or deleted in it (S3 Versioning)."""
        self._endpoint_url = endpoint_url
        self._advice = advice
        self._many = anyio.CapacityLimiter(max(1, settings.connections_max * 3 // 4))
        """Leaves a quarter of the connections to other requests."""
        self._opening = anyio.Lock()
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._session: Any = None
        self._credentials_written: object = None
        """Identity and modification time of the credentials files that the current credentials come from."""
        self._looked_at = 0.0

    async def send(self, operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        """Send one request. `where`: the object's name, for messages.

        Returns the SDK's response, with its body read into bytes. Raises `Absent`, `ConditionFailed`, `RequestFailed`,
        or `SettingsError` when the client can't be created.
        """
        client = await self._opened()
        try:
            # aiohttp's own timeouts do not cover name resolution and sending.
            with anyio.fail_after(self._seconds_max(parameters.get("Body", b""))):
                response: dict[str, Any] = await getattr(client, operation)(**parameters)
            stream = response.get("Body")
            if stream is not None:
                async with stream:
                    response["Body"] = await stream.read()
        except ERRORS as error:
            raise self._failure(error, operation, where) from error
        if operation == "put_object" and response.get("VersionId", "null") != "null":
            if not self.versioning_advice:
                _log.info("s3.bucket_versioned", extra={"bucket": parameters["Bucket"], "advice": _VERSIONING_ADVICE})
            self.versioning_advice = _VERSIONING_ADVICE
        return response

    async def read(self, where: str, *, is_one_of_many: bool, **parameters: str) -> dict[str, Any]:
        """Send one GET request for an object: `send` of `get_object`, at a fraction of the CPU time.

        Uses the SDK for the first request to a bucket, and once more if the request is refused. `is_one_of_many`:
        leaves connections to other requests.
        """
        await self._opened()
        bucket, key, span = parameters["Bucket"], parameters["Key"], parameters.get("Range", "")
        async with self._many if is_one_of_many else nullcontext():
            try:
                response = await self._plain_reads.get(
                    bucket,
                    key,
                    span,
                    seconds_max=self._seconds_max(b""),
                    read_seconds_max=self.settings.read_timeout_seconds,
                )
            except ERRORS as error:
                failure = self._failure(error, "get_object", where)
                if not isinstance(failure, RequestFailed) or failure.fault is not Fault.REFUSED:
                    raise failure from error
                # Either this object is refused, or what was learnt from the SDK's request is outdated.
                self._plain_reads.forget(bucket)
                response = None
            return response or await self.send("get_object", where, **parameters)

    def _failure(self, error: Exception, operation: str, where: str) -> Exception:
        return failure_of(error, f"{self._service} {operation} of {where}", self._advice)

    def credentials_end(self) -> float:
        """Unix time at which temporary credentials end that the AWS chain renews; 0 if there are none, or none yet."""
        if self._client is None:
            return 0.0
        # botocore has no public way to it.
        end = getattr(self._client._request_signer._credentials, "_expiry_time", None)
        return 0.0 if end is None else float(end.timestamp())

    async def aclose(self) -> None:
        """Close the connections."""
        stack, self._stack, self._client = self._stack, AsyncExitStack(), None
        await stack.aclose()

    def _seconds_max(self, body: bytes) -> float:
        """The timeout of a request until its response begins, in seconds."""
        settings = self.settings
        return settings.connect_timeout_seconds + settings.read_timeout_seconds + len(body) / _SENT_BYTES_PER_SECOND_MIN

    async def _opened(self) -> Any:
        if self._client is not None:
            if time.monotonic() - self._looked_at >= _CREDENTIALS_SECONDS:
                await self._read_credentials_again()
            return self._client
        async with self._opening:
            if self._client is None:
                try:
                    made = await self._stack.enter_async_context(self._made())
                    self._plain_reads = PlainReads(made)
                    self._credentials_written = _written(self._session)
                    self._client = made
                except (ProfileNotFound, NoRegionError) as error:
                    raise SettingsError(
                        f"{self._service}: {error}; see the settings s3.profile and s3.region"
                    ) from error
                except (BotoCoreError, ValueError, OSError) as error:
                    raise SettingsError(f"{self._service}: the client can't be created: {error}") from error
            return self._client

    async def _read_credentials_again(self) -> None:
        """Read the profile's credentials files again if they have changed, which botocore never does."""
        self._looked_at = time.monotonic()
        credentials = self._client._request_signer._credentials
        if getattr(credentials, "method", None) not in _FROM_A_FILE:
            return
        written = _written(self._session)
        if written == self._credentials_written:
            return
        try:
            found = await AioSession(profile=self.settings.profile).get_credentials()
        except (BotoCoreError, ValueError, OSError):  # half written: the next check reads them again
            return
        if found is None or found.method not in _FROM_A_FILE:
            return
        self._credentials_written = written
        # The client signs with this object.
        credentials.access_key, credentials.secret_key = found.access_key, found.secret_key
        credentials.token = found.token

    def _made(self) -> Any:
        settings = self.settings
        if settings.ca_bundle is not None and not os.path.isfile(settings.ca_bundle):
            raise SettingsError(f"s3.ca_bundle: there is no file {settings.ca_bundle!r}")
        session = self._session = AioSession(profile=settings.profile)
        session.register_component("data_loader", _models())
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
        region = configured_region(settings, session)
        if region is None and self._endpoint_url is not None:
            region = REGION_OF_A_SERVER
        return session.create_client(
            self._service,
            region_name=region,
            endpoint_url=self._endpoint_url,
            verify=settings.ca_bundle if settings.tls_verify else False,
            aws_access_key_id=settings.access_key_id and settings.access_key_id.get_secret_value(),
            aws_secret_access_key=settings.secret_access_key and settings.secret_access_key.get_secret_value(),
            aws_session_token=settings.session_token and settings.session_token.get_secret_value(),
            config=AioConfig(
                connect_timeout=settings.connect_timeout_seconds,
                read_timeout=settings.read_timeout_seconds,
                max_pool_connections=settings.connections_max,
                retries={"total_max_attempts": 1, "mode": "standard"},
                http_session_cls=_PlainSession,
                # Many S3-compatible servers refuse the checksums that botocore adds by default. The signature covers
                # the body anyway.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": settings.addressing_style},
            ),
        )


def _timestamp(value: Any) -> datetime:
    """The time that a response names. botocore's own parser takes 0.2 ms, for each object of a listing."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):  # a header, or a number
        found: datetime = parse_timestamp(value)
        return found


def configured_region(settings: S3Settings, session: Any) -> str | None:
    """The region by the settings, the environment or the profile. `session`: of botocore or aiobotocore."""
    found = settings.region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
    return None if found is None else str(found)


@cache
def _models() -> Any:
    """The loader of AWS' service models, shared by all clients: reading them takes 100 ms."""
    return create_loader()


def _written(session: Any) -> object:
    """Return a value that changes whenever a credentials file does: inode, modification time and size of each."""
    found: list[object] = []
    for variable in ("credentials_file", "config_file"):
        with suppress(OSError):
            status = os.stat(os.path.expanduser(session.get_config_variable(variable)))  # follows links, as of a Secret
            found.append((variable, status.st_ino, status.st_mtime_ns, status.st_size))
    return found
