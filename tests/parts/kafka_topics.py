"""What an operator does to a topic, done when the broker acts by it."""

from __future__ import annotations

import time
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

_SECONDS_MAX = 30.0
_PAUSE_SECONDS = 0.02


def configure_topic(admin: Any, topic: str, name: str, value: str) -> None:
    """Set one configuration entry with kafka-python's admin client, and wait until the broker tells it: it takes it in
    some time after it has answered.
    """
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])
    resource, deadline = ConfigResource(ConfigResourceType.TOPIC, topic), time.monotonic() + _SECONDS_MAX
    while admin.describe_configs([resource], config_filter="all")["topic"][topic][name]["value"] != value:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}: {name} is not {value} {_SECONDS_MAX:g} s after it was set")
        time.sleep(_PAUSE_SECONDS)
