"""Changes a topic as an operator does, and waits until the change has effect."""

from __future__ import annotations

from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from harness.scene import until


def configure_topic(admin: Any, topic: str, name: str, value: str) -> None:
    """Set one configuration entry with kafka-python's admin client, and wait until the broker returns the new value.

    The broker applies a change some time after its response.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
    admin.alter_configs([resource])
    until(lambda: admin.describe_configs([resource], config_filter="all")["topic"][topic][name]["value"] == value)
