"""An aiobotocore client that lives as long as the process.

This module does all retries; those of botocore and aiohttp are off. Therefore each attempt is visible here, and for a
request that is sent only once the caller learns whether it may have reached the server.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, nullcontext, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any
from urllib.parse import quote

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, NoRegionError, ProfileNotFound
from botocore.loaders import create_loader

from committerd.errors import SettingsError
from committerd.settings.s3 import S3Settings
from committerd.stores.aws_failures import ABSENT, ERRORS, RESPONSES, CallFailed, Fault, failure_of
from committerd.stores.plain_reads import GetResponse, PlainReads

_log = logging.getLogger(__name__)

VERSIONING_ADVICE = (
    "the bucket keeps every object that is replaced or deleted (S3 Versioning): give it a lifecycle rule that ends "
    "noncurrent versions and expired delete markers, or its size grows with each start, cleanup and compaction; see "
    "docs/stores.md"
)

_WAIT_SECONDS_FIRST = 0.2
"""The longest wait before the second attempt; it doubles with each further one."""
_WAIT_SECONDS_MAX = 20.0
REGION_OF_A_SERVER = "us-east-1"
"""The region for a server that is not AWS, where none is configured."""
_UNQUOTED = "/~"
"""Characters of a key that botocore does not percent-encode, besides letters, digits, `-`, `.` and `_`."""
_CREDENTIALS_SECONDS = 1.0
"""Interval between checks whether a credentials file has changed."""
_FROM_A_FILE = ("shared-credentials-file", "config-file")
"""Names of botocore's credential providers that read a file only once. The others renew expiring credentials."""
_SENT_BYTES_PER_SECOND_MIN = 1 << 20
"""Slowest upload rate: the timeout of a request grows by its body's size divided by this rate."""

_reads_sent: ContextVar[list[Any] | None] = ContextVar("_reads_sent", default=None)
"""The SDK's GetObject requests that this task has sent."""


def _note_read(request: Any, **_: Any) -> None:
    sent = _reads_sent.get()
    if sent is not None:
        sent.append(request)


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
        failed: Callable[[Fault], None],
        rng: random.Random,
    ) -> None:
        """`advice`: hints for error messages by error code, besides those for all services.

        `failed`: called with the fault of every request that fails.
        """
        self._service = service
        self.settings = settings
        self.keeps_old_versions = False
        """Whether a bucket keeps what is replaced or deleted in it (S3 Versioning). Known after the first put."""
        self._endpoint_url = endpoint_url
        self._advice = advice
        self._failed = failed
        self._rng = rng
        self._plain_reads: dict[str, PlainReads] = {}
        """By bucket."""
        self._many = anyio.CapacityLimiter(max(1, settings.connections_max * 3 // 4))
        """Leaves a quarter of the connections to other requests."""
        self._opening = anyio.Lock()
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._session: Any = None
        self._credentials_written: object = None
        """Identity and modification time of the credentials files that the current credentials come from."""
        self._looked_at = 0.0

    async def once(self, operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        """Send one request, without retries. `where`: the object's name, for messages.

        Returns the SDK's response, with its body read into bytes. Raises `CallFailed`, or `SettingsError` when the
        client can't be created.
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
            failure = failure_of(error, f"{self._service} {operation} of {where}", self._advice)
            if failure.code not in RESPONSES:
                self._failed(failure.fault)
            raise failure from error
        if operation == "put_object" and response.get("VersionId", "null") != "null":
            if not self.keeps_old_versions:
                _log.info("s3.bucket_versioned", extra={"bucket": parameters["Bucket"], "advice": VERSIONING_ADVICE})
            self.keeps_old_versions = True
        return response

    async def repeated(self, operation: str, where: str, **parameters: Any) -> dict[str, Any]:
        """As `once`, for an idempotent request: retries every failure but a refusal, up to `s3.attempts` attempts."""
        for attempt in range(1, self.settings.attempts):
            try:
                return await self.once(operation, where, **parameters)
            except CallFailed as failure:
                if failure.fault is Fault.REFUSED:
                    raise
                await self.wait(failure, attempt=attempt)
        return await self.once(operation, where, **parameters)

    async def get(self, where: str, *, bucket: str, key: str, span: str, is_one_of_many: bool) -> GetResponse | None:
        """Read an object; None when it does not exist. `span`: value of the header Range; empty = the whole object.

        Sends a GET request without the SDK, which takes several times the CPU time. Uses the SDK for the first request
        to a bucket, after a failure, and to tell a missing object from a missing bucket. `is_one_of_many`: leaves
        connections to other requests, and takes an object for missing without asking the SDK. Raises as `repeated`.
        """
        name, plain = quote(key, safe=_UNQUOTED), None
        quick: GetResponse | int = 0
        async with self._many if is_one_of_many else nullcontext():
            if bucket in self._plain_reads:
                await self._opened()  # reads the credentials again if they have changed
                plain = self._plain_reads.get(bucket)
            if plain is not None:
                quick = await plain.get(
                    name,
                    span,
                    seconds_max=self._seconds_max(b""),
                    read_seconds_max=self.settings.read_timeout_seconds,
                )
        if isinstance(quick, GetResponse):
            return quick
        if quick == 404 and is_one_of_many:
            return None
        if quick in (429, 503):
            self._failed(Fault.THROTTLED)
        elif 300 <= quick < 500 and quick not in (404, 416) and plain is self._plain_reads.get(bucket):
            # Either this object is refused, or the request parameters are outdated: derive them from the SDK again.
            del self._plain_reads[bucket]
        sent: list[Any] = []
        token = _reads_sent.set(sent)
        ranged = {"Range": span} if span else {}
        try:
            response = await self.repeated("get_object", where, Bucket=bucket, Key=key, **ranged)
        except CallFailed as failure:
            if failure.code in ABSENT:
                return None
            raise
        finally:
            _reads_sent.reset(token)
            if bucket not in self._plain_reads and sent:
                learnt = await PlainReads.learn(self._client, sent[-1], name)
                if learnt is not None:
                    self._plain_reads[bucket] = learnt
        return GetResponse.of(response["Body"], response.get("ContentRange"))

    async def wait(self, failure: CallFailed, *, attempt: int = 1) -> None:
        """Sleep for full jitter with exponential backoff, on top of the server's Retry-After; at most 20 s."""
        limit = min(_WAIT_SECONDS_FIRST * 2.0 ** (attempt - 1), _WAIT_SECONDS_MAX)
        await anyio.sleep(min(failure.retry_after + self._rng.uniform(0, limit), _WAIT_SECONDS_MAX))

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
                    made.meta.events.register("before-send.s3.GetObject", _note_read)
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
