"""An S3 server in memory that behaves as a test tells it to, including in ways that no real server should.

It checks no signature, so the clients of Azure and Google Cloud Storage read and write on it too. `script` holds
responses that replace the real ones, in their order.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

from committerd.settings.s3 import S3Settings

_OF_EACH_OBJECT = {"ETag": '"1"', "Last-Modified": "Sat, 31 Jan 2026 23:59:59 GMT"}
"""Headers that object_store demands."""
_START_SECONDS_MAX = 30.0
_FACTS = "<Size>0</Size><LastModified>2026-01-31T23:59:59.000Z</LastModified>"
"""What a listing says of each object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response that replaces the real one."""

    status: int = 200
    code: str = ""
    """The code in an S3 error document."""
    body: bytes | None = None
    """The body, in place of that document."""
    headers: dict[str, str] = field(default_factory=dict)
    applied: bool = False
    """Whether the request is applied nevertheless."""
    cut: int | None = None
    """Close the connection after this many bytes of the body; 0 = without a response."""
    silent: bool = False
    """Never respond."""


class FakeS3:
    """Listens inside the block. `honest=False`: ignores `If-None-Match`."""

    def __init__(self, *, honest: bool = True, ranges: bool = True) -> None:
        self.honest = honest
        self.ranges = ranges
        """Whether it supports `Range`."""
        self.objects: dict[str, bytes] = {}
        self.script: deque[Answer] = deque()
        self.requests: list[str] = []
        """Method and path of each request, in the order of arrival."""
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-s3", daemon=True)

    def settings(self, **more: object) -> S3Settings:
        """Settings for a client of it."""
        return S3Settings.model_validate(
            {
                "endpoint_url": self.url,
                "region": "us-east-1",
                "addressing_style": "path",
                "access_key_id": "AKIAFAKE",
                "secret_access_key": "a-secret-of-ours",
                "connect_timeout_seconds": 30,
                "read_timeout_seconds": 30,
                "attempts": 3,
                **more,
            }
        )

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(_START_SECONDS_MAX)
        assert self.url, "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set_result, None)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._started.set()
            await self._end
            await runner.cleanup()
        finally:
            self._started.set()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.requests.append(f"{request.method} {request.path}")
        self.headers.append(dict(request.headers))
        scripted = self.script.popleft() if self.script else None
        if scripted is None:
            truth = self._apply(request, body)
            truth.headers.update(_OF_EACH_OBJECT)
            return truth
        if scripted.applied:
            truth = self._apply(request, body)
            if scripted.cut is not None:
                return await _cut(request, truth.body if isinstance(truth.body, bytes) else b"", scripted.cut)
        if scripted.silent:
            await asyncio.shield(self._end)
        if scripted.cut is not None:
            return await _cut(request, b"", scripted.cut)
        said = _document(scripted.code) if scripted.body is None else scripted.body
        return web.Response(status=scripted.status, headers=scripted.headers, body=said)

    def _apply(self, request: web.BaseRequest, body: bytes) -> web.Response:
        bucket, _, key = request.path.removeprefix("/").partition("/")
        if bucket != "bucket":
            return _error(404, "NoSuchBucket")
        match request.method:
            case "PUT":
                return self._put(request, key, body)
            case "GET" if "list-type" in request.query:
                return self._list(request)
            case "GET" | "HEAD":
                return self._get(request, key)
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
            case _:
                return _error(405, "MethodNotAllowed")

    def _put(self, request: web.BaseRequest, key: str, body: bytes) -> web.Response:
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            copied = self.objects.get(unquote(source).removeprefix("/").partition("/")[2])
            if copied is None:
                return _error(404, "NoSuchKey")
            self.objects[key] = copied
            return web.Response(body=b"<CopyObjectResult></CopyObjectResult>")
        if self.honest and "If-None-Match" in request.headers and key in self.objects:
            return _error(412, "PreconditionFailed")
        self.objects[key] = body
        return web.Response()

    def _get(self, request: web.BaseRequest, key: str) -> web.Response:
        body = self.objects.get(key)
        if body is None:
            return _error(404, "NoSuchKey")
        span = request.headers.get("Range") if self.ranges else None
        if span is None:
            return web.Response(body=body, headers={"Content-Length": str(len(body))})
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(len(body) - int(last), 0)
        end = min(int(last) + 1, len(body)) if first else len(body)
        if start >= len(body):
            return _error(416, "InvalidRange")
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}
        return web.Response(status=206, body=body[start:end], headers=headers)

    def _list(self, request: web.BaseRequest) -> web.Response:
        query = request.query
        prefix, most = query["prefix"], int(query.get("max-keys", 1000))
        after = query.get("continuation-token") or query.get("start-after", "")
        entries = sorted(
            {
                prefix + name[: name.index("/") + 1]
                if "/" in (name := key[len(prefix) :]) and "delimiter" in query
                else key
                for key in self.objects
                if key.startswith(prefix)
            }
        )
        left = [entry for entry in entries if entry > after]
        page, more = left[:most], len(left) > most
        rows = "".join(
            f"<CommonPrefixes><Prefix>{escape(entry)}</Prefix></CommonPrefixes>"
            if entry.endswith("/") and entry != prefix
            else f"<Contents><Key>{escape(entry)}</Key>{_FACTS}</Contents>"
            for entry in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        return web.Response(body=text.encode())


async def _cut(request: web.BaseRequest, body: bytes, after: int) -> web.StreamResponse:
    """Send this much of the response, then close the connection."""
    answer = web.StreamResponse()
    if after:
        answer.content_length = len(body)
        await answer.prepare(request)
        await answer.write(body[:after])
    if request.transport is not None:
        request.transport.close()
    return answer


def _error(status: int, code: str) -> web.Response:
    return web.Response(status=status, body=_document(code))


def _document(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>the server says {code}</Message></Error>".encode() if code else b""
