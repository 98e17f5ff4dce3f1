"""The common base of the groups `s3`, `azure` and `gcs` of the settings: how requests to a store are sent."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from committerd.settings.group import SettingsGroup


def _checked_endpoint(url: str | None) -> str | None:
    """The URL, if it names a server. Raises `ValueError`, whose message never contains a possible password."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the URL must not contain a user or password: credentials have settings of their own, such as "
            "s3.access_key_id and s3.secret_access_key"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("an endpoint is http://host:port or https://host:port")
    return url


EndpointUrl = Annotated[str | None, AfterValidator(_checked_endpoint)]
"""URL of a server, without credentials; None = the service's own."""


class RequestSettings(SettingsGroup):
    """How requests to a store are sent."""

    endpoint_url: EndpointUrl = Field(
        default=None,
        description="URL of another server of the same protocol, such as an emulator or a private endpoint; unset: "
        "the cloud itself.",
    )
    connect_timeout_seconds: float = Field(default=5.0, gt=0, le=300, description="How long connecting may take.")
    read_timeout_seconds: float = Field(
        default=20.0, gt=0, le=300, description="How long the server may be silent before a request counts as lost."
    )
    attempts: int = Field(
        default=5,
        ge=1,
        le=20,
        description="Maximum number of tries of a request that is safe to repeat, with growing random waits between "
        "them. The put of a manifest is tried once: the commit reads back before it tries again.",
    )
