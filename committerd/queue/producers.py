"""The producers that the operator knows: by which keys each signs, and what it may stage.

They stand in a TOML file (setting `commit.producers_file`), a table for each producer:

    [loader]
    keys = ["3f2a...", "9c41..."]
    operations = ["append"]
    app_ids = ["loader-*"]

`keys` has two keys while the producer changes from one to the other. Without `operations` a producer may stage all that
`commit.allowed_operations` allows, without `app_ids` the units of every application.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from committerd.errors import InvalidRequest
from committerd.lance.format.kind import Kind
from committerd.queue.port import Publication, Record
from committerd_common.request import COPIED_BYTES_MAX, SIGNATURE, AppUnit, Envelope
from committerd_common.signature import is_signed_by, require_key, signature, signed_bytes

_KEYS_MAX = 2
_SHOWN_MAX = 100
"""The length at which the name of a producer is cut in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A producer: its keys, and what it may stage."""

    name: str
    keys: tuple[str, ...] = field(repr=False)
    operations: frozenset[Kind] | None = None
    """None: all that the table's committer commits."""
    app_ids: tuple[str, ...] | None = None
    """Patterns in which `*` stands for any characters; None: every application id."""

    def require_app(self, app: AppUnit | None) -> None:
        """Raise `InvalidRequest` (`app_id_not_allowed`) for a unit of an application that is not the producer's."""
        if app is None or self.app_ids is None or any(matches(app.app_id, one) for one in self.app_ids):
            return
        raise InvalidRequest(
            f"producer {self.name!r} may not stage units of application {app.app_id!r}; its app_ids in "
            f"commit.producers_file are {', '.join(self.app_ids) or 'none'}",
            code="app_id_not_allowed",
        )


Producers = Mapping[str, Producer]
"""The producers by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admits the records of one topic that a known producer has signed."""

    topic: str
    producers: Callable[[], Producers]
    """The producers as they are now."""

    def producer_of(self, record: Record, envelope: Envelope) -> Producer:
        """Return the producer that has signed this record.

        Raises `InvalidRequest`: `signature_missing`, `producer_unknown`, `signature_invalid`, or `app_id_not_allowed`.
        """
        given = dict(record.headers).get(SIGNATURE)
        if given is None:
            raise InvalidRequest(
                "the record has no header signature, and this queue takes signed records only: give the client "
                "producer and producer_key_file, or sign as docs/wire-contract.md says",
                code="signature_missing",
            )
        producer = self.producers().get(envelope.producer)
        if producer is None:
            raise InvalidRequest(
                f"header producer is {envelope.producer[:_SHOWN_MAX]!r}, and commit.producers_file has no such "
                "producer: correct the name, or let the operator add it",
                code="producer_unknown",
            )
        signed = signed_bytes(self.topic, key=record.key, value=record.value, headers=record.headers)
        if not is_signed_by(producer.keys, signed, given):
            raise InvalidRequest(
                f"no key of producer {producer.name!r} has made the record's signature for topic {self.topic}: it was "
                "signed with another key, or for another topic, or its key, value or headers were changed since",
                code="signature_invalid",
            )
        producer.require_app(envelope.app)
        return producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """How an operator stages the record of another producer again: as a producer of the operator's own."""

    topic: str
    producer: Producer

    def signed(self, sent: Publication) -> Publication:
        """Return the same record, with this producer's name and signature in place of those that it has."""
        kept = [one for one in sent.headers if one[0] not in ("producer", SIGNATURE)]
        headers = [*kept, ("producer", self.producer.name.encode())]
        signed = signed_bytes(self.topic, key=sent.key, value=sent.value, headers=headers)
        return replace(sent, headers=[*headers, (SIGNATURE, signature(self.producer.keys[0], signed))])


def producers_in(text: str) -> Producers:
    """The producers in a file's text. Raises `ValueError`, which says what is wrong, where, and no key."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from error
    if not tables:
        raise ValueError("has no producer: write a table for each, such as [loader], with its keys")
    return {name: _producer(name, table) for name, table in tables.items()}


def _producer(name: str, table: Any) -> Producer:
    where = f"producer {name[:_SHOWN_MAX]!r}"
    if not isinstance(table, dict):
        raise ValueError(f"{where} is no table: write [{name[:_SHOWN_MAX]}], and its keys below")
    if not name or len(name.encode()) > COPIED_BYTES_MAX:
        raise ValueError(f"{where}: a name has 1 to {COPIED_BYTES_MAX} bytes")
    for entry in table:
        if entry not in ("keys", "operations", "app_ids"):
            raise ValueError(f"{where} has {entry[:_SHOWN_MAX]!r}; it may have keys, operations and app_ids")
    keys = _texts(table, "keys", where)
    if keys is None or not 0 < len(keys) <= _KEYS_MAX:
        raise ValueError(f'{where} needs keys = ["..."]: one, or two while it changes from one to the other')
    try:
        checked = tuple(map(require_key, keys))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    operations = _texts(table, "operations", where)
    unknown = [one for one in operations or () if one not in set(Kind)]
    if unknown:
        raise ValueError(f"{where}: there is no operation {unknown[0][:_SHOWN_MAX]!r}; there are {', '.join(Kind)}")
    return Producer(
        name=name,
        keys=checked,
        operations=None if operations is None else frozenset(map(Kind, operations)),
        app_ids=_texts(table, "app_ids", where),
    )


def matches(name: str, pattern: str) -> bool:
    """Whether the pattern, in which `*` alone has a meaning, matches the whole name."""
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


def _texts(table: Mapping[str, Any], entry: str, where: str) -> tuple[str, ...] | None:
    found = table.get(entry)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError(f'{where}: {entry} is a list of texts, such as {entry} = ["..."]')
    return tuple(found)
