"""A Kafka with outages of several kinds: the broker can be killed or frozen, and the network can be cut.

with AwayKafka(toxiproxy) as kafka:
    with kafka.away("silent"):
        ...
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Literal, Self

from committerd.dev.parts import free_ports
from harness.kafka import KafkaBroker
from harness.toxiproxy import Toxiproxy

Outage = Literal["killed", "frozen", "refused", "silent"]
OUTAGES: tuple[Outage, ...] = ("killed", "frozen", "refused", "silent")
"""killed: SIGKILL. frozen: SIGSTOP; connections stay open. refused: the network closes connections and accepts no new
ones. silent: the network drops all packets, in both directions, and connections stay open.
"""


class AwayKafka:
    """A broker whose advertised address is that of the proxy."""

    def __init__(self, network: Toxiproxy) -> None:
        ports = free_ports(3)
        self._proxy = network.proxy(f"127.0.0.1:{ports[0]}")
        self.broker = KafkaBroker(
            settings={"advertised.listeners": f"PLAINTEXT://{self._proxy.address}"},
            ports=ports,
        )
        self.returned_at = 0.0
        """When the last outage ended (monotonic clock, seconds)."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the proxy."""
        return self._proxy.address

    @contextlib.contextmanager
    def away(self, how: Outage) -> Iterator[None]:
        """Make Kafka unavailable during the block, and available again after it."""
        match how:
            case "killed":
                self.broker.kill()
                yield
                self.broker.start()
            case "frozen":
                self.broker.freeze()
                yield
                self.broker.thaw()
            case "refused":
                self._proxy.enable(False)
                yield
                self._proxy.enable(True)
            case "silent":
                lost = [
                    self._proxy.add("timeout", stream="upstream", timeout=0),
                    self._proxy.add("timeout", stream="downstream", timeout=0),
                ]
                yield
                for toxic in lost:
                    self._proxy.remove(toxic)
        self.returned_at = time.monotonic()

    def close(self) -> None:
        """Stop the broker and remove the proxy."""
        self.broker.close()
        self._proxy.close()

    def __enter__(self) -> Self:
        try:
            self.broker.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
