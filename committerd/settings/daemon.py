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
    datasets_file: str | None = Field(
        default=None,
        description="File with datasets, as [datasets.NAME] in TOML, or as the object datasets in JSON (a name that "
        "ends in .json). It is read again when it changes: tables come and go without a restart.",
    )
    refused_retry_seconds: float = Field(
        default=10.0,
        gt=0,
        description="After a refusal to run: time until the committer looks at table and topic again.",
    )
