"""Group `http`: the address of metrics and probes."""

from __future__ import annotations

from pydantic import Field

from committerd.settings.group import SettingsGroup


class HttpSettings(SettingsGroup):
    """Where /metrics, /livez and /readyz are served; read-only."""

    host: str = Field(default="0.0.0.0", description="Address to listen on.")
    port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="Port to listen on; 0 = a free port, which the log names.",
    )
