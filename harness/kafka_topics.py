"""What an operator does to a topic, done when the broker acts by it."""

from __future__ import annotations

from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from harness.scene import until


def configure_topic(admin: Any, topic: str, name: str, value: str) -> None:
    """Set one configuration entry with kafka-python's admin client, and wait until the broker tells it: it takes it in
    some time after it has answered.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
    admin.alter_configs([resource])
    until(lambda: admin.describe_configs([resource], config_filter="all")["topic"][topic][name]["value"] == value)
