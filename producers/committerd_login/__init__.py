"""How client and committer log in to Kafka beyond what kafka-python knows: passwords in files, and OAuth's tokens.

`kafka_python_options` turns options of these names into kafka-python's:

* `sasl_plain_password_file`: the password for PLAIN and SCRAM, read at each login;
* `sasl_oauth_token_endpoint_url`, `sasl_oauth_client_id`, `sasl_oauth_client_secret` or
  `sasl_oauth_client_secret_file`, `sasl_oauth_scope`, `sasl_oauth_cafile`: tokens for OAUTHBEARER by the grant of
  client credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from committerd_login.client_credentials import ClientCredentials, provider_of
from committerd_login.password_file import PasswordFile, read_password_files

_PASSWORD_FILE = "sasl_plain_password_file"
_OAUTH = {f"sasl_oauth_{field.name}": field.name for field in fields(ClientCredentials)}
LOGIN_OPTIONS = frozenset({_PASSWORD_FILE, *_OAUTH})
_PROXIES = ("socks5", "socks5h", "http")
"""The schemes that kafka-python knows."""


def kafka_python_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with kafka-python's names in place of `LOGIN_OPTIONS`; an option that is None counts as not given.

    Raises `ValueError` if options are missing, exclude each other, or name a file that can't be read.
    """
    given = {name: value for name, value in options.items() if name in LOGIN_OPTIONS and value is not None}
    made = {name: value for name, value in options.items() if name not in LOGIN_OPTIONS}
    _require_proxy(made.get("proxy_url"))
    if given and made.get("security_protocol") not in ("SASL_SSL", "SASL_PLAINTEXT"):
        raise ValueError(f"{min(given)} needs security_protocol SASL_SSL or SASL_PLAINTEXT: otherwise it is not used")
    if _PASSWORD_FILE in given:
        if made.get("sasl_plain_password") is not None:
            raise ValueError("sasl_plain_password and sasl_plain_password_file exclude each other: set one of them")
        read_password_files()
        made["sasl_plain_password"] = PasswordFile.of(given.pop(_PASSWORD_FILE))
    if given:
        if made.get("sasl_oauth_token_provider") is not None:
            raise ValueError(f"sasl_oauth_token_provider and {min(given)} exclude each other: set one of them")
        if made.get("sasl_mechanism") != "OAUTHBEARER":
            raise ValueError(f"{min(given)} needs sasl_mechanism OAUTHBEARER: otherwise it is not used")
        credentials = ClientCredentials(**{_OAUTH[name]: value for name, value in given.items()})
        made["sasl_oauth_token_provider"] = provider_of(credentials)
    return made


def _require_proxy(url: Any) -> None:
    """Raise `ValueError` for a proxy that kafka-python would refuse, with its URL, which may hold a password."""
    if url is None:
        return
    try:
        found = urlsplit(url)
        known = found.scheme in _PROXIES and found.hostname and found.port
    except (TypeError, ValueError, AttributeError):  # no text, or a port that is no number
        known = None
    if not known:
        raise ValueError("proxy_url is socks5://host:port, or with a login socks5://user:password@host:port")
