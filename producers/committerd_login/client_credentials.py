"""Tokens for OAUTHBEARER from an OAuth server, by the grant of client credentials (RFC 6749, section 4.4).

kafka-python asks for a token at each login, in the thread that also sends the heartbeats of its client. So a token is
kept until most of its life is over, one request is made for all clients of a process, and it has a short time limit.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote_plus, urlencode, urlsplit

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from committerd_login.secret_file import read_secret

_log = logging.getLogger(__name__)
_SECONDS = 3.0
"""Time limit of connecting to the server, and of each wait for its response. Heartbeats and probes allow three such."""
_RENEWED_AT = 0.8
"""The part of its life after which a token is renewed; it is used until its end if that fails. As in Kafka's client."""
_PAUSE_SECONDS = 1.0
"""After a failure nobody asks again for so long."""
_LIFE_SECONDS = 60.0
"""The life of a token whose server does not say it."""
_RESPONSE_BYTES_MAX = 1024 * 1024
_QUOTED_CHARACTERS_MAX = 200
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750, section 2.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """Who asks which server for tokens. The names are those of the options without `sasl_oauth_`."""

    token_endpoint_url: str = ""
    client_id: str = ""
    client_secret: str | None = field(default=None, repr=False)
    client_secret_file: str | None = None
    """Is read at each request; a newline at its end does not count."""
    scope: str | None = None
    """Several are separated by spaces."""
    cafile: str | None = None
    """PEM file of the authorities that signed the server's certificate; None = those of the machine."""

    def __post_init__(self) -> None:
        for name in ("token_endpoint_url", "client_id"):
            if not getattr(self, name):
                raise ValueError(f"tokens by client credentials need sasl_oauth_{name}")
        url = urlsplit(self.token_endpoint_url)
        if url.scheme not in ("https", "http") or not url.hostname or "@" in url.netloc:
            raise ValueError(
                "sasl_oauth_token_endpoint_url must be https://host/path, without a user or password: they belong to "
                "sasl_oauth_client_id and sasl_oauth_client_secret"
            )
        if (self.client_secret is None) is (self.client_secret_file is None):
            raise ValueError("sasl_oauth_client_id needs sasl_oauth_client_secret or its file, and not both")
        if self.client_secret_file is not None:
            read_secret(Path(self.client_secret_file), "sasl_oauth_client_secret_file")
        if self.cafile is not None and not Path(self.cafile).is_file():
            raise ValueError(f"sasl_oauth_cafile: there is no file {self.cafile!r}")

    def secret(self) -> str:
        """The secret as it is now. Raises `ValueError` if its file can't be read."""
        if self.client_secret is not None:
            return self.client_secret
        assert self.client_secret_file is not None
        return read_secret(Path(self.client_secret_file), "sasl_oauth_client_secret_file")


class NoToken(KafkaConnectionError):  # type: ignore[misc]  # kafka-python is untyped
    """The server gave no token; the message says why, and what to do. kafka-python logs it, and connects again."""


class ClientCredentialsProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    """Gives all clients of a process the same token; any thread may ask."""

    def __init__(self, credentials: ClientCredentials, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, which only grow."""
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renewed_at = self._ends_at = self._asks_at = 0.0
        self._failure = NoToken()

    def token(self) -> str:
        """A token that has not ended. Blocks for some seconds at most. Raises `NoToken`."""
        with self._lock:
            if self._clock() >= max(self._renewed_at, self._asks_at):
                self._renew()
            if self._clock() < self._ends_at:
                return self._token
            raise NoToken(*self._failure.args)

    def _renew(self) -> None:
        asked_at = self._clock()
        try:
            self._token, seconds = ask(self._credentials)
        except NoToken as failure:
            self._failure = failure
            self._asks_at = self._clock() + _PAUSE_SECONDS
            if self._clock() < self._ends_at:
                _log.warning("%s; the last token is used until it ends", *failure.args)
            return
        self._renewed_at, self._ends_at = asked_at + _RENEWED_AT * seconds, asked_at + seconds


@lru_cache(maxsize=64)
def provider_of(credentials: ClientCredentials) -> ClientCredentialsProvider:
    """The provider of this process for these credentials: its clients share a token."""
    return ClientCredentialsProvider(credentials)


def ask(credentials: ClientCredentials) -> tuple[str, float]:
    """Ask for a token; returns it, and how many seconds it lives. Raises `NoToken`."""
    url = credentials.token_endpoint_url
    try:
        status, body = _post(credentials)
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        unknown = isinstance(reason, ssl.SSLCertVerificationError)
        remedy = ". Name the file of its authority in sasl_oauth_cafile" if unknown else ""
        raise NoToken(f"the token endpoint {url} can't be used: {reason}{remedy}") from error
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    answer = answer if isinstance(answer, dict) else {}
    if status != 200:
        raise NoToken(f"the token endpoint {url} refuses client {credentials.client_id!r}: {_reason(status, answer)}")
    token, seconds = answer.get("access_token"), answer.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise NoToken(
            f"the token endpoint {url} answers without an access_token: is sasl_oauth_token_endpoint_url the address "
            "of its tokens?"
        )
    return token, float(seconds) if isinstance(seconds, int | float) and seconds > 0 else _LIFE_SECONDS


def _reason(status: int, answer: dict[str, Any]) -> str:
    """Why, by RFC 6749, section 5.2, and what to do."""
    told = ", ".join(str(answer[name]) for name in ("error", "error_description") if answer.get(name))
    said = f"HTTP {status}" + (f" ({told[:_QUOTED_CHARACTERS_MAX]!r})" if told else "")
    if answer.get("error") == "invalid_scope":
        return f"{said}. Check sasl_oauth_scope"
    if status in (400, 401, 403):
        return f"{said}. Check sasl_oauth_client_id, and sasl_oauth_client_secret or its file"
    return f"{said}. Check sasl_oauth_token_endpoint_url, and whether the server is well"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would get the secret, and lose the form."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """None: the redirect is the response."""


def _post(credentials: ClientCredentials) -> tuple[int, bytes]:
    """Status and body of the response. Raises `OSError`, `HTTPException`, or `ValueError` about the secret's file."""
    form = {"grant_type": "client_credentials"} | ({"scope": credentials.scope} if credentials.scope else {})
    login = f"{quote_plus(credentials.client_id)}:{quote_plus(credentials.secret())}"  # RFC 6749, section 2.3.1
    request = urllib.request.Request(
        credentials.token_endpoint_url,
        data=urlencode(form).encode("ascii"),
        headers={
            "Authorization": f"Basic {base64.b64encode(login.encode('ascii')).decode('ascii')}",
            "Accept": "application/json",
        },
    )
    context = ssl.create_default_context(cafile=credentials.cafile)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            return response.status, response.read(_RESPONSE_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_RESPONSE_BYTES_MAX)
