"""What Kafka knows of answers that were given before: the group's offset, and the last outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from committerd.queue.port import Acknowledged
from committerd.queue.position import Position
from committerd_common.messages import Outcome

OUTCOMES_TAIL = 200
"""Outcomes looked at in each partition: answers are published in order of versions, so few prove as much as many."""


def acknowledgement(position: Position, version: int) -> str:
    """What the group's offset carries beside the number, for people and for the next Start."""
    return json.dumps({"era": position.era, "version": version}, separators=(",", ":"))


def era_of(acknowledged: Acknowledged | None) -> int | None:
    """The era in which the group's offset was acknowledged; None when its metadata doesn't say."""
    if acknowledged is None:
        return None
    try:
        era = json.loads(acknowledged.metadata)["era"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return era if isinstance(era, int) else None


def decode_outcomes(values: Iterable[bytes]) -> list[Outcome]:
    """Those that can be decoded."""
    outcomes = []
    for value in values:
        try:
            outcomes.append(Outcome.FromString(value))
        except DecodeError:
            continue
    return outcomes
