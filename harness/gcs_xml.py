"""A proxy that turns requests to Google Cloud Storage's XML API into requests to its JSON API: `... PORT UPSTREAM`.

committerd and pylance reach the real service with object_store. It uses the XML API, with the key as one
percent-encoded segment of the path and the condition of a put as a header. fake-gcs-server understands such keys and
conditions only in its JSON API.
"""

from __future__ import annotations

import json
import sys
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from yarl import URL

_PAGE_KEYS_MAX = 1000
_BODY_BYTES_MAX = 1 << 30
_SAID = ("Content-Range", "ETag", "Last-Modified", "x-goog-generation")
"""Headers of a response that clients read, and that are passed on."""


class _Proxy:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session = aiohttp.ClientSession(auto_decompress=False)

    async def close(self) -> None:
        await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        bucket, _, key = request.raw_path.partition("?")[0].removeprefix("/").partition("/")
        bucket, key = unquote(bucket), unquote(key)
        if not bucket:
            return web.Response()
        if not key:
            return await self._list(bucket, request)
        match request.method:
            case "PUT":
                return await self._put(bucket, key, request)
            case "GET" | "HEAD":
                return await self._get(bucket, key, request)
            case "DELETE":
                status, _, _ = await self._send("DELETE", self._object(bucket, key))
                return await self._missing(bucket) if status == 404 else web.Response(status=status)
            case _:
                return _error(405, "MethodNotAllowed")

    async def _put(self, bucket: str, key: str, request: web.BaseRequest) -> web.Response:
        condition = request.headers.get("x-goog-if-generation-match")
        query = f"uploadType=media&name={quote(key, safe='')}"
        if condition is not None:
            query += f"&ifGenerationMatch={condition}"
        url = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{query}"
        status, body, _ = await self._send("POST", url, body=await request.read())
        if status == 412:
            return _error(412, "PreconditionFailed")
        if status == 404:
            return await self._missing(bucket)
        if status != 200:
            return web.Response(status=status, body=body)
        made = json.loads(body)
        return web.Response(headers={"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]})

    async def _get(self, bucket: str, key: str, request: web.BaseRequest) -> web.Response:
        span = {"Range": request.headers["Range"]} if "Range" in request.headers else {}
        url = self._object(bucket, key) + "?alt=media"
        status, body, headers = await self._send("GET", url, headers=span)
        if status == 404:
            return await self._missing(bucket)
        if status == 206 and not body:  # fake-gcs-server, of an empty object
            return _error(416, "InvalidRange")
        said = {name: headers[name] for name in _SAID if name in headers}
        return web.Response(status=status, headers=said | {"Content-Length": str(len(body))}, body=body)

    async def _list(self, bucket: str, request: web.BaseRequest) -> web.Response:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        url = f"/storage/v1/b/{quote(bucket, safe='')}/o?prefix={quote(prefix, safe='')}"
        status, body, _ = await self._send("GET", url)
        if status == 404:
            return _error(404, "NoSuchBucket")
        found = {one["name"]: one for one in json.loads(body).get("items", ())}
        after = query.get("continuation-token") or query.get("start-after", "")
        entries = sorted({_entry(key, prefix, delimiter) for key in found}, key=str.encode)
        left = [entry for entry in entries if entry.encode() > after.encode()]
        most = int(query.get("max-keys", _PAGE_KEYS_MAX))
        page = left[:most]
        rows = [
            f"<Contents><Key>{escape(entry)}</Key><Size>{one['size']}</Size><LastModified>{one['updated']}</LastModified>"
            f"<ETag>{one['etag']}</ETag></Contents>"
            if (one := found.get(entry)) is not None
            else f"<CommonPrefixes><Prefix>{escape(entry)}</Prefix></CommonPrefixes>"
            for entry in page
        ]
        if len(left) > most:
            rows.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        return web.Response(
            text=f"<ListBucketResult>{''.join(rows)}</ListBucketResult>", content_type="application/xml"
        )

    async def _missing(self, bucket: str) -> web.Response:
        status, _, _ = await self._send("GET", f"/storage/v1/b/{quote(bucket, safe='')}")
        return _error(404, "NoSuchKey" if status == 200 else "NoSuchBucket")

    @staticmethod
    def _object(bucket: str, key: str) -> str:
        return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}"

    async def _send(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        url = URL(self._upstream + path, encoded=True)
        async with self._session.request(method, url, headers=headers, data=body) as response:
            said = {name: response.headers[name] for name in _SAID if name in response.headers}
            return response.status, await response.read(), said


def _entry(key: str, prefix: str, delimiter: str | None) -> str:
    """What a listing shows of a key: the key, or the folder that it is in."""
    head, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key[len(prefix) :], "", "")
    return prefix + head + mark


def _error(status: int, code: str) -> web.Response:
    return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")


async def _application(upstream: str) -> web.Application:
    proxy = _Proxy(upstream)
    application = web.Application(client_max_size=_BODY_BYTES_MAX)

    async def close(_: web.Application) -> None:
        await proxy.close()

    application.on_cleanup.append(close)
    application.router.add_route("*", "/{path:.*}", proxy.handle)
    return application


if __name__ == "__main__":
    web.run_app(_application(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
