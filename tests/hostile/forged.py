"""Records with wrong signatures, and records of a producer that stages what it may not, between good ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from committerd.lance.format.kind import Kind
from committerd.queue.port import Publication
from committerd.queue.producers import Producer, Signing
from committerd_common.messages import Transaction
from committerd_common.request import HEADER_BYTES_MAX, SIGNATURE
from tests.hostile.records import Header, Hostile

GOOD = Producer(name="good", keys=("the-key-of-the-good-producer-" * 2,))
APPENDER = Producer(
    name="appender", keys=("the-key-of-the-one-that-appends-" * 2,), operations=frozenset({Kind.APPEND})
)
_STRANGER = Producer(name="good", keys=("a-key-that-the-committer-has-not-" * 2,))
_NOBODY = Producer(name="nobody", keys=GOOD.keys)


def producers_text() -> str:
    """The operator's file."""
    allowed = {GOOD.name: "", APPENDER.name: 'operations = ["append"]\n'}
    return "".join(f'[{one.name}]\nkeys = ["{one.keys[0]}"]\n{allowed[one.name]}' for one in (GOOD, APPENDER))


def signed(topic: str, producer: Producer, value: bytes, headers: Sequence[Header] = ()) -> list[Header]:
    """The headers of the record, signed by this producer. It has no key."""
    return list(Signing(topic=topic, producer=producer).signed(_sent(value, headers)).headers)


def _sent(value: bytes, headers: Sequence[Header]) -> Publication:
    return Publication(key=None, value=value, headers=headers)


def forged(
    topic: str, good: Callable[[], Transaction], mutations: Iterator[Hostile], rng: random.Random
) -> Iterator[Hostile]:
    """Yield records without end: those that must be refused are seeds. `mutations`: records of which some are staged
    by the producer that may only append.
    """
    number = 0
    while True:
        number += 1
        value = good().SerializeToString()
        headers = signed(topic, GOOD, value)
        match rng.randint(0, 9):
            case 0:
                headers = [one for one in headers if one[0] != SIGNATURE]
            case 1:
                length = rng.choice((0, 1, 66, 67, 68, 128, 129, 5000))
                headers = [*headers, (SIGNATURE, rng.choice((b"v1:", b"v2:", b"")) + rng.randbytes(length))]
            case 2:
                headers = signed(topic, rng.choice((_STRANGER, _NOBODY)), value)
            case 3:
                headers = signed(topic[1:], GOOD, value)
            case 4:
                place = rng.randrange(len(value))
                value = value[:place] + bytes([value[place] ^ 1 << rng.randrange(8)]) + value[place + 1 :]
            case 5:
                # A name that is read, with a value that the record does not have.
                name = rng.choice(sorted(HEADER_BYTES_MAX.keys() - {SIGNATURE, "traceparent"}))
                headers = [*headers, (name, rng.randbytes(rng.randint(1, 100)))]
            case 6:
                headers = [*headers, ("producer", APPENDER.name.encode())]
            case 7:
                headers = [*signed(topic, GOOD, good().SerializeToString())]
            case _:
                hostile = next(mutations)
                value = hostile.value or b""
                yield replace(
                    hostile,
                    name=f"{hostile.name}, staged by the one that appends",
                    headers=signed(topic, APPENDER, value, hostile.headers),
                    is_seed=_operation(value) != Kind.APPEND,
                )
                continue
        yield Hostile(name=f"forgery {number}", value=value, headers=headers)


def _operation(value: bytes) -> str | None:
    try:
        return Transaction.FromString(value).WhichOneof("operation")
    except DecodeError:
        return None
