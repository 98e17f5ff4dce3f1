"""The HTTP server, tested over real sockets."""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import anyio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from committerd.daemon import http
from committerd.daemon.http import CONNECTIONS_MAX, Address, Health, serve
from committerd.errors import SettingsError
from committerd.telemetry import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(slots=True)
class State:
    """The state that the daemon under test reports."""

    problems: list[str] = field(default_factory=list)
    ready: tuple[bool, str] = (True, "active at offset 7")
    broken: bool = False

    def health(self) -> Health:
        return Health(live=self._live, ready=lambda: self.ready)

    def _live(self) -> Sequence[str]:
        if self.broken:
            raise ZeroDivisionError
        return self.problems


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def server(state: State, registry: CollectorRegistry) -> AsyncIterator[Address]:
    async with serve(At(), registry, state.health()) as address:
        yield address


@pytest.fixture
async def client(server: Address) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, auto_decompress=False) as session:
        yield session


async def test_live_without_problems(client: aiohttp.ClientSession, state: State) -> None:
    async with client.get("/livez") as answer:
        assert answer.status == 200
        assert await answer.json() == {"live": True, "problems": []}
    state.problems.append("the Kafka thread has not turned for 12 s")
    async with client.get("/livez") as answer:
        assert answer.status == 503
        assert await answer.json() == {"live": False, "problems": state.problems}


async def test_ready_with_a_sentence(client: aiohttp.ClientSession, state: State) -> None:
    async with client.get("/readyz") as answer:
        assert answer.status == 200
        assert await answer.json() == {"ready": True, "reason": "active at offset 7"}
    state.ready = (False, "3 records wait: there is no table yet")
    async with client.get("/readyz") as answer:
        assert answer.status == 503
        assert answer.headers["Cache-Control"] == "no-store"
        assert (await answer.json())["reason"] == "3 records wait: there is no table yet"


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        (None, "text/plain", text_string_to_metric_families),
        ("*/*", "text/plain", text_string_to_metric_families),
        ("text/plain; version=not.a.number", "text/plain", text_string_to_metric_families),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text",
            open_metrics_families,
        ),
    ],
)
async def test_metrics_in_the_format_that_was_asked_for(
    client: aiohttp.ClientSession,
    registry: CollectorRegistry,
    accept: str | None,
    content_type: str,
    parse: Callable[[str], list[object]],
) -> None:
    Metrics(registry).of("events").table_version.set(41)
    headers = {} if accept is None else {"Accept": accept}
    async with client.get("/metrics", headers={**headers, "Accept-Encoding": "identity"}) as answer:
        assert answer.status == 200
        assert answer.content_type == content_type
        text = await answer.text()
    assert 'committerd_table_version{dataset="events"} 41.0\n' in text
    assert list(parse(text))


async def test_metrics_are_compressed_for_who_can_read_it(
    client: aiohttp.ClientSession, registry: CollectorRegistry
) -> None:
    Metrics(registry).of("events")
    async with client.get("/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"committerd_active" in gzip.decompress(await answer.read())


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_it_takes_no_commands(client: aiohttp.ClientSession, method: str, path: str) -> None:
    async with client.request(method, path, data=b"x") as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET,HEAD"


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd", "/livez%2f"])
async def test_other_paths_are_not_found(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path) as answer:
        assert answer.status == 404


async def test_a_probe_that_breaks_is_a_failure_and_the_server_lives_on(
    client: aiohttp.ClientSession, state: State
) -> None:
    state.broken = True
    async with client.get("/livez") as answer:
        assert answer.status == 500
    async with client.get("/readyz") as answer:
        assert answer.status == 200


async def test_connections_are_bounded_and_the_one_that_was_idle_for_longest_ends(server: Address) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{server.url}/livez") as answer:
            await answer.read()
        idle = [await anyio.connect_tcp(server.host, server.port) for _ in range(3 * CONNECTIONS_MAX)]
        for one in idle[: 2 * CONNECTIONS_MAX]:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                await one.receive()
        last = idle[-1]
        for path in ("/readyz", "/livez"):  # it stays open for another request
            await last.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert b" 200 " in await last.receive()
        async with session.get(f"{server.url}/livez") as answer:
            assert answer.status == 200
        for one in idle:
            await one.aclose()


async def test_a_connection_without_a_request_ends(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_IDLE_SECONDS_MAX", 0.0)
    async with await anyio.connect_tcp(server.host, server.port) as idle:
        await idle.send(b"GET /livez HTTP/1.1\r\nHost: ")  # and never the rest
        async with await anyio.connect_tcp(server.host, server.port):
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                await idle.receive()


async def test_an_address_that_is_taken_is_named(registry: CollectorRegistry) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{port} .* in use.*http\.port"):
            async with serve(At(port=port), registry, State().health()):
                pass


async def test_a_host_that_does_not_exist_is_named(registry: CollectorRegistry) -> None:
    with pytest.raises(SettingsError, match="no-such-host"):
        async with serve(At(host="no-such-host.invalid"), registry, State().health()):
            pass


async def test_the_port_is_free_again_at_the_end_though_a_scraper_stays_connected(
    registry: CollectorRegistry,
) -> None:
    async with aiohttp.ClientSession() as session:
        with anyio.fail_after(60):
            async with (
                serve(At(), registry, State().health()) as address,
                session.get(f"{address.url}/livez") as answer,
            ):
                await answer.read()
            async with serve(At(port=address.port), registry, State().health()) as again:
                assert again == address


async def test_cancellation_closes_the_server(registry: CollectorRegistry) -> None:
    addresses = []
    with anyio.CancelScope() as scope:
        async with serve(At(), registry, State().health()) as address:
            addresses.append(address)
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(OSError, match="connect"):
        await anyio.connect_tcp(addresses[0].host, addresses[0].port)


async def test_an_ipv6_address_is_bracketed_in_its_url(registry: CollectorRegistry) -> None:
    assert Address("::1", 80).url == "http://[::1]:80"
