"""toxiproxy: network faults between a client and a server, switched on and off while they talk.

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

from harness.golang import GoProgram
from harness.server import Server, free_port

TOXIPROXY = GoProgram("toxiproxy", "v2.5.0", "github.com/Shopify/toxiproxy/v2/cmd/server", "server")
_LISTEN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class NetworkProxy:
    """One listening address that leads to one upstream."""

    api: str
    name: str
    address: str
    """`host:port` to connect to."""

    @property
    def url(self) -> str:
        """The same for HTTP."""
        return f"http://{self.address}"

    def add(
        self, kind: str, *, stream: Literal["downstream", "upstream"] = "downstream", toxicity: float = 1, **fields: int
    ) -> str:
        """Switch a toxic on; returns its name. `downstream` is what the server answers.

        `fields` are the kind's own: `latency` and `jitter` in ms, `timeout` in ms, `bytes` of `limit_data`.
        """
        name = f"{kind}-{uuid.uuid4().hex[:8]}"
        wanted = {"name": name, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": fields}
        _call(f"{self.api}/proxies/{self.name}/toxics", wanted)
        return name

    def remove(self, toxic: str) -> None:
        """Switch one off."""
        _call(f"{self.api}/proxies/{self.name}/toxics/{toxic}", method="DELETE")

    def enable(self, on: bool) -> None:
        """Off: connections are refused, those that exist are closed."""
        _call(f"{self.api}/proxies/{self.name}", {"enabled": on})

    def close(self) -> None:
        """Take the proxy away."""
        _call(f"{self.api}/proxies/{self.name}", method="DELETE")


class Toxiproxy(Server):
    """One toxiproxy with as many proxies as are asked for."""

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
        """A proxy to `host:port`, or to an URL's."""
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
    """One request to its API; GET without a body, POST with one."""
    data = None if body is None else json.dumps(body).encode()
    # It refuses what looks like a browser.
    request = urllib.request.Request(url, data=data, method=method, headers={"User-Agent": "committerd"})
    with urllib.request.urlopen(request, timeout=10) as response:
        response.read()
