"""Tokens for OAUTHBEARER from an OAuth server, by the grant of client credentials (RFC 6749, section 4.4).

kafka-python asks for a token at each login, in the thread that also sends the heartbeats of its client. So a token is
kept until most of its life is over, a thread of its own asks for the next one, for all clients of a process with the
same credentials, and a login waits for it only if there is no other token, and for a short time.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote_plus, urlencode, urlsplit
from weakref import WeakSet

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from committerd_login.secret_file import read_secret

_log = logging.getLogger(__name__)
_SECONDS = 3.0
"""How long a login waits for a token, which heartbeats and probes allow, and the limit of each wait of a request."""
_REQUEST_SECONDS_MAX = 60.0
"""A request that takes longer, such as one whose response drips, is given up: the next login makes another."""
_RENEWED_AT = 0.8
"""The first login after this part of a token's life asks for another; the token is used until its end meanwhile."""
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
        if not _is_endpoint(self.token_endpoint_url):
            raise ValueError(
                "sasl_oauth_token_endpoint_url must be https://host/path (http:// only for localhost), without a user "
                "or password: they belong to sasl_oauth_client_id and sasl_oauth_client_secret"
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


def _is_endpoint(text: str) -> bool:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:  # an IPv6 address or a port that is none
        return False
    plain = url.scheme == "http" and url.hostname in ("localhost", "127.0.0.1", "::1")
    return (url.scheme == "https" or plain) and bool(url.hostname) and "@" not in url.netloc


class NoToken(KafkaConnectionError):  # type: ignore[misc]  # kafka-python is untyped
    """The server gave no token; the message says why, and what to do. kafka-python logs it, and connects again."""


class ClientCredentialsProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    """Gives all clients of a process with the same credentials the same token; any thread may ask."""

    def __init__(self, credentials: ClientCredentials, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, which only grow."""
        self._credentials = credentials
        self._clock = clock
        self.forget()
        _providers.add(self)

    def forget(self) -> None:
        """Begin anew, without a token: a forked process lacks the thread that asks, and the one that holds the lock."""
        self._lock = threading.Lock()
        self._token = ""
        self._renewed_at = self._ends_at = self._asks_at = 0.0
        self._failure = NoToken()
        self._request: Future[None] | None = None
        """Of the thread that asks the server; has a result when `_token` or `_failure` is set."""
        self._requested_at = 0.0

    def token(self) -> str:
        """A token that has not expired. Waits for at most 3 s, and only if there is none. Raises `NoToken`."""
        with self._lock:
            now = self._clock()
            if self._request is not None and now >= self._requested_at + _REQUEST_SECONDS_MAX:
                self._request = None
            if self._request is None and now >= max(self._renewed_at, self._asks_at):
                self._request, self._requested_at = Future(), now
                threading.Thread(target=self._renew, args=(self._request, now), name="token", daemon=True).start()
            if now < self._ends_at:
                return self._token
            request = self._request if now >= self._asks_at else None
        try:
            if request is not None:
                request.result(_SECONDS)
        except TimeoutError:
            with self._lock:
                if self._request is request:
                    url = self._credentials.token_endpoint_url
                    self._failure = NoToken(f"the token endpoint {url} did not answer within {_SECONDS:g} s")
                    self._asks_at = self._clock() + _PAUSE_SECONDS
        with self._lock:
            if self._clock() < self._ends_at:
                return self._token
            raise NoToken(*self._failure.args)

    def _renew(self, request: Future[None], asked_at: float) -> None:
        try:
            found: tuple[str, float] | NoToken = ask(self._credentials)
        except NoToken as failure:
            found = failure
        with self._lock:
            if isinstance(found, NoToken):
                self._failure = found
                self._asks_at = self._clock() + _PAUSE_SECONDS
                if self._clock() < self._ends_at:
                    _log.warning("%s; the last token is used until it expires", *found.args)
            else:
                self._token, seconds = found
                self._renewed_at, self._ends_at = asked_at + _RENEWED_AT * seconds, asked_at + seconds
            if self._request is request:
                self._request = None
        request.set_result(None)


@lru_cache(maxsize=64)
def provider_of(credentials: ClientCredentials) -> ClientCredentialsProvider:
    """The provider of this process for these credentials: its clients share a token."""
    return ClientCredentialsProvider(credentials)


_providers: WeakSet[ClientCredentialsProvider] = WeakSet()


def _after_fork() -> None:
    """Clients that were made before a process was forked are used in it: their status, or the next connection."""
    for provider in list(_providers):
        provider.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
    return token, _life(seconds)


def _life(seconds: Any) -> float:
    """The seconds of `expires_in`, for which there are servers that give a text."""
    try:
        life = float(seconds)
    except (TypeError, ValueError, OverflowError):
        return _LIFE_SECONDS
    return life if 0 < life < math.inf else _LIFE_SECONDS


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


def _context(credentials: ClientCredentials) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=credentials.cafile)
    except (OSError, ValueError) as error:
        raise NoToken(f"sasl_oauth_cafile: {credentials.cafile!r} can't be read: {error.args[-1]}") from error


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
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_context(credentials)), _NoRedirects())
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            return response.status, response.read(_RESPONSE_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_RESPONSE_BYTES_MAX)
