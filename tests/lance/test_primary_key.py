"""The fields of the primary key, and whether a reader can use it."""

from __future__ import annotations

import pytest

from committerd.lance.versions.primary_key import (
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    declared_position,
    key_fault,
    key_fields,
)
from committerd_common.messages import Field
from tests.lance.samples import column


def key(number: int, *, parent: int = -1, nullable: bool = False, kind: str = "int64") -> Field:
    made = column(number, nullable=nullable, parent=parent)
    made.metadata[PRIMARY_KEY] = b"true"
    made.logical_type = kind
    return made


@pytest.mark.parametrize(
    ("entries", "place"),
    [
        ({}, None),
        ({PRIMARY_KEY: b"false"}, None),
        ({PRIMARY_KEY: b"\xff"}, None),
        *(({PRIMARY_KEY: one}, 0) for one in (b"1", b"TRUE", b"on", b"Yes", b"y")),
        ({PRIMARY_KEY_POSITION: b"3"}, 3),
        ({PRIMARY_KEY_POSITION: b"3", PRIMARY_KEY: b"no"}, 3),
        ({PRIMARY_KEY_POSITION: b"x", PRIMARY_KEY: b"true"}, 0),
        ({PRIMARY_KEY_POSITION: b"+4"}, 4),
        ({PRIMARY_KEY_POSITION: b"0" * 5000 + b"4"}, 4),
        ({PRIMARY_KEY_POSITION: b"0"}, 0),
        ({PRIMARY_KEY_POSITION: b"++4"}, None),
        ({PRIMARY_KEY_POSITION: b"-1"}, None),
        ({PRIMARY_KEY_POSITION: b"4294967296"}, None),
        ({PRIMARY_KEY_POSITION: b"9" * 5000}, None),
        ({PRIMARY_KEY_POSITION: "\N{SUPERSCRIPT TWO}".encode()}, None),
    ],
)
def test_metadata_says_the_place(entries: dict[str, bytes], place: int | None) -> None:
    made = column(0)
    for name, value in entries.items():
        made.metadata[name] = value
    assert declared_position(made) == place


def test_a_field_is_of_the_key_by_its_metadata_or_by_itself() -> None:
    plain = column(2)
    plain.unenforced_primary_key = True
    assert key_fields([column(0), key(1), plain]) == [1, 2]


def struct(number: int, *, parent: int = -1, nullable: bool = False, kind: str = "struct") -> Field:
    made = column(number, nullable=nullable, parent=parent)
    made.logical_type = kind
    return made


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([column(0)], ""),
        ([key(0), column(1)], ""),
        ([struct(0), key(1, parent=0)], ""),
        ([key(0, nullable=True)], "field 0 ('c0') of the primary key may be null"),
        ([struct(0, nullable=True), key(1, parent=0)], "field 0 ('c0') of the primary key may be null"),
        ([key(0, kind="struct"), column(1, parent=0)], "field 0 ('c0') of the primary key has fields of its own"),
        *(
            ([struct(0, kind=kind), key(1, parent=0)], f"field 1 ('c1') of the primary key lies in a {kind}")
            for kind in ("list", "list.struct", "large_list", "map")
        ),
        ([key(0, parent=7)], ""),
        ([struct(0, parent=1), struct(1, parent=0), key(2, parent=0)], ""),
    ],
)
def test_a_key_that_readers_can_not_use(fields: list[Field], told: str) -> None:
    assert key_fault(fields) == told
