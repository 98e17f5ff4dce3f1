"""The HTTP server, tested over real sockets."""

from __future__ import annotations

import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.abc import AnyByteStream
from anyio.streams.tls import TLSStream
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from committerd.daemon import http
from committerd.daemon.http import CONNECTIONS_MAX, Address, Health, serve
from committerd.errors import SettingsError
from committerd.telemetry import Metrics
from harness.certificates import Authority


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    host: str = "127.0.0.1"
    port: int = 0
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    token_file: str | None = None


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


@pytest.mark.parametrize("by_tls", [False, True])
async def test_connections_are_bounded_and_the_one_that_was_idle_for_longest_ends(
    state: State, registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_tls: bool
) -> None:
    monkeypatch.setattr(http, "_HANDSHAKE_SECONDS_MAX", 600.0)  # so that nothing else ends a connection
    authority = Authority(tmp_path)
    made = authority.issue("server", "127.0.0.1")
    listen = At(tls_certfile=str(made.chain), tls_keyfile=str(made.key)) if by_tls else At()
    trusted = trusting(authority) if by_tls else None
    async with (
        serve(listen, registry, state.health()) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted or True)) as session,
    ):
        async with session.get(f"{server.url}/livez") as answer:
            await answer.read()
        idle = [await anyio.connect_tcp(server.host, server.port) for _ in range(3 * CONNECTIONS_MAX)]
        for one in idle[: 2 * CONNECTIONS_MAX]:  # by TLS they end before their handshakes
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
                await one.receive()
        last: AnyByteStream = idle[-1]
        if trusted is not None:
            last = await TLSStream.wrap(last, ssl_context=trusted, hostname="127.0.0.1")
        for path in ("/readyz", "/livez"):  # it stays open for another request
            await last.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert b" 200 " in await last.receive()
        async with session.get(f"{server.url}/livez") as answer:
            assert answer.status == 200
        for one in idle:
            await one.aclose()


async def test_a_handshake_ends_in_time(
    state: State, registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_HANDSHAKE_SECONDS_MAX", 0.1)
    made = Authority(tmp_path).issue("server", "127.0.0.1")
    listen = At(tls_certfile=str(made.chain), tls_keyfile=str(made.key))
    async with (
        serve(listen, registry, state.health()) as server,
        await anyio.connect_tcp(server.host, server.port) as idle,
    ):
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(60):
            await idle.receive()


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


# TLS, and a token


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


async def test_by_tls_it_takes_a_new_certificate_without_a_restart(
    state: State, registry: CollectorRegistry, tmp_path: Path
) -> None:
    first, second = (Authority(tmp_path, name) for name in ("first", "second"))
    made = first.issue("server", "127.0.0.1")
    listen = At(tls_certfile=str(made.chain), tls_keyfile=str(made.key))

    async def status(trusted: Authority) -> int:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=trusting(trusted)) as response:
            return response.status

    async with serve(listen, registry, state.health()) as address:
        url = f"{address.url}/readyz"
        assert url.startswith("https://127.0.0.1:")
        assert await status(first) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(second)
        second.issue("server", "127.0.0.1")
        assert await status(second) == 200
        made.chain.unlink()
        assert await status(second) == 200  # the last one that could be read


async def test_files_without_a_certificate_are_refused(
    state: State, registry: CollectorRegistry, tmp_path: Path
) -> None:
    made = Authority(tmp_path).issue("server", "127.0.0.1")
    key = load_pem_private_key(made.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cret")))
    for listen in (
        At(tls_certfile=str(tmp_path / "none.pem")),
        At(tls_certfile=str(made.chain)),
        At(tls_certfile=str(made.chain), tls_keyfile=str(encrypted)),
        At(token_file=str(tmp_path / "none")),
    ):
        with pytest.raises(SettingsError, match=r"http\.(tls_certfile|token_file)"):
            async with serve(listen, registry, state.health()):
                pass


async def test_metrics_need_the_token_that_the_file_holds_and_probes_do_not(
    state: State, registry: CollectorRegistry, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")

    async def status(path: str, token: str | None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session, session.get(address.url + path, headers=headers) as response:
            assert "s3cret" not in await response.text()
            return response.status

    async with serve(At(token_file=str(file)), registry, state.health()) as address:
        assert [await status("/metrics", token) for token in (None, "", "wrong", "s3cret")] == [401, 401, 401, 200]
        assert await status("/livez", None) == await status("/readyz", None) == 200
        file.write_text("another")
        assert [await status("/metrics", token) for token in ("s3cret", "another")] == [401, 200]
        file.write_text("")
        assert await status("/metrics", "another") == 503
