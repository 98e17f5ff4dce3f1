"""TLS with an authority of its own, in front of a server that has none: `... PORT UPSTREAM_PORT CERTIFICATE KEY`."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.abc
from anyio.streams.tls import TLSListener

from harness.certificates import Authority
from harness.server import Server


class TlsFront(Server):
    """Passes on what it decrypts to another server of this machine."""

    name = "tls"

    def __init__(self, upstream: str) -> None:
        """`upstream`: URL of the server."""
        super().__init__()
        self._upstream = urlsplit(upstream).port
        authority = Authority(self.folder, "authorities")
        self.authorities = authority.file
        """The authority that has signed the certificate."""
        self._issued = authority.issue("server", "localhost")

    @property
    def url(self) -> str:
        return super().url.replace("http://127.0.0.1", "https://localhost")

    def command(self, port: int) -> Sequence[str | Path]:
        return [
            *(sys.executable, "-m", "harness.tls"),
            *(str(port), str(self._upstream), self._issued.chain, self._issued.key),
        ]

    def answers(self) -> bool:
        try:
            anyio.run(_handshake, self.url, str(self.authorities))
        except OSError:
            return False
        return True


async def _handshake(url: str, authorities: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    context = ssl.create_default_context(cafile=authorities)
    stream = await anyio.connect_tcp("localhost", port, tls=True, ssl_context=context, tls_standard_compatible=False)
    await stream.aclose()


async def _serve(words: Sequence[str]) -> None:
    port, upstream, certificate, key = int(words[0]), int(words[1]), *words[2:]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def handle(client: anyio.abc.ByteStream) -> None:
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", upstream) as server,
            anyio.create_task_group() as tasks,
        ):

            async def pass_on(source: anyio.abc.ByteStream, target: anyio.abc.ByteStream) -> None:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    async for data in source:
                        await target.send(data)
                tasks.cancel_scope.cancel()  # one side is gone, so the other is closed

            tasks.start_soon(pass_on, client, server)
            tasks.start_soon(pass_on, server, client)

    listener = await anyio.create_tcp_listener(local_host="localhost", local_port=port)
    await TLSListener(listener, context, standard_compatible=False).serve(handle)


if __name__ == "__main__":
    anyio.run(_serve, sys.argv[1:])
