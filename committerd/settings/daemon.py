"""Group `daemon`: how the process stops."""

from __future__ import annotations

from pydantic import Field

from committerd.settings.group import SettingsGroup


class DaemonSettings(SettingsGroup):
    """The process."""

    drain_seconds: float = Field(
        default=20.0,
        gt=0,
        description="After SIGTERM: time to finish the commit in flight and publish its outcomes. Keep it below "
        "Kubernetes' terminationGracePeriodSeconds.",
    )
    refused_retry_seconds: float = Field(
        default=10.0,
        gt=0,
        description="After a refusal to run: time until the committer looks at table and topic again.",
    )
