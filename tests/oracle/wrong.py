"""Transactions that say something wrong of what they bring: well-formed, and such as a writer may stage by mistake."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from pyroaring import BitMap

from committerd_common.messages import DataFile, DataFragment, Field, IndexMetadata, Manifest, Transaction

Wrong = Callable[[Transaction, Manifest, random.Random], bool]
"""Changes the transaction in place, given the latest version; False = there is nothing to change."""


def change(staged: Transaction, latest: Manifest, rng: random.Random) -> str:
    """Make some statement of the transaction wrong, in place; returns which, or an empty text if it says nothing."""
    kinds = list(KINDS)
    rng.shuffle(kinds)
    return next((kind.__name__ for kind in kinds if kind(staged, latest, rng)), "")


def _fragments(staged: Transaction) -> Iterator[DataFragment]:
    yield from staged.append.fragments
    yield from staged.overwrite.fragments
    yield from staged.merge.fragments
    yield from staged.update.new_fragments
    yield from staged.update.updated_fragments
    yield from staged.delete.updated_fragments
    for group in staged.rewrite.groups:
        yield from group.new_fragments


def _files(staged: Transaction) -> Iterator[DataFile]:
    for fragment in _fragments(staged):
        yield from fragment.files
    for one in staged.data_replacement.replacements:
        yield one.new_file


def a_column(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    files = [file for file in _files(staged) if file.column_indices]
    if not files:
        return False
    columns = rng.choice(files).column_indices
    columns[rng.randrange(len(columns))] = rng.choice((-1, 0, 1, len(columns), 99, *columns))
    return True


def two_columns(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    files = [file for file in _files(staged) if len(file.column_indices) > 1]
    if not files:
        return False
    columns = rng.choice(files).column_indices
    first, second = rng.sample(range(len(columns)), 2)
    columns[first], columns[second] = columns[second], columns[first]
    return True


def a_field_less(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    files = [file for file in _files(staged) if len(file.fields) > 1]
    if not files:
        return False
    file = rng.choice(files)
    place = rng.randrange(len(file.fields))
    del file.fields[place]
    del file.column_indices[place]
    return True


def a_number_of_rows(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    fragments = list(_fragments(staged))
    if not fragments:
        return False
    rng.choice(fragments).physical_rows += rng.choice((-1, 1, 2, 100))
    return True


def a_file_of_another(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    files, others = list(_files(staged)), [file for fragment in latest.fragments for file in fragment.files]
    if not files or not others:
        return False
    changed, other = rng.choice(files), rng.choice(others)
    changed.path, changed.file_size_bytes = other.path, other.file_size_bytes
    return True


def modified_fields(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    if not staged.update.fields_modified:
        return False
    staged.update.fields_modified.pop(rng.randrange(len(staged.update.fields_modified)))
    return True


def a_type(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    fields = _schema(staged)
    if not fields:
        return False
    rng.choice(fields).logical_type = rng.choice(
        ("int32", "int64", "string", "large_string", "float", "double", "binary")
    )
    return True


def a_required_field(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    schema = staged.project.schema if staged.HasField("project") else staged.merge.schema
    if not schema:
        return False
    schema.add(id=1_000, name="added", parent_id=-1, logical_type="int32", nullable=False)
    return True


def _schema(staged: Transaction) -> list[Field]:
    return [*staged.project.schema, *staged.merge.schema]


def fields_of_an_index(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    def changed(index: IndexMetadata) -> None:
        known = [field.id for field in latest.fields]
        index.fields[:] = rng.choice(([], [1_000], known[:2], [*index.fields, *index.fields]))

    return _change_index(staged, rng, changed)


def fragments_of_an_index(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    def changed(index: IndexMetadata) -> None:
        ahead = latest.max_fragment_id + rng.randint(1, 3)
        index.fragment_bitmap = rng.choice((b"", bytes(BitMap([*range(3), ahead]).serialize())))

    return _change_index(staged, rng, changed)


def files_of_an_index(staged: Transaction, latest: Manifest, rng: random.Random) -> bool:
    rewritten = staged.rewrite.rewritten_indices
    if rewritten:
        one = rng.choice(rewritten)
        one.ClearField("new_index_files")
        one.new_id.uuid = rng.randbytes(16)
        return True

    def changed(index: IndexMetadata) -> None:
        index.ClearField("files")
        index.uuid.uuid = rng.randbytes(16)

    return _change_index(staged, rng, changed)


def _change_index(staged: Transaction, rng: random.Random, changed: Callable[[IndexMetadata], None]) -> bool:
    indices = [one for one in staged.create_index.new_indices if one.fields]
    if indices:
        changed(rng.choice(indices))
    return bool(indices)


KINDS: tuple[Wrong, ...] = (
    a_column,
    two_columns,
    a_field_less,
    a_number_of_rows,
    a_file_of_another,
    modified_fields,
    a_type,
    a_required_field,
    fields_of_an_index,
    fragments_of_an_index,
    files_of_an_index,
)
