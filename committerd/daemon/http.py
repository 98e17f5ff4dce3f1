"""The committer's HTTP server: `/metrics`, `/livez` and `/readyz`, and the status page. It takes no commands.

The daemon determines its state (`Health`); this module only formats it for Prometheus and Kubernetes.

Whoever reaches the port can open connections, and each takes one of the files that the process may have. So they are
few, and if there are too many the server closes the connection that has been idle for longest: a probe gets through.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import anyio
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from committerd.daemon.server_tls import server_context
from committerd.errors import SettingsError
from committerd.page.site import Page
from committerd_login.secret_file import read_secret

CONNECTIONS_MAX = 64
"""Maximum number of open connections."""
_ACCEPTED_AT_ONCE = 64
"""So many more may be open for a moment, until the server has closed them."""
_HANDSHAKE_SECONDS_MAX = 5.0
"""Time limit of a TLS handshake."""
_IDLE_SECONDS_MAX = 75.0
"""How long a connection may be open without a request; after that it ends when another is opened, as by a probe."""
_PROBES = frozenset({"/livez", "/readyz"})
"""The kubelet asks them without a token."""
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

    @property
    def tls_certfile(self) -> str | None:
        """PEM file of the certificate; None = no TLS."""
        ...

    @property
    def tls_keyfile(self) -> str | None:
        """PEM file of the certificate's private key; None = it is in the certificate's file."""
        ...

    @property
    def token_file(self) -> str | None:
        """File with the token that all pages but the probes require; None = nobody needs a token."""
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
    scheme: str = "http"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@asynccontextmanager
async def serve(
    listen: Listen, registry: CollectorRegistry, health: Health, more: Mapping[str, Page] | None = None
) -> AsyncIterator[Address]:
    """Serve while the block runs; yields the bound address. `more`: other pages, by path, with the token too.

    Raises `SettingsError` if it can't be bound, or if a file of the certificate or the token can't be read.
    """
    tls = None if listen.tls_certfile is None else server_context(listen.tls_certfile, listen.tls_keyfile)
    pages = dict(_pages(registry, health))
    pages |= {path: _shown(page) for path, page in (more or {}).items()}
    if listen.token_file is not None:
        file = Path(listen.token_file)
        pages |= {path: _with_token(page, file) for path, page in pages.items() if path not in _PROBES}
    server = _Server(pages, tls)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_CLOSE_SECONDS_MAX)
    try:
        await runner.setup()
        try:
            # Without `ssl_context`, with which asyncio tells of a connection only when its TLS handshake is over.
            await web.TCPSite(runner, listen.host, listen.port, backlog=_ACCEPTED_AT_ONCE).start()
        except OSError as error:
            raise SettingsError(
                f"can't listen on {listen.host}:{listen.port} for /metrics and the probes: "
                f"{error.strerror or error}. Choose another address with http.host and http.port "
                "(COMMITTERD_HTTP__PORT)"
            ) from error
        host, port = runner.addresses[0][:2]
        yield Address(host, port, "http" if tls is None else "https")
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
            server.abort()


_Page: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.Response]]


class _Server(web.Server):
    """Serves pages, by their paths, over a bounded number of connections."""

    def __init__(self, pages: Mapping[str, _Page], tls: ssl.SSLContext | None) -> None:
        super().__init__(self._handle, access_log=None, keepalive_timeout=_IDLE_SECONDS_MAX)
        self._pages = pages
        self._tls = tls
        self._open: OrderedDict[web.RequestHandler, _Connection] = OrderedDict()
        """Idle for longest first."""

    def __call__(self) -> Any:
        """A new connection's protocol: one that counts it, and then gives it to a handler of requests."""
        return _Connection(self._open, super().__call__(), self._tls)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._open.pop(handler, None)
        super().connection_lost(handler, exc)

    def abort(self) -> None:
        """End the connections that are still open, as those in their TLS handshakes."""
        for connection in list(self._open.values()):
            connection.transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        connection = self._open.get(request.protocol)
        if connection is not None:
            connection.used_at = anyio.current_time()
            self._open.move_to_end(request.protocol)
        page = self._pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="404: Not Found")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="405: Method Not Allowed", headers={"Allow": "GET,HEAD"})
        return await page(request)


class _Connection(asyncio.Protocol):
    """Counts a connection from its beginning, before TLS, and ends those for which there is no room."""

    transport: asyncio.Transport
    used_at: float
    """When the connection was opened or had its last request, in seconds."""

    def __init__(
        self,
        connections: OrderedDict[web.RequestHandler, _Connection],
        handler: web.RequestHandler,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._connections = connections
        self._handler = handler
        self._tls = tls
        self._received = b""
        self._lost = False
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.used_at = transport, anyio.current_time()
        self._connections[self._handler] = self
        for handler, connection in list(self._connections.items()):
            if len(self._connections) <= CONNECTIONS_MAX and self.used_at - connection.used_at < _IDLE_SECONDS_MAX:
                break
            del self._connections[handler]
            connection.transport.abort()
        if self._tls is None:
            self._serve(transport)
        else:
            self._handshake = asyncio.get_running_loop().create_task(self._secure(self._tls))

    def data_received(self, data: bytes) -> None:
        """Keep what comes with the end of the handshake."""
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.pop(self._handler, None)

    async def _secure(self, tls: ssl.SSLContext) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self.transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS_MAX
            )
        except OSError:  # no TLS, no trust, or no end in time
            secured = None
        if secured is None or self._lost:
            self._connections.pop(self._handler, None)
        else:
            self._serve(secured)

    def _serve(self, transport: asyncio.Transport) -> None:
        transport.set_protocol(self._handler)
        self._handler.connection_made(transport)
        if self._received:
            self._handler.data_received(self._received)


def _pages(registry: CollectorRegistry, health: Health) -> Mapping[str, _Page]:
    async def metrics(request: web.BaseRequest) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is not a number
            encode, content_type = choose_encoder("")
        response = web.Response(body=encode(registry), headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def livez(_: web.BaseRequest) -> web.Response:
        problems = list(health.live())
        return _response(not problems, {"live": not problems, "problems": problems})

    async def readyz(_: web.BaseRequest) -> web.Response:
        ready, text = health.ready()
        return _response(ready, {"ready": ready, "reason": text})

    return {"/metrics": metrics, "/livez": livez, "/readyz": readyz}


def _with_token(page: _Page, file: Path) -> _Page:
    """The page, for requests that have the token. Raises `SettingsError` if the file can't be read."""
    try:
        read_secret(file, "http.token_file")
    except ValueError as error:
        raise SettingsError(str(error)) from error

    async def guarded(request: web.BaseRequest) -> web.Response:
        try:
            wanted = f"Bearer {read_secret(file, 'http.token_file')}".encode()
        except ValueError as error:
            return web.Response(status=503, text=f"503: {error}")
        if not hmac.compare_digest(_given(request), wanted):
            text = "401: this needs the token of http.token_file: as Authorization: Bearer TOKEN, or as a password"
            response = web.Response(status=401, text=text, headers={"WWW-Authenticate": "Bearer"})
            response.headers.add("WWW-Authenticate", 'Basic realm="committerd", charset="UTF-8"')
            return response
        return await page(request)

    return guarded


def _given(request: web.BaseRequest) -> bytes:
    """The header with the token. Browsers ask for a user, which may be any, and send the token as the password."""
    given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    kind, _, credentials = given.partition(b" ")
    if kind.lower() != b"basic":
        return given
    try:
        return b"Bearer " + base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _shown(page: Page) -> _Page:
    async def shown(request: web.BaseRequest) -> web.Response:
        reply = await page(request.query)
        response = web.Response(
            status=reply.status,
            body=reply.body,
            content_type=reply.content_type,
            charset="utf-8",
            headers=reply.headers,
        )
        response.enable_compression()
        return response

    return shown


def _response(good: bool, body: dict[str, object]) -> web.Response:
    return web.json_response(body, status=200 if good else 503, headers={"Cache-Control": "no-store"})
