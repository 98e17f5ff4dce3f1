"""Checks whether Kafka responds: each member sends a request every few seconds, on a connection of its own.

Nothing else shows an outage in time: a consumer that gets no responses looks as if it had nothing to read. The
request goes to the leader of the staged partition, so a cluster that is up but can't serve the topic counts as not
responding. The response that the topic does not exist counts as a response.
"""

from __future__ import annotations

import time

import anyio
from anyio import CapacityLimiter, to_thread
from kafka import TopicPartition

from committerd.errors import CommitterError, RefusedToRun
from committerd.kafka.admin import TopicAdmin
from committerd.machine import unavailable
from committerd.settings.kafka import KafkaSettings

_ASK_SECONDS = 5.0
_TIMEOUT_MS = 5_000


class KafkaContact:
    """Keeps `responded_at` up to date while `run` runs."""

    def __init__(self, settings: KafkaSettings, name: str, *, staged: TopicPartition) -> None:
        timeout = max(min(settings.request_timeout_ms, _TIMEOUT_MS), settings.fetch_max_wait_ms + 1)
        self._settings = settings.model_copy(update={"request_timeout_ms": timeout})
        self._name = name
        self._staged = staged
        self._admin: TopicAdmin | None = None
        self._lane = CapacityLimiter(1)
        self.responded_at = time.monotonic()
        """When Kafka last responded (monotonic clock, seconds); before the first response, when this was created."""
        self.failure = ""
        """Why the last request got no response; empty if it got one."""

    async def run(self) -> None:
        """Send requests until cancelled."""
        while True:
            await anyio.sleep(_ASK_SECONDS)
            try:
                await to_thread.run_sync(self._ask, limiter=self._lane, abandon_on_cancel=True)
            except Exception as error:
                if unavailable(error) is None:
                    raise  # else this process can't ask, and has no response either

    def close(self) -> None:
        """Close the connection; blocks."""
        if self._admin is not None:
            self._admin.close()

    def _ask(self) -> None:
        try:
            if self._admin is None:
                self._admin = TopicAdmin(self._settings, self._name, bootstrap_ms=_TIMEOUT_MS)
            self._admin.identity(self._staged.topic, None)
            self._admin.bounds([self._staged])
        except RefusedToRun:
            pass  # Kafka has responded: the topic does not exist
        except CommitterError as error:
            self.failure = str(error)
            return
        self.failure = ""
        self.responded_at = time.monotonic()
