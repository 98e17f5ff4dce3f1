"""Runs toxiproxy: network faults between a client and a server that can be switched on and off at any time.

toxiproxy.proxy(s3.url).add("latency", latency=60)
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from committerd.dev.parts import free_port
from harness.golang import GoProgram
from harness.server import Server

TOXIPROXY = GoProgram("toxiproxy", "v2.5.0", "github.com/Shopify/toxiproxy/v2/cmd/server", "server")
_LISTEN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class NetworkProxy:
    """A proxy to one upstream."""

    api: str
    name: str
    address: str
    """`host:port` to connect to."""

    @property
    def url(self) -> str:
        """Its HTTP URL."""
        return f"http://{self.address}"

    def add(
        self, kind: str, *, stream: Literal["downstream", "upstream"] = "downstream", toxicity: float = 1, **fields: int
    ) -> str:
        """Switch a toxic on; returns its name. `downstream`: the direction of the server's responses.

        `fields`: the attributes of the kind: `latency` and `jitter` in ms, `timeout` in ms, `bytes` of `limit_data`.
        """
        name = f"{kind}-{uuid.uuid4().hex[:8]}"
        wanted = {"name": name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": fields}
        _call(f"{self.api}/proxies/{self.name}/toxics", wanted)
        return name

    def remove(self, toxic: str) -> None:
        """Switch a toxic off."""
        _call(f"{self.api}/proxies/{self.name}/toxics/{toxic}", method="DELETE")

    def enable(self, on: bool) -> None:
        """Switch the proxy on or off. Off: it closes existing connections and refuses new ones."""
        _call(f"{self.api}/proxies/{self.name}", {"enabled": on})

    def close(self) -> None:
        """Remove the proxy."""
        _call(f"{self.api}/proxies/{self.name}", method="DELETE")


class Toxiproxy(Server):
    """A toxiproxy server, with any number of proxies."""

    name = "toxiproxy"

    def command(self, port: int) -> Sequence[str | Path]:
        return [TOXIPROXY.built(), "-host", "127.0.0.1", "-port", str(port)]

    def answers(self) -> bool:
        try:
            _call(f"{self.url}/version")
        except OSError:
            return False
        return True

    def proxy(self, upstream: str) -> NetworkProxy:
        """A proxy to `host:port`, or to the host and port of a URL."""
        target = urlsplit(upstream).netloc or upstream
        for attempt in range(1, _LISTEN_ATTEMPTS + 1):
            name, address = f"p-{uuid.uuid4().hex[:8]}", f"127.0.0.1:{free_port()}"
            try:
                _call(f"{self.url}/proxies", {"name": name, "listen": address, "upstream": target})
            except urllib.error.HTTPError:  # another program took the port
                if attempt == _LISTEN_ATTEMPTS:
                    raise
            else:
                return NetworkProxy(self.url, name, address)
        raise AssertionError("unreachable")


def _call(url: str, body: dict[str, Any] | None = None, *, method: str | None = None) -> None:
    """Send a request to its API: by default GET without a body, POST with one."""
    data = None if body is None else json.dumps(body).encode()
    # It refuses requests that look like a browser's.
    request = urllib.request.Request(url, data=data, method=method, headers={"User-Agent": "committerd"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()
