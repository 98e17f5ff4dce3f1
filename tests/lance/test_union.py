"""What passes the union of some versions passes each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from committerd.lance.conflicts import union as unions
from committerd.lance.conflicts.footprint import AN_APPEND, Footprint
from committerd.lance.conflicts.grid import Unreadable, Verdict, check, passes_all
from committerd.lance.conflicts.key_filter import KeyFilter, KeyHashes
from committerd.lance.conflicts.union import union
from committerd.lance.format.kind import Kind
from committerd.lance.versions.fragments import FileIdentity

IDS = st.sampled_from([frozenset[int]()] * 9 + [frozenset({one}) for one in range(4)])


def file(name: str) -> FileIdentity:
    return name, (0,), (0,), 2, 0, None


def exact(*hashes: int, fields: tuple[int, ...] = (0,)) -> KeyFilter:
    return KeyFilter(field_ids=fields, exact=KeyHashes(hashes))


FILES = st.builds(lambda ids, name: dict.fromkeys(ids, (file(name),)), IDS, st.sampled_from("ab"))
KEYS = st.none() | st.builds(
    lambda hashes, fields: exact(*hashes, fields=fields),
    st.frozensets(st.integers(0, 5), max_size=2),
    st.sampled_from([(0,), (0,), (0,), (1,)]),
)
GENERATIONS = st.sampled_from([()] * 3 + [((b"region", 1),)])


@st.composite
def changing(draw: st.DrawFn, *, is_ours: bool) -> Footprint:
    """A Delete or an Update."""
    kind, removed, files = draw(st.sampled_from([Kind.UPDATE] * 5 + [Kind.DELETE])), draw(IDS), draw(FILES)
    files = {id: several for id, several in files.items() if id not in removed}
    made = Footprint(kind=kind, fragments=removed | files.keys(), removed=removed, files=files)
    if is_ours:
        read = draw(st.none() | st.fixed_dictionaries({id: st.just((file("a"),)) for id in made.fragments}))
        made = replace(made, files_read=read)
    if kind is Kind.DELETE:
        return made
    changed = None if is_ours else draw(st.none() | st.frozensets(st.integers(0, 1), max_size=2))
    return replace(
        made,
        key_filter=draw(KEYS),
        is_by_key=draw(st.booleans()),
        changed_fields=changed,
        generations=draw(GENERATIONS),
    )


OURS = changing(is_ours=True)
APPENDS = KEYS.map(lambda keys: replace(AN_APPEND, key_filter=keys))
THEIRS = changing(is_ours=False) | changing(is_ours=False) | changing(is_ours=False) | APPENDS


@settings(max_examples=1000)
@given(OURS, st.lists(THEIRS, min_size=2, max_size=3))
def test_what_passes_the_union_passes_each(ours: Footprint, theirs: list[Footprint]) -> None:
    united = union(theirs)
    if united is not None and passes_all(ours, united):
        assert {check(ours, 1, one).verdict for one in theirs} <= {Verdict.COMPATIBLE}


def deleted(*fragments: int) -> Footprint:
    return Footprint(kind=Kind.DELETE, fragments=frozenset(fragments), removed=frozenset(fragments))


def upserted(*keys: int, columns: tuple[int, ...] = (0,)) -> Footprint:
    return Footprint(kind=Kind.UPDATE, key_filter=exact(*keys, fields=columns), is_by_key=True)


def updated(fragment: int, field: int) -> Footprint:
    """An Update that says that it inserts no row."""
    files = {fragment: (file("a"),)}
    changed = frozenset({field})
    return Footprint(kind=Kind.UPDATE, fragments=frozenset(files), files=files, changed_fields=changed)


def passes(ours: Footprint, *theirs: Footprint) -> bool:
    united = union(theirs)
    assert united is not None
    return passes_all(ours, united)


def test_other_rows_and_keys_pass() -> None:
    theirs = [
        deleted(1),
        deleted(2),
        upserted(7),
        upserted(8, 9),
        updated(3, field=5),
        updated(4, field=6),
        replace(AN_APPEND, key_filter=exact(10)),
    ]
    assert passes(upserted(6), *theirs)
    assert passes(deleted(5), *theirs, AN_APPEND)
    assert not passes(deleted(4), *theirs)
    assert not passes(upserted(9), *theirs)
    assert not passes(upserted(10), *theirs)
    assert not passes(upserted(6), *theirs, AN_APPEND), "its rows may have any key"
    assert not passes(upserted(6), *theirs, updated(4, field=0)), "it may have changed the key of a row"


def test_keys_of_other_columns_can_not_be_compared() -> None:
    same, other = upserted(2), upserted(3, columns=(1,))
    assert not passes(upserted(1), same, other)
    assert not passes(upserted(1), other, same)


def test_many_versions_have_a_footprint_for_each_operation_and_kind_of_keys() -> None:
    united = union([deleted(1), upserted(2), AN_APPEND] * 100)
    assert united is not None
    assert [one.kind for one in united] == [Kind.DELETE, Kind.UPDATE, Kind.APPEND]


@pytest.mark.parametrize(
    "odd",
    [
        Unreadable.NO_TRANSACTION,
        Footprint(kind=Kind.REWRITE),
        Footprint(kind=Kind.PROJECT),
        replace(upserted(1), generations=((b"region", 1),)),
        replace(upserted(1), key_filter=KeyFilter(field_ids=(0,), bloom=b"\1")),
    ],
)
def test_there_is_none_with_a_version_that_must_be_compared_by_itself(odd: Footprint | Unreadable) -> None:
    assert union([deleted(1), odd]) is None


def test_there_is_none_of_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unions, "UNION_SIZE_MAX", 4)
    assert union([upserted(1, 2), upserted(3), deleted(1)]) is not None
    assert union([upserted(1, 2), upserted(3, 4), deleted(1)]) is None
    assert union([upserted(1, 2), upserted(3), deleted(1, 2)]) is None
