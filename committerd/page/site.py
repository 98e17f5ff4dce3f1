"""The page's paths: what a GET of each answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from committerd.page.views import Process

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/api/openapi.json": ("openapi.json", "application/json"),
}


class Reply(NamedTuple):
    """What is sent."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = _HEADERS


Query = Mapping[str, str]
Page = Callable[[Query], Awaitable[Reply]]


def pages(process: Process) -> Mapping[str, Page]:
    """The pages, by path."""

    async def status(query: Query) -> Reply:
        return _json(await process.status(query.get("dataset")))

    async def transactions(query: Query) -> Reply:
        return _json(await process.transactions(query.get("dataset")))

    files = {path: _file(*named) for path, named in _FILES.items()}
    return {**files, "/api/status": status, "/api/transactions": transactions}


def _file(name: str, content_type: str) -> Page:
    body = resources.files("committerd.page").joinpath("resources", name).read_bytes()

    async def file(_: Query) -> Reply:
        return Reply(200, content_type, body)

    return file


def _json(value: Mapping[str, Any] | None) -> Reply:
    if value is None:
        problem = {"error": "this process serves no dataset of this name"}
        return Reply(404, "application/json", json.dumps(problem).encode())
    return Reply(200, "application/json", json.dumps(value).encode())
