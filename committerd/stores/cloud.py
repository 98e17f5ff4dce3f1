"""What differs between the clouds whose object stores committerd reaches through obstore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from committerd.settings.clouds import CloudSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class Cloud:
    """One cloud."""

    service: str
    """Its name in metrics; also that of its group of settings, and of the extra that brings obstore."""
    name: str
    """Its name in messages."""
    form: str
    """The URI of a table, for messages."""
    schemes: Mapping[str, str]
    """Schemes of URIs that are served, each with the spelling that Lance reads."""
    obstore_class: str
    """Name of the class in `obstore.store`."""
    defaults: CloudSettings
    """Its group of settings, with nothing set."""
    options: Callable[[Any], Mapping[str, str | None]]
    """Lance's storage options of a group of settings, which are obstore's configuration too; None = not set."""
    credentials: Callable[[Any], Any] = lambda settings: None
    """What fetches credentials that obstore can't fetch by itself (its `credential_provider`). Raises `ValueError`."""
    has_suffix_ranges: bool
    """Whether a server serves the last bytes of an object whose size is not known."""
    versioning_advice: str = ""
    """For a container whose puts create versions of blobs; empty where a put does not tell."""
    advice: Mapping[str, str]
    """Hints for messages, by the server's error code, by status, or by the reason that its certificate is refused."""


def certificate_advice(service: str) -> Mapping[str, str]:
    """Hints for certificates that are refused, by rustls' names of the reasons."""
    return {
        "UnknownIssuer": f"it is of an authority that this machine does not know: set {service}.ca_bundle to the file "
        f"of that authority, or correct {service}.endpoint_url",
        "NotValidForNameContext": f"it is of another host: correct {service}.endpoint_url",
        "ExpiredContext": "it has ended, or the clock of this machine is wrong",
    }


def plain(secret: SecretStr | None) -> str | None:
    """The value of a secret."""
    return None if secret is None else secret.get_secret_value()
