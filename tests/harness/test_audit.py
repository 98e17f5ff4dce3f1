"""The audit of the tests: it accepts what is right, and finds each single thing that is wrong."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from committerd_common.messages import Member, Outcome, Refusal, Status, Transaction
from harness.audit import Evidence, Expected, contradictions
from harness.lance_table import Version
from harness.topics import Letter, Staged

_A, _B = (str(uuid.UUID(int=n)) for n in (1, 2))
_TOPIC = "topic-id"


def _staged(offset: int, value: bytes) -> Staged:
    return Staged(topic_id=_TOPIC, offset=offset, key=b"k", value=value, headers=[("producer", b"p")])


def _position(next_offset: int) -> dict[str, object]:
    return {"topic_id": _TOPIC, "next": next_offset, "settled": [], "era": 0}


def _right() -> Evidence:
    """Two Appends and garbage between them: committed as versions 2 and 4, refused in 3."""
    refusal = Refusal(offset=1, status=Status.INVALID, reason="record_undecodable")
    return Evidence(
        staged=[
            _staged(0, Transaction(uuid=_A).SerializeToString()),
            _staged(1, b"\xff"),
            _staged(2, Transaction(uuid=_B).SerializeToString()),
        ],
        outcomes=[
            Outcome(topic_id=_TOPIC, offset=0, uuid=_A, status=Status.COMMITTED, version=2),
            Outcome(topic_id=_TOPIC, offset=1, status=Status.INVALID, reason="record_undecodable"),
            Outcome(topic_id=_TOPIC, offset=2, uuid=_B, status=Status.COMMITTED, version=4),
            Outcome(topic_id=_TOPIC, offset=2, uuid=_B, status=Status.UNDECIDED),
        ],
        letters=[
            Letter(
                key=b"k",
                value=b"\xff",
                headers=[
                    ("producer", b"p"),
                    ("committerd-status", b"INVALID"),
                    ("committerd-reason", b"record_undecodable"),
                    ("committerd-offset", b"1"),
                ],
            )
        ],
        versions=[
            Version(number=1, uuid="create", operation="Overwrite"),
            _version(2, _position(1), Member(offset=0, uuid=_A)),
            _version(3, _position(2), refusals=[refusal]),
            _version(4, _position(3), Member(offset=2, uuid=_B)),
        ],
        ids=[0, 1, 2],
    )


def _version(
    number: int, position: dict[str, object], *members: Member, refusals: list[Refusal] | None = None
) -> Version:
    return Version(
        number=number,
        uuid=members[0].uuid if len(members) == 1 else f"version {number}",
        operation="Append",
        members=members,
        refusals=refusals or [],
        ours=True,
        position=position,
    )


def test_what_is_right_has_no_contradictions() -> None:
    assert contradictions(_right(), Expected(ids=[0, 1, 2])) == []


def _with_outcome(right: Evidence, **fields: object) -> Evidence:
    return replace(right, outcomes=[*right.outcomes, Outcome(topic_id=_TOPIC, **fields)])  # type: ignore[arg-type]


def _with_version(right: Evidence, version: Version) -> Evidence:
    return replace(right, versions=[*right.versions, version])


_FORGERIES: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "a lost row": (lambda r: replace(r, ids=[0, 1]), "1 rows are lost: [2]"),
    "a doubled row": (lambda r: replace(r, ids=[0, 1, 2, 2]), "there more than once: [2]"),
    "a strange row": (lambda r: replace(r, ids=[0, 1, 2, 3]), "should not be: [3]"),
    "a hole in the versions": (lambda r: replace(r, versions=[*r.versions[:1], *r.versions[2:]]), "not contiguous"),
    "a second commit of a uuid": (
        lambda r: _with_version(r, Version(number=5, uuid=_A, operation="Append")),
        "was committed in versions [2, 5]",
    ),
    "a uuid twice in one version": (
        lambda r: _with_version(r, _version(5, _position(5), Member(offset=3, uuid="c"), Member(offset=4, uuid="c"))),
        "has transaction c 2 times",
    ),
    "a position that goes back": (lambda r: _with_version(r, _version(5, _position(1))), "after"),
    "a version without a position": (
        lambda r: _with_version(r, replace(_version(5, _position(3)), position=None)),
        "carries no position",
    ),
    "a member beyond the position": (
        lambda r: _with_version(r, _version(5, _position(3), Member(offset=7, uuid="c"))),
        "does not pass",
    ),
    "a record settled twice": (
        lambda r: _with_version(r, _version(5, _position(3), Member(offset=0, uuid="c"))),
        "which the version before has passed",
    ),
    "two answers to one record": (
        lambda r: _with_outcome(r, offset=1, status=Status.INVALID, reason="record_empty"),
        "2 different answers",
    ),
    "a record without an answer": (lambda r: replace(r, outcomes=r.outcomes[1:]), "1 records have no outcome"),
    "an answer to nothing": (
        lambda r: _with_outcome(r, offset=9, uuid="c", status=Status.UNDECIDED),
        "a record that nobody staged",
    ),
    "an answer with another's uuid": (
        lambda r: _with_outcome(r, offset=0, uuid=_B, status=Status.UNDECIDED),
        f"is of {_A}, its answer of {_B}",
    ),
    "a false COMMITTED": (
        lambda r: replace(r, versions=[r.versions[0], _version(2, _position(1)), *r.versions[2:]]),
        "the version does not have it",
    ),
    "a COMMITTED at no version": (lambda r: replace(r, versions=r.versions[:3]), "there is no such version"),
    "a refusal of what was committed": (
        lambda r: _with_outcome(r, offset=0, uuid=_A, status=Status.RETRYABLE),
        "version 2 has committed it",
    ),
    "a refusal that no version has": (
        lambda r: replace(r, versions=[*r.versions[:2], _version(3, _position(2)), r.versions[3]]),
        "no version has passed it",
    ),
    "a false DUPLICATE": (
        lambda r: _with_outcome(r, offset=1, uuid="c", status=Status.DUPLICATE, reason="uuid_seen", version=2),
        "it is no duplicate",
    ),
    "an answer that the table has and nobody got": (
        lambda r: _with_version(r, _version(5, _position(4), Member(offset=3, uuid="c"))),
        "nobody was told",
    ),
    "a missing dead letter": (lambda r: replace(r, letters=[]), "no dead letter"),
    "a dead letter with another value": (
        lambda r: replace(r, letters=[replace(r.letters[0], value=b"")]),
        "no dead letter",
    ),
    "a dead letter without the record's headers": (
        lambda r: replace(r, letters=[replace(r.letters[0], headers=r.letters[0].headers[1:])]),
        "no dead letter",
    ),
    "a dead letter for a good record": (
        lambda r: replace(
            r,
            letters=[*r.letters, replace(r.letters[0], headers=[("committerd-offset", b"0")])],
        ),
        "a dead letter for record 0",
    ),
}


@pytest.mark.parametrize("forgery", _FORGERIES)
def test_each_single_wrong_thing_is_noticed(forgery: str) -> None:
    forge, said = _FORGERIES[forgery]
    found = contradictions(forge(_right()), Expected(ids=[0, 1, 2]))
    assert any(said in sentence for sentence in found), found


def test_what_an_operator_has_given_up_is_not_held_against_the_committer() -> None:
    right = _right()
    unanswered = replace(right, outcomes=right.outcomes[1:], versions=[right.versions[0], *right.versions[2:]])
    expected = Expected(ids=[0, 1, 2], unanswered={(_TOPIC, 0)}, rewound=True, cleaned=True)
    assert contradictions(replace(unanswered, versions=right.versions[2:]), expected) == []
