"""GET requests for the objects of one S3 bucket, without the SDK.

For each request the SDK resolves the endpoint, builds, signs and parses: 0.4 to 0.9 ms of CPU time, and a committer
sends a request or two for each file. This module copies the URL, the headers and the signing parameters of a request
that the SDK has sent (Signature Version 4, "Authenticating Requests: Using the Authorization Header" in the S3 API
reference). It is used only if it computes the same signature as the SDK. It uses the SDK's connections.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, Self

import aiohttp
import anyio
from botocore.exceptions import BotoCoreError
from yarl import URL

_ALGORITHM = "AWS4-HMAC-SHA256"
_SCOPE_END = "aws4_request"


@dataclass(frozen=True, slots=True)
class GetResponse:
    """The response to a GET request for an object that exists."""

    body: bytes
    content_range: str | None
    """The header Content-Range; None = the body is the whole object."""


class NoResponse(Enum):
    """Why a request has no usable response."""

    REFUSED = auto()
    """The status is 3xx, or 4xx except 404, 416 and 429."""
    THROTTLED = auto()
    """The status is 429 or 503."""
    ABSENT = auto()
    """The status is 404. It does not say whether the object or the bucket is missing."""
    FAILED = auto()
    """Any other status, an error of the connection, or no credentials."""


class Credentials(NamedTuple):
    """The SDK's credentials for one request."""

    access_key: str
    secret_key: str
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """URL and signing parameters of requests for the objects of one bucket."""

    base: str
    """The URL that object names are appended to, without a trailing slash."""
    payload: str
    """Value of the header x-amz-content-sha256."""
    region: str
    service: str

    @property
    def host(self) -> str:
        return self.base.partition("://")[2].partition("/")[0]

    @property
    def folder(self) -> str:
        """Path of the URL, without a trailing slash."""
        return self.base.partition("://")[2][len(self.host) :]


class Signer:
    """Signs requests that have neither query nor body. Caches the signing key, which is valid for one day."""

    def __init__(self, target: RequestTarget) -> None:
        self._target = target
        self._made_of: tuple[str, str] | None = None
        self._key = b""

    def headers(self, name: str, credentials: Credentials, *, timestamp: str, span: str = "") -> dict[str, str]:
        """Return the signed headers of a GET request for an object.

        `name`: percent-encoded. `timestamp`: UTC, in the form `20260131T235959Z`. `span`: value of the header Range.
        """
        target, day = self._target, timestamp[:8]
        signed = {"host": target.host}  # in the order of the names, as the signature needs them
        if span:
            signed["range"] = span
        signed |= {"x-amz-content-sha256": target.payload, "x-amz-date": timestamp}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = ";".join(signed)
        lines = "".join(f"{header}:{value}\n" for header, value in signed.items())
        canonical = f"GET\n{target.folder}/{name}\n\n{lines}\n{names}\n{target.payload}"
        scope = f"{day}/{target.region}/{target.service}/{_SCOPE_END}"
        to_sign = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key_of(credentials.secret_key, day), to_sign.encode(), "sha256").hex()
        del signed["host"]
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _key_of(self, secret_key: str, day: str) -> bytes:
        if self._made_of != (secret_key, day):
            key = f"AWS4{secret_key}".encode()
            for part in (day, self._target.region, self._target.service, _SCOPE_END):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._made_of = key, (secret_key, day)
        return self._key


class PlainReads:
    """Sends GET requests for the objects of one bucket."""

    def __init__(
        self, client: Any, session: aiohttp.ClientSession, target: RequestTarget, extra: dict[str, str]
    ) -> None:
        """`client`: the SDK's client, for its credentials. `session`: its connections. `extra`: unsigned headers."""
        self._client = client
        self._session = session
        self._target = target
        self._extra = extra
        self._signer = Signer(target)

    @classmethod
    async def learn(cls, client: Any, sent: Any, name: str) -> Self | None:
        """Derive the request parameters from a GET request that the SDK has sent.

        `sent`: the SDK's request. `name`: percent-encoded name of its object. Returns None when the request can't be
        reproduced: it went through a proxy, was unsigned, or its signature differs from the one computed here.
        """
        headers = {key.lower(): _text(value) for key, value in sent.headers.items()}
        http = client._endpoint.http_session
        try:
            credentials = await _credentials(client)
        except BotoCoreError:
            return None
        scope = headers.get("authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
        if (
            credentials is None
            or len(scope) < 5
            or not sent.url.endswith(f"/{name}")
            or http._proxy_config.proxy_url_for(sent.url)
        ):
            return None
        target = RequestTarget(
            base=sent.url.removesuffix(f"/{name}"),
            payload=headers.get("x-amz-content-sha256", ""),
            region=scope[-3],
            service=scope[-2],
        )
        ours = Signer(target).headers(
            name, credentials, timestamp=headers.get("x-amz-date", ""), span=headers.get("range", "")
        )
        if ours["authorization"] != headers["authorization"]:
            return None
        extra = {"accept-encoding": "identity"}
        if "user-agent" in headers:
            extra["user-agent"] = headers["user-agent"]
        return cls(client, await http._get_session(None), target, extra)

    async def get(
        self, name: str, span: str, *, seconds_max: float, read_seconds_max: float
    ) -> GetResponse | NoResponse:
        """Send one GET request. `name`: percent-encoded. `span`: value of the header Range; empty = the whole object.

        `seconds_max`: the timeout until the response begins. `read_seconds_max`: the longest pause in its body. A range
        that can't be satisfied counts as FAILED, because only the SDK tells its error.
        """
        try:
            credentials = await _credentials(self._client)
            if credentials is None:
                return NoResponse.FAILED
            timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            request = self._session.get(
                URL(f"{self._target.base}/{name}", encoded=True),
                headers=self._signer.headers(name, credentials, timestamp=timestamp, span=span) | self._extra,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_read=read_seconds_max),
            )
            with anyio.fail_after(seconds_max) as scope:
                async with request as response:
                    scope.deadline = math.inf
                    if response.status in (200, 206):
                        return GetResponse(await response.read(), response.headers.get("Content-Range"))
                    return _unusable(response.status)
        except (BotoCoreError, aiohttp.ClientError, OSError, ValueError):
            return NoResponse.FAILED


def _unusable(status: int) -> NoResponse:
    if status == 404:
        return NoResponse.ABSENT
    if status in (429, 503):
        return NoResponse.THROTTLED
    return NoResponse.REFUSED if 300 <= status < 500 and status != 416 else NoResponse.FAILED


async def _credentials(client: Any) -> Credentials | None:
    """Return the credentials that the SDK would sign with now; None when it has none."""
    held = client._request_signer._credentials
    if held is None:
        return None
    frozen = await held.get_frozen_credentials()
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
