"""Group `http`: the address of metrics, probes and the status page."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from committerd.settings.group import SettingsGroup


class HttpSettings(SettingsGroup):
    """Where /metrics, /livez, /readyz and the status page are served; read-only."""

    host: str = Field(default="0.0.0.0", description="Address to listen on.")
    port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="Port to listen on; 0 = a free port, which the log names.",
    )
    tls_certfile: str | None = Field(
        default=None,
        description="PEM file of the server's certificate: with it, metrics and probes are served by HTTPS alone. It "
        "is read again when it changes.",
    )
    tls_keyfile: str | None = Field(
        default=None,
        description="PEM file of the certificate's private key, without a password; unset: it is in tls_certfile.",
    )
    token_file: str | None = Field(
        default=None,
        description="File with a token that /metrics and the status page require (Authorization: Bearer TOKEN); the "
        "probes do not. It is read at each request.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.tls_keyfile is not None and self.tls_certfile is None:
            raise ValueError("tls_keyfile needs tls_certfile, the certificate that belongs to the key")
        return self
