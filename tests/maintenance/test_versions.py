"""Which versions may be deleted."""

from __future__ import annotations

import pytest

from committerd.maintenance.versions import KeepReason, Needs, Retention, VersionFacts, choose

NOW = 10**12
HOUR = 3_600_000
FORMAT, POSITION, APP = "committerd.format", "committerd.position", "committerd.app.a"
OURS = frozenset({FORMAT, POSITION, APP})


def version(
    number: int, hours: float, *, ours: bool = True, keys: frozenset[str] = OURS, offset: int = -1
) -> VersionFacts:
    """A version of so many hours ago."""
    return VersionFacts(version=number, time_ms=NOW - int(hours * HOUR), from_queue=ours, keys=keys, last_offset=offset)


def kept(*versions: VersionFacts, needs: Needs | None = None, keep_versions: int = 1) -> dict[int, KeepReason]:
    retention = Retention(keep_ms=HOUR, keep_versions=keep_versions)
    choice = choose(versions, needs or Needs(), retention, now_ms=NOW)
    assert set(choice.removable) == {one.version for one in versions} - set(choice.kept)
    assert list(choice.removable) == sorted(choice.removable)
    return dict(choice.kept)


def test_the_latest_the_young_and_a_number_stay() -> None:
    old = [version(number, 9 - number) for number in range(1, 9)]
    assert kept(*old) == {8: KeepReason.COUNT}
    assert kept(*old, keep_versions=3) == dict.fromkeys((6, 7, 8), KeepReason.COUNT)
    assert kept(*old, version(9, 0.9), version(10, 0)) == {
        8: KeepReason.AGE,
        9: KeepReason.AGE,
        10: KeepReason.COUNT,
    }


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (Needs(tagged=frozenset({2})), {2: KeepReason.TAG}),
        (Needs(branched=frozenset({3})), {3: KeepReason.BRANCH}),
        (Needs(read_at=4), {4: KeepReason.WAITING, 5: KeepReason.WAITING}),
        (Needs(unpublished=40), {4: KeepReason.UNPUBLISHED, 5: KeepReason.UNPUBLISHED}),
    ],
)
def test_what_others_need_stays(needs: Needs, expected: dict[int, KeepReason]) -> None:
    versions = [version(number, 9, offset=10 * number) for number in range(1, 7)]
    assert kept(*versions, needs=needs) == {6: KeepReason.COUNT, **expected}


def test_the_youngest_version_with_each_key_stays() -> None:
    foreign = version(5, 2, ours=False, keys=frozenset())
    restored = version(4, 3, ours=False, keys=frozenset({FORMAT}))
    assert kept(version(1, 9), version(2, 8), version(3, 7), restored, foreign) == {
        3: KeepReason.KEYS,
        4: KeepReason.KEYS,
        5: KeepReason.COUNT,
    }
    # A key that a committer has dropped on purpose keeps nothing.
    assert kept(version(1, 9), version(2, 8, keys=frozenset({FORMAT, POSITION})), version(3, 7, keys=OURS - {APP})) == {
        3: KeepReason.COUNT
    }
    # Nor is anything kept in a table that no queue has written.
    assert kept(*(version(number, 9, ours=False, keys=frozenset()) for number in (1, 2, 3))) == {3: KeepReason.COUNT}


def test_the_age_of_a_version_counts_from_the_one_that_followed_it() -> None:
    assert kept(version(1, 9), version(2, 8), version(3, 0.5)) == {2: KeepReason.AGE, 3: KeepReason.COUNT}
