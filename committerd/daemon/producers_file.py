"""The producers of `commit.producers_file`, which is read again when it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from committerd.errors import SettingsError
from committerd.lance.format.kind import Kind
from committerd.queue.producers import Admission, Producer, Producers, producers_in
from committerd_login.watched_file import WatchedFile

_OPTION = "commit.producers_file"
_log = logging.getLogger(__name__)


def admission(path: str | None, *, topic: str) -> Admission | None:
    """Admits the records of this staged topic by the producers in the file; None without a file.

    A later change of the file that can't be read, or is wrong, leaves the producers as they are, and is logged. Raises
    `SettingsError` if the file can't be read or is wrong now.
    """
    return None if path is None else Admission(topic=topic, producers=_producers(path))


@dataclass(frozen=True, slots=True)
class CommandProducer:
    """The producer as which a command stages."""

    now: Callable[[], Producer]

    def key(self) -> str:
        """The key to sign with."""
        return self.now().keys[0]

    def of(self, allowed: frozenset[Kind]) -> frozenset[Kind]:
        """Those of these operations that it may stage."""
        operations = self.now().operations
        return allowed if operations is None else allowed & operations


def producer_of_command(path: str | None, name: str) -> CommandProducer | None:
    """The producer of this name; None without a file, when a command signs nothing.

    Raises `SettingsError` as `admission`, and if the file has no such producer.
    """
    if path is None:
        return None
    producers = _producers(path)
    producer = producers().get(name)
    if producer is None:
        raise SettingsError(
            f"{_OPTION}: {path!r} has no producer {name!r}, as which this command stages: add it, with a key and what "
            "it may stage"
        )
    return CommandProducer(lambda: producers().get(name, producer))


def _producers(path: str) -> Callable[[], Producers]:
    try:
        return WatchedFile(path, _OPTION, parse=producers_in, failed=_note).current
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _note(error: ValueError) -> None:
    _log.error("producers.unreadable", extra={"error": f"{error}; the producers stay as they were"})
