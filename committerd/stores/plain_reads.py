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
from typing import Any, Self

import aiohttp
import anyio
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import RestXMLParser
from yarl import URL

_ALGORITHM = "AWS4-HMAC-SHA256"
_ERROR_PARSER = RestXMLParser()
_SCOPE_END = "aws4_request"


class Signer:
    """Signs GET requests for the objects of one bucket. Caches the signing key, which is valid for one day."""

    def __init__(self, base: str, *, payload: str, region: str, service: str) -> None:
        """`base`: the URL that object names are appended to, without a trailing slash.

        `payload`: value of the header x-amz-content-sha256.
        """
        self.base = base
        self._host, slash, path = base.partition("://")[2].partition("/")
        self._folder = slash + path
        self._payload = payload
        self._region = region
        self._service = service
        self._made_of: tuple[str, str] | None = None
        self._key = b""

    def headers(self, name: str, credentials: ReadOnlyCredentials, *, timestamp: str, span: str = "") -> dict[str, str]:
        """Return the signed headers of a GET request for an object.

        `name`: percent-encoded. `timestamp`: UTC, in the form `20260131T235959Z`. `span`: value of the header Range.
        """
        day = timestamp[:8]
        signed = {"host": self._host}  # in the order of the names, as the signature needs them
        if span:
            signed["range"] = span
        signed |= {"x-amz-content-sha256": self._payload, "x-amz-date": timestamp}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = ";".join(signed)
        lines = "".join(f"{header}:{value}\n" for header, value in signed.items())
        canonical = f"GET\n{self._folder}/{name}\n\n{lines}\n{names}\n{self._payload}"
        scope = f"{day}/{self._region}/{self._service}/{_SCOPE_END}"
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
            for part in (day, self._region, self._service, _SCOPE_END):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._made_of = key, (secret_key, day)
        return self._key


class PlainReads:
    """Sends GET requests for the objects of one bucket."""

    def __init__(self, client: Any, session: aiohttp.ClientSession, signer: Signer, extra: dict[str, str]) -> None:
        """`client`: the SDK's client, for its credentials. `session`: its connections. `extra`: unsigned headers."""
        self._client = client
        self._session = session
        self._signer = signer
        self._extra = extra

    @classmethod
    async def learn(cls, client: Any, sent: Any, name: str) -> Self | None:
        """Derive the request parameters from a GET request that the SDK has sent.

        `sent`: the SDK's request. `name`: percent-encoded name of its object. Returns None when the request can't be
        reproduced: it went through a proxy, was unsigned, or its signature differs from the one computed here.
        """
        headers = {
            key.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for key, value in sent.headers.items()
        }
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
        payload = headers.get("x-amz-content-sha256", "")
        signer = Signer(sent.url.removesuffix(f"/{name}"), payload=payload, region=scope[-3], service=scope[-2])
        ours = signer.headers(name, credentials, timestamp=headers.get("x-amz-date", ""), span=headers.get("range", ""))
        if ours["authorization"] != headers["authorization"]:
            return None
        extra = {"accept-encoding": "identity"}
        if "user-agent" in headers:
            extra["user-agent"] = headers["user-agent"]
        return cls(client, await http._get_session(None), signer, extra)

    async def get(self, name: str, span: str, *, seconds_max: float, read_seconds_max: float) -> dict[str, Any]:
        """Send one GET request. `name`: percent-encoded. `span`: value of the header Range; empty = the whole object.

        `seconds_max`: the timeout until the response begins. `read_seconds_max`: the longest pause in its body. Returns
        `Body` and `ContentRange` as the SDK does. Raises what the SDK raises, or an error of aiohttp.
        """
        credentials = await _credentials(self._client)
        if credentials is None:
            raise NoCredentialsError
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        request = self._session.get(
            URL(f"{self._signer.base}/{name}", encoded=True),
            headers=self._signer.headers(name, credentials, timestamp=timestamp, span=span) | self._extra,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=read_seconds_max),
        )
        with anyio.fail_after(seconds_max) as scope:
            async with request as response:
                scope.deadline = math.inf
                body = await response.read()
        if response.status not in (200, 206):
            error = {"status_code": response.status, "headers": response.headers, "body": body}
            raise ClientError(_ERROR_PARSER.parse(error, None), "GetObject")
        return {"Body": body, "ContentRange": response.headers.get("Content-Range")}


async def _credentials(client: Any) -> ReadOnlyCredentials | None:
    """Return the credentials that the SDK would sign with now; None when it has none."""
    held = client._request_signer._credentials
    return None if held is None else await held.get_frozen_credentials()
