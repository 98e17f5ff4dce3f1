"""Lets kafka-python wait before it connects again to a broker that refuses it.

A connection that the broker refuses after the handshake of TCP or TLS counts as a success. So kafka-python 3.0.12
resets its backoff, and connects again at once, for as long as a certificate or a login is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def if_connected(reset_backoff: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`reset_backoff` of a connection manager (manager, node id), for connections that are usable alone."""

    def reset(manager: Any, node_id: Any) -> None:
        connection = manager._conns.get(node_id)
        # A connection that failed is not kept. The backoff of "metadata" is that of no connection.
        if node_id != "metadata" and (connection is None or not connection.connected):
            manager.update_backoff(node_id)
        else:
            reset_backoff(manager, node_id)

    return reset
