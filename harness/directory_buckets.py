"""A proxy that makes the buckets of an S3 server look like directory buckets of S3 Express One Zone.

    with DirectoryBuckets(s3) as proxy:
        bucket = proxy.make_bucket()        # committerd-0123456789ab--use1-az4--x-s3

Each listing has another order. Refused are `start-after`, a prefix that is not a folder, and any delimiter but `/`. A
page holds few keys, and a listing may miss an object that comes meanwhile. Requests must be signed with a session,
which the proxy grants (CreateSession); it signs them anew for the server. pylance asks AWS itself for a session, even
with an endpoint of its own, so here it doesn't sign at all (`storage_options`).

Source: "Differences for directory buckets" and CreateSession in the user guide and API reference of S3.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from harness.fault_proxy import FaultProxy
from harness.s3 import S3Endpoint

_SUFFIX = "--use1-az4--x-s3"
_PAGE_KEYS = 7
_SERVICE = "s3express"
_TOKEN = "x-amz-s3session-token"
_IAM_SIGNED = ("session", "x-amz-copy-source")
"""A query parameter and a header: of requests that AWS does not take with a session."""
_PASSED_ON = ("content-md5", "content-type", "if-match", "if-none-match", "range", "x-amz-copy-source")


class DirectoryBuckets(FaultProxy):
    """The proxy; its faults and holds are those of any proxy."""

    def __init__(self, s3: S3Endpoint, *, seed: int = 0, session_seconds: float = 300) -> None:
        """`session_seconds`: how long a session is said to be valid; it is taken for longer."""
        super().__init__(s3.url, seed=seed)
        self._s3 = s3
        self._session_seconds = session_seconds
        self._listings = itertools.count(seed)
        self._account = Credentials(s3.access_key, s3.secret_key)
        self._sessions: dict[str, Credentials] = {}
        """By access key."""

    def make_bucket(self) -> str:
        """Create a bucket; returns its name here."""
        return self.named(self._s3.make_bucket())

    def named(self, bucket: str) -> str:
        """The name that a bucket of the server has here."""
        return bucket + _SUFFIX

    def storage_options(self) -> dict[str, str]:
        """The `storage_options` for pylance."""
        return self._s3.through(self.url).storage_options() | {"aws_skip_signature": "true"}

    async def _forward(self, request: web.BaseRequest, body: bytes, session: aiohttp.ClientSession) -> web.Response:
        path, _, query = request.raw_path.partition("?")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        bucket, _, key = path.removeprefix("/").partition("/")
        if not bucket.endswith(_SUFFIX):
            return _refused(400, "InvalidBucketName")
        fault = self._refused_signature(request, asked)
        if fault is not None:
            return fault
        if "session" in asked:
            return self._create_session()
        if "list-type" in asked:
            return await self._list(bucket.removesuffix(_SUFFIX), asked)
        url = f"{self._s3.url}/{bucket.removesuffix(_SUFFIX)}/{key}" + (f"?{query}" if query else "")
        headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
        if "x-amz-copy-source" in headers:
            headers["x-amz-copy-source"] = headers["x-amz-copy-source"].replace(_SUFFIX, "", 1)
        signed = self._signed(request.method, url, headers, body)
        return await self._send(session, request.method, url, headers=signed, body=body)

    def _signed(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The headers of a request to the server."""
        request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
        request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
        S3SigV4Auth(self._account, "s3", self._s3.region).add_auth(request)
        return dict(request.headers.items())

    def _refused_signature(self, request: web.BaseRequest, asked: Mapping[str, str]) -> web.Response | None:
        """Refuse a request whose signature is not that of a session, or of the account where AWS wants that."""
        given = request.headers.get("Authorization")
        if given is None:  # pylance
            return None
        found = re.search(r"Credential=(\w+)/\d+/([\w-]+)/(\w+)/aws4_request, *SignedHeaders=([^,]+),", given)
        assert found is not None
        key, region, service, signed = found.groups()
        by_account = any(one in asked or one in request.headers for one in _IAM_SIGNED)
        owner = self._account if by_account else self._sessions.get(key)
        if service != _SERVICE or owner is None or key != owner.access_key:
            return _refused(403, "AccessDenied")
        if request.headers.get(_TOKEN) != owner.token:
            return _refused(400, "InvalidToken")
        names = [name for name in signed.split(";") if name != "host"]
        copy = AWSRequest(
            method=request.method,
            url=f"http://{request.headers['Host']}{request.raw_path}",
            headers={name: request.headers[name] for name in names},
        )
        copy.context["timestamp"] = request.headers["X-Amz-Date"]
        signer = S3SigV4Auth(owner, _SERVICE, region)
        wanted = signer.signature(signer.string_to_sign(copy, signer.canonical_request(copy)), copy)
        return None if given.endswith(f"Signature={wanted}") else _refused(403, "SignatureDoesNotMatch")

    def _create_session(self) -> web.Response:
        given = Credentials(secrets.token_hex(8), secrets.token_hex(16), secrets.token_hex(8))
        self._sessions[given.access_key] = given
        end = datetime.now(UTC) + timedelta(seconds=self._session_seconds)
        return _document(
            200,
            f"<CreateSessionResult><Credentials><SessionToken>{given.token}</SessionToken>"
            f"<SecretAccessKey>{given.secret_key}</SecretAccessKey><AccessKeyId>{given.access_key}</AccessKeyId>"
            f"<Expiration>{end:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials></CreateSessionResult>",
        )

    async def _list(self, bucket: str, asked: Mapping[str, str]) -> web.Response:
        """Answer with one page. The order is that of a hash of the key with the number of the listing."""
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        if "start-after" in asked or delimiter not in ("", "/") or (prefix and not prefix.endswith("/")):
            return _refused(400, "InvalidRequest")
        number, _, after = asked.get("continuation-token", f"{next(self._listings)}-").partition("-")
        most = min(int(asked.get("max-keys", 1000)), _PAGE_KEYS)
        entries = await asyncio.to_thread(self._entries, bucket, prefix, delimiter)
        places = {hashlib.sha256(f"{number} {name}".encode()).hexdigest(): name for name in entries}
        left = sorted(place for place in places if place > after)
        quoted = quote if asked.get("encoding-type") == "url" else escape
        rows = "".join(
            f"<CommonPrefixes><Prefix>{quoted(name)}</Prefix></CommonPrefixes>"
            if (facts := entries[name]) is None
            else f"<Contents><Key>{quoted(name)}</Key>{facts}</Contents>"
            for name in (places[place] for place in left[:most])
        )
        more = len(left) > most
        token = f"<NextContinuationToken>{number}-{left[most - 1]}</NextContinuationToken>" if more else ""
        encoding = "<EncodingType>url</EncodingType>" if quoted is quote else ""
        return _document(
            200,
            f"<ListBucketResult><Name>{bucket}{_SUFFIX}</Name><Prefix>{quoted(prefix)}</Prefix>{encoding}<KeyCount>"
            f"{min(len(left), most)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
            "</ListBucketResult>",
        )

    def _entries(self, bucket: str, prefix: str, delimiter: str) -> dict[str, str | None]:
        """The keys with their facts, and the folders."""
        asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix} | ({"Delimiter": delimiter} if delimiter else {})
        found: dict[str, str | None] = {}
        for page in self._s3.client().get_paginator("list_objects_v2").paginate(**asked):
            for one in page.get("Contents", ()):
                found[one["Key"]] = (
                    f"<LastModified>{one['LastModified']:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
                    f"<ETag>{escape(one['ETag'])}</ETag><Size>{one['Size']}</Size>"
                    "<StorageClass>EXPRESS_ONEZONE</StorageClass>"
                )
            found |= {one["Prefix"]: None for one in page.get("CommonPrefixes", ())}
        return found


def _document(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, headers={"Content-Type": "application/xml"}, body=f'<?xml version="1.0"?>{text}'.encode()
    )


def _refused(status: int, code: str) -> web.Response:
    return _document(status, f"<Error><Code>{code}</Code><Message>as a directory bucket does</Message></Error>")
