"""GET requests for the objects of one S3 bucket, without the SDK.

For each request the SDK resolves the endpoint, builds, signs and parses: 0.7 ms of CPU time more than this module takes
for it, and a committer sends a request or two for each file. With many reads at once, obstore takes twice the CPU time
of this module, 0.43 ms instead of 0.21 (docs/bench/README.md, "What a read from S3 costs"). This module copies the URL,
the headers and the signing parameters of a request that the SDK has sent (Signature Version 4, "Authenticating
Requests: Using the Authorization Header" in the S3 API reference). It is used only if it computes the same signature as
the SDK. It uses the SDK's connections.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.parsers import RestXMLParser
from yarl import URL

_ALGORITHM = "AWS4-HMAC-SHA256"
_ERROR_PARSER = RestXMLParser()
_SCOPE_END = "aws4_request"
_UNQUOTED = "/~"
"""Characters of a key that botocore does not percent-encode, besides letters, digits, `-`, `.` and `_`."""


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
    """Sends GET requests to the buckets from which the SDK has read before."""

    def __init__(self, client: Any) -> None:
        """`client`: the SDK's client."""
        self._client = client
        self._http = client._endpoint.http_session
        self._known: dict[str, tuple[Signer, str]] = {}
        """By bucket: signer, and value of the header User-Agent."""
        client.meta.events.register("request-created", self._learn)  # after the signer, which is of a longer event

    async def _learn(self, request: Any, operation_name: str, **_: Any) -> None:
        """Derive the request parameters of a bucket from a GET request of the SDK.

        Learns nothing from a request that can't be reproduced: it goes through a proxy, is unsigned, is of a session
        (S3 Express), or its signature differs from the one computed here.
        """
        if operation_name != "GetObject":
            return
        sent, headers = request.context["s3_redirect"]["params"], request.headers
        name = quote(sent["Key"], safe=_UNQUOTED)
        scope = headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
        if (
            len(scope) < 5
            or "X-Amz-S3session-Token" in headers
            or not request.url.endswith(f"/{name}")
            or self._http._proxy_config.proxy_url_for(request.url)
        ):
            return
        signer = Signer(
            request.url.removesuffix(f"/{name}"),
            payload=headers["X-Amz-Content-SHA256"],
            region=scope[-3],
            service=scope[-2],
        )
        ours = signer.headers(
            name, await self._credentials(), timestamp=headers["X-Amz-Date"], span=headers.get("Range", "")
        )
        if ours["authorization"] == headers["Authorization"]:
            self._known[sent["Bucket"]] = signer, headers["User-Agent"]

    def forget(self, bucket: str) -> None:
        """Leave the next request to this bucket to the SDK."""
        self._known.pop(bucket, None)

    async def get(
        self, bucket: str, key: str, span: str, *, seconds_max: float, read_seconds_max: float
    ) -> dict[str, Any] | None:
        """Send one GET request; None, and nothing is sent, before the SDK has read from the bucket.

        `span`: value of the header Range; empty = the whole object. `seconds_max`: the timeout until the response
        begins. `read_seconds_max`: the longest pause in its body. Returns `Body` and `ContentRange` as the SDK does.
        Raises what the SDK raises, or an error of aiohttp.
        """
        if bucket not in self._known:
            return None
        (signer, user_agent), name = self._known[bucket], quote(key, safe=_UNQUOTED)
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = signer.headers(name, await self._credentials(), timestamp=timestamp, span=span)
        session = await self._http._get_session(None)
        with anyio.fail_after(seconds_max) as scope:
            async with session.get(
                URL(f"{signer.base}/{name}", encoded=True),
                headers={**headers, "user-agent": user_agent, "accept-encoding": "identity"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_read=read_seconds_max),
            ) as response:
                scope.deadline = math.inf
                body = await response.read()
        if response.status not in (200, 206):
            error = {"status_code": response.status, "headers": response.headers, "body": body}
            raise ClientError(_ERROR_PARSER.parse(error, None), "GetObject")
        return {"Body": body, "ContentRange": response.headers.get("Content-Range")}

    async def _credentials(self) -> ReadOnlyCredentials:
        """Return the credentials that the SDK would sign with now."""
        held = self._client._request_signer._credentials
        if held is None:
            raise NoCredentialsError
        return await held.get_frozen_credentials()
