"""The committer's HTTP server: `/metrics`, `/livez` and `/readyz`. It takes no commands.

The daemon determines its state (`Health`); this module only formats it for Prometheus and Kubernetes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import anyio
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from committerd.errors import SettingsError

_CLOSE_SECONDS_MAX = 1.0
"""Scrapers keep their connections open; closing the server waits at most this long for them."""


class Listen(Protocol):
    """The address to listen on."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int:
        """0 = any free port."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Functions that run at every request, on the event loop. They must not wait."""

    live: Callable[[], Sequence[str]]
    """The parts that are stuck, so that only a restart can help; empty if all is well."""
    ready: Callable[[], tuple[bool, str]]
    """Whether the member is ready, and a sentence on what it does or waits for."""


class Address(NamedTuple):
    """The address on which the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@asynccontextmanager
async def serve(listen: Listen, registry: CollectorRegistry, health: Health) -> AsyncIterator[Address]:
    """Serve while the block runs; yields the bound address. Raises `SettingsError` if it can't be bound."""
    runner = web.AppRunner(
        _application(registry, health),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_CLOSE_SECONDS_MAX,
    )
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, listen.host, listen.port).start()
        except OSError as error:
            raise SettingsError(
                f"can't listen on {listen.host}:{listen.port} for /metrics and the probes: "
                f"{error.strerror or error}. Choose another address with http.host and http.port "
                "(COMMITTERD_HTTP__PORT)"
            ) from error
        yield Address(*runner.addresses[0][:2])
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


def _application(registry: CollectorRegistry, health: Health) -> web.Application:
    async def metrics(request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is not a number
            encode, content_type = choose_encoder("")
        response = web.Response(body=encode(registry), headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def livez(_: web.Request) -> web.Response:
        problems = list(health.live())
        return _response(not problems, {"live": not problems, "problems": problems})

    async def readyz(_: web.Request) -> web.Response:
        ready, text = health.ready()
        return _response(ready, {"ready": ready, "reason": text})

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    return application


def _response(good: bool, body: dict[str, object]) -> web.Response:
    return web.json_response(body, status=200 if good else 503, headers={"Cache-Control": "no-store"})
