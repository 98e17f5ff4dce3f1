"""TLS of the HTTP server, whose certificate may be replaced while it runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from committerd.errors import SettingsError

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int], ...]


def server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """The context of a listening socket. Each connection gets the certificate that the files hold then.

    Raises `SettingsError` if they hold none now.
    """
    current = _Current(Path(certificate), Path(certificate if key is None else key))
    context = current.context
    context.sni_callback = current.choose  # OpenSSL calls it for clients without a server name too
    return context


class _Current:
    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._stamp = self._look()
        self.context = self._load()

    def choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        """Give the connection the present certificate; if its files can't be read, the last one."""
        try:
            stamp = self._look()
            if stamp != self._stamp:
                self.context, self._stamp = self._load(), stamp
        except SettingsError as error:
            _log.warning("http.certificate_unreadable", extra={"error": str(error)})
        connection.context = self.context

    def _look(self) -> _Stamp:
        try:
            return tuple((found.st_ino, found.st_mtime_ns) for found in map(Path.stat, self._files))
        except OSError as error:
            raise SettingsError(f"http.tls_certfile, tls_keyfile: {error}") from error

    def _load(self) -> ssl.SSLContext:
        certificate, key = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # An encrypted key is an error; without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"http.tls_certfile, tls_keyfile: {str(certificate)!r} has no certificate, or {str(key)!r} not its key "
                f"without a password: {error}"
            ) from error
        return context
