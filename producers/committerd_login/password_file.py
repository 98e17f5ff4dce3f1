"""A password that kafka-python reads from a file at each login, so that a new password needs no restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka.net.sasl import get_sasl_mechanism, register_sasl_mechanism

from committerd_login.secret_file import read_secret

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class PasswordFile(str):
    """The password that the file held when this was made; a text, as kafka-python's options have it."""

    path: Path

    @classmethod
    def of(cls, path: str) -> PasswordFile:
        """Read the file. Raises `ValueError`."""
        made = cls(_read(Path(path)))
        made.path = Path(path)
        return made

    def read_again(self) -> str:
        """The password that the file holds now; the password that it held when this was made, if it can't be read."""
        try:
            return _read(self.path)
        except ValueError:
            return str(self)


def read_password_files() -> None:
    """Let kafka-python read password files at each login; once per process. Call it before a client is made."""
    for name in _MECHANISMS:
        mechanism = get_sasl_mechanism(name)
        if not hasattr(mechanism, "__wrapped__"):
            register_sasl_mechanism(name, _reading(mechanism), overwrite=True)


def _reading(mechanism: Callable[..., Any]) -> Callable[..., Any]:
    def made(**config: Any) -> Any:
        password = config.get("sasl_plain_password")
        if isinstance(password, PasswordFile):
            config["sasl_plain_password"] = password.read_again()
        return mechanism(**config)

    made.__wrapped__ = mechanism  # type: ignore[attr-defined]  # as functools.wraps marks it
    return made


def _read(path: Path) -> str:
    return read_secret(path, "sasl_plain_password_file")
