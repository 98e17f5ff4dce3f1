"""What Kafka knows of outcomes that were published before: the offset of the group, and the last outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from committerd.queue.port import Acknowledged
from committerd.queue.position import Position
from committerd_common.messages import Outcome

OUTCOMES_TAIL = 200
"""Newest outcomes to read per partition. Outcomes are published in the order of versions, so a few prove enough."""


def acknowledgement(position: Position, version: int) -> str:
    """Return the metadata of a group offset commit, as JSON: era and table version, for people and the next Start."""
    return json.dumps({"era": position.era, "version": version}, separators=(",", ":"))


def era_of(acknowledged: Acknowledged | None) -> int | None:
    """Return the era in which the group offset was committed; None when its metadata does not have it."""
    if acknowledged is None:
        return None
    try:
        era = json.loads(acknowledged.metadata)["era"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return era if isinstance(era, int) else None


def decode_outcomes(values: Iterable[bytes]) -> list[Outcome]:
    """Decode outcomes; skips those that can't be decoded."""
    outcomes = []
    for value in values:
        try:
            outcomes.append(Outcome.FromString(value))
        except DecodeError:
            continue
    return outcomes
