"""The invariants of a version, and that each violation is detected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

from committerd.errors import CorruptTable
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.versions.invariants import require_sound, require_sound_table
from committerd.lance.versions.next_version import NextVersion
from committerd_common.messages import DataFragment, Field, IndexMetadata, Manifest
from tests.lance import samples
from tests.lance.samples import column, fragment, index, manifest, table


def sound() -> Manifest:
    return manifest(fragment(0, deleted=2), fragment(1), config={"a": "1"}, version=6, next_row_id=5)


def broken(made: Manifest, current: ManifestFile | None = None, *, touched: frozenset[int] | None = None) -> str:
    """The code of the first violation; empty if there is none."""
    try:
        require_sound(current, NextVersion(manifest=made, indices=(), touched=touched))
    except CorruptTable as error:
        return error.code
    return ""


CURRENT = table(manifest(fragment(0), fragment(1), next_row_id=5))

BREAKS: list[tuple[str, Callable[[Manifest], object]]] = [
    ("version_order", lambda made: setattr(made, "version", 7)),
    ("fragment_id_reused", lambda made: made.ClearField("max_fragment_id")),
    ("row_id_reused", lambda made: setattr(made, "next_row_id", 4)),
    ("fragment_id_twice", lambda made: made.fragments.append(fragment(1))),
    ("max_fragment_id", lambda made: made.fragments.append(fragment(2))),
    ("field_id_twice", lambda made: made.fields.append(column(0))),
    ("fragment_without_files", lambda made: made.fragments[0].ClearField("files")),
    ("physical_rows_unknown", lambda made: made.fragments[1].ClearField("physical_rows")),
    ("deleted_rows", lambda made: setattr(made.fragments[0].deletion_file, "num_deleted_rows", 0)),
    ("deleted_rows", lambda made: setattr(made.fragments[0].deletion_file, "num_deleted_rows", 11)),
    ("field_twice_in_fragment", lambda made: made.fragments[1].files.append(samples.data_file("x", [0]))),
    ("unknown_base", lambda made: setattr(made.fragments[1].files[0], "base_id", 3)),
    ("unknown_base", lambda made: setattr(made.fragments[0].deletion_file, "base_id", 3)),
    ("row_ids", lambda made: samples.with_row_ids(made.fragments[1], [range(10)])),
    ("feature_flags", lambda made: setattr(made, "reader_feature_flags", 0)),
    ("feature_flags", lambda made: setattr(made, "writer_feature_flags", 9 | 16)),
    ("feature_flags", lambda made: setattr(made, "writer_feature_flags", 1)),
]


def test_a_sound_version_passes() -> None:
    assert broken(sound(), CURRENT) == ""
    assert broken(sound()) == ""
    require_sound_table(table(sound(), index(1)))


@pytest.mark.parametrize(("code", "change"), BREAKS)
def test_a_break_is_seen(code: str, change: Callable[[Manifest], object]) -> None:
    made = sound()
    change(made)
    if code == "version_order":
        with pytest.raises(CorruptTable, match="it follows version 5"):
            require_sound(CURRENT, NextVersion(manifest=made, indices=(), touched=None))
    else:
        assert broken(made, CURRENT) == code


DEVIATIONS: list[tuple[str, Callable[[DataFragment], object]]] = [
    ("fragment_without_files", lambda one: one.ClearField("files")),
    ("physical_rows_unknown", lambda one: one.ClearField("physical_rows")),
    ("deleted_rows", lambda one: one.deletion_file.CopyFrom(samples.deletion_file(11))),
    ("field_twice_in_fragment", lambda one: one.files.append(samples.data_file("x", [0]))),
    ("unknown_base", lambda one: setattr(one.files[0], "base_id", 3)),
    ("row_ids", lambda one: setattr(one, "inline_row_ids", b"")),
    ("row_versions", lambda one: setattr(one, "inline_created_at_versions", b"\xff")),
    ("row_versions", lambda one: setattr(one, "inline_last_updated_at_versions", b"\xff")),
]


@pytest.mark.parametrize("place", [0, 17, 39])
@pytest.mark.parametrize("touched", [None, frozenset(range(40)), frozenset({0, 17, 39})])
@pytest.mark.parametrize(("code", "deviate"), DEVIATIONS)
def test_one_among_many_of_its_kind_is_seen(
    code: str, deviate: Callable[[DataFragment], object], touched: frozenset[int] | None, place: int
) -> None:
    made = manifest(*(fragment(one, rows=10 + one % 3, deleted=2 * (one % 2)) for one in range(40)), version=6)
    made.fragments[place].ClearField("deletion_file")
    made.fragments[place].physical_rows = 10
    assert broken(made, touched=touched) == ""
    deviate(made.fragments[place])
    assert broken(made, touched=touched) == code


def test_row_ids_that_can_not_be_decoded_are_told_of_each_fragment() -> None:
    made = manifest(fragment(0), fragment(1), stable=True, version=6)
    for one in made.fragments:
        one.inline_row_ids = b"\xff"
    with pytest.raises(CorruptTable, match=r"row ids of fragment 0.*row ids of fragment 1") as error:
        require_sound(None, NextVersion(manifest=made, indices=(), touched=None))
    assert error.value.code == "row_ids"


class TestRequiredFields:
    COLUMNS = (column(0), column(1), column(2, nullable=False))

    def made(self, *without: int, columns: Sequence[Field] = COLUMNS) -> Manifest:
        """A version of two fragments; of those in `without` the last column has no data."""
        made = manifest(fragment(0), fragment(1), columns=columns, version=6, next_row_id=5)
        for number in without:
            del made.fragments[number].files[0].fields[2:]
        return made

    def test_have_data_in_every_fragment_that_changes(self) -> None:
        for touched in (None, frozenset({1})):
            assert broken(self.made(), CURRENT, touched=touched) == ""
            assert broken(self.made(1), CURRENT, touched=touched) == "required_field"
            assert broken(self.made(1), touched=touched) == "required_field"
        assert broken(self.made(0, 1), CURRENT, touched=frozenset()) == ""

    def test_that_had_none_before_stop_nobody(self) -> None:
        damaged = table(self.made(0))
        made = self.made(0, 1)
        made.version = 7
        assert broken(made, damaged) == ""

    def test_become_so_by_a_new_schema(self) -> None:
        nullable = table(self.made(0, columns=[column(0), column(1), column(2)]))
        made = self.made(0)
        made.version = 7
        assert broken(made, nullable) == "required_field"


def test_only_what_changed_is_looked_into() -> None:
    made = sound()
    made.fragments[1].ClearField("files")
    assert broken(made, CURRENT, touched=frozenset({0})) == ""
    assert broken(made, CURRENT, touched=frozenset({1})) == "fragment_without_files"


def test_every_fragment_has_an_id_for_each_row() -> None:
    made = manifest(fragment(0), fragment(1), stable=True, version=6)
    assert broken(made) == ""
    samples.with_row_ids(made.fragments[1], [range(9)])
    assert broken(made) == "row_ids"
    made.fragments[1].ClearField("inline_row_ids")
    assert broken(made) == "row_ids"


def test_all_violations_are_told() -> None:
    made = sound()
    made.fragments[0].ClearField("files")
    made.fragments[1].ClearField("files")
    with pytest.raises(CorruptTable, match=r"fragment 0 has no data file; fragment 1 has no data file"):
        require_sound_table(table(made))


class TestIndices:
    def test_are_there_once_and_have_a_uuid(self) -> None:
        nameless = IndexMetadata(name="x")
        for indices, code in (((index(1), index(1, name="y")), "index_uuid_twice"), ((nameless,), "index_uuid")):
            with pytest.raises(CorruptTable) as error:
                require_sound_table(table(sound(), *indices))
            assert error.value.code == code

    @staticmethod
    def follows(*before: IndexMetadata, columns: int) -> None:
        made = manifest(fragment(0), columns=[column(number) for number in range(columns)], version=6)
        require_sound(
            table(manifest(fragment(0)), *before), NextVersion(manifest=made, indices=before, touched=frozenset())
        )

    def test_do_not_lose_their_field(self) -> None:
        self.follows(index(1, fields=[1]), columns=3)
        with pytest.raises(CorruptTable, match="index 'i1' is on fields that are gone"):
            self.follows(index(1, fields=[1]), columns=1)

    def test_with_covering_fields_are_flagged(self) -> None:
        covering = index(1, fields=[0, 1])
        covering.covering_fields.append(1)
        for indices, reader, writer, fits in (
            ((covering,), 128, 128, True),
            ((covering,), 128, 0, False),
            ((covering,), 0, 0, False),
            ((index(1),), 128, 128, False),
        ):
            made = manifest(fragment(0), version=6)
            made.reader_feature_flags, made.writer_feature_flags = reader, writer
            built = NextVersion(manifest=made, indices=indices, touched=frozenset())
            with nullcontext() if fits else pytest.raises(CorruptTable, match="flag 128"):
                require_sound(table(manifest(fragment(0))), built)

    def test_that_had_none_before_are_not_ours(self) -> None:
        self.follows(index(1, fields=[7]), columns=1)

    def test_that_are_new_are_their_makers(self) -> None:
        made = manifest(fragment(0), version=6)
        require_sound(
            table(manifest(fragment(0))),
            NextVersion(manifest=made, indices=(index(1, fields=[7]),), touched=frozenset()),
        )
