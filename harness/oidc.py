"""A small OpenID Connect provider on https://localhost: tokens for client credentials, and keys that verify them."""

from __future__ import annotations

import base64
import json
import math
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from harness.certificates import Authority

_KEY_ID = "of-the-tests"
AUDIENCE = "kafka"


class OidcServer:
    """Answers while the block runs, in threads of this process. Tests may change its attributes at any time."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        """`authority` signs its certificate, whose files are written to `folder`."""
        self.authority = authority
        self.secrets: dict[str, str] = {}
        """The secret of each client; the id is the token's subject."""
        self.lifetime_seconds = 3600
        self.instead: tuple[int, bytes] | None = None
        """A status and a body with which every request for a token is answered; None = as it should be."""
        self.answers = threading.Event()
        """Requests for a token wait while it is not set."""
        self.answers.set()
        self.drips = False
        """Whether a response comes one byte in 0.1 s."""
        self.asked: list[Mapping[str, str]] = []
        """The forms of the requests for tokens, with the client under `client_id`."""
        self.given: list[str] = []
        """The tokens that it gave."""
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        certificate = authority.issue("oidc", "localhost", "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.chain, certificate.key)
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, name="oidc", daemon=True)

    @property
    def issuer(self) -> str:
        return f"https://localhost:{self._server.server_address[1]}"

    @property
    def token_url(self) -> str:
        return f"{self.issuer}/token"

    @property
    def keys_url(self) -> str:
        return f"{self.issuer}/keys"

    def token(self, subject: str, *, lifetime_seconds: float) -> str:
        """A signed JSON web token (RFC 7519, RS256) that the broker accepts."""
        now = time.time()
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": subject,
            "iat": int(now),
            "exp": math.ceil(now + lifetime_seconds),
            "jti": str(uuid.uuid4()),
        }
        text = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        return f"{text}.{_base64(self._key.sign(text.encode(), padding.PKCS1v15(), SHA256()))}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    def _keys(self) -> bytes:
        public = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": _KEY_ID,
            "n": _number(public.n),
            "e": _number(public.e),
        }
        return json.dumps({"keys": [key]}).encode()

    def _token_response(self, form: Mapping[str, str], authorization: str) -> tuple[int, bytes]:
        credentials = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        client, _, secret = (urllib.parse.unquote_plus(part) for part in credentials.partition(":"))
        self.asked.append({**form, "client_id": client})
        self.answers.wait()
        if self.instead is not None:
            return self.instead
        if form.get("grant_type") != "client_credentials":
            return 400, b'{"error": "unsupported_grant_type"}'
        if self.secrets.get(client) != secret:
            return 401, b'{"error": "invalid_client", "error_description": "unknown client or wrong secret"}'
        lifetime = self.lifetime_seconds
        token = self.token(client, lifetime_seconds=lifetime)
        self.given.append(token)
        return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": lifetime}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*((200, provider._keys()) if self.path == "/keys" else (404, b"{}")))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body))
                self._answer(*provider._token_response(form, self.headers.get("Authorization", "")))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", provider.token_url)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                while provider.drips and body:
                    self.wfile.write(body[:1])
                    body = body[1:]
                    time.sleep(0.1)
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: tests read `asked`."""

        return Handler


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that does not trust the server closes the connection."""


def _number(value: int) -> str:
    return _base64(value.to_bytes((value.bit_length() + 7) // 8))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
