"""Signs records with the producer's key (`committerd_common.signature`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from committerd_client.errors import SubmitFailed
from committerd_client.headers import StagedRecord
from committerd_common.request import HEADER_BYTES_MAX, SIGNATURE
from committerd_common.signature import require_key, signature, signed_bytes
from committerd_login.watched_file import WatchedFile

ProducerKey = Callable[[], str]
"""Returns the producer's key; called for each record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Signs the records of one producer for one topic."""

    topic: str
    key: ProducerKey = field(repr=False)

    extra_bytes = len(SIGNATURE) + HEADER_BYTES_MAX[SIGNATURE]
    """An upper bound of what a signature adds to a record."""

    def signed(self, record: StagedRecord) -> StagedRecord:
        """Return the record with its signature. Raises `SubmitFailed` if there is no key to sign with."""
        try:
            key = require_key(self.key())
        except Exception as error:
            raise SubmitFailed(
                f"transaction {record.uuid} could not be signed: {error}. Nothing was sent; when that is repaired, "
                "commit the same transaction again",
                code="not_signed",
                uuid=record.uuid,
            ) from error
        signed = signed_bytes(self.topic, key=record.uuid.encode(), value=record.value, headers=record.headers)
        return replace(record, headers=[*record.headers, (SIGNATURE, signature(key, signed))])


def signer(
    topic: str,
    *,
    producer: str | None,
    key_file: str | os.PathLike[str] | None,
    key: ProducerKey | None,
) -> Signer | None:
    """What signs a client's records; None if nothing does. Raises `ValueError` and `TypeError` for invalid options."""
    if key_file is None and key is None:
        return None
    if key_file is not None and key is not None:
        raise ValueError("producer_key_file and producer_key exclude each other: give one of them")
    if producer is None:
        raise ValueError("producer_key_file and producer_key need producer: the name that the committer knows")
    if key_file is not None:
        return Signer(topic=topic, key=WatchedFile(key_file, "producer_key_file", parse=require_key).current)
    if not callable(key):
        raise TypeError(
            "producer_key takes a function that returns the key, so that it shows in no repr; or give producer_key_file"
        )
    return Signer(topic=topic, key=key)
