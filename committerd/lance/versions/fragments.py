"""A version's list of fragments: ids, order, and data files that no reader needs any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, zip_longest

from committerd.lance.format.fragment_list import FragmentList
from committerd_common.messages import DataFile, DataFragment, Field, FileDescriptor, Manifest

CHOSEN_IDS_AHEAD = 1_000
"""The most by which a fragment id that a producer chooses may exceed the highest used one, because ids are limited."""

TOMBSTONE = -2
"""The field id, in a data file, of a column that readers no longer read from that file."""

FileIdentity = tuple[str, tuple[int, ...], tuple[int, ...], int, int, int | None]


def files_of(fragments: Iterable[DataFragment]) -> list[DataFile]:
    """The data files of fragments, in their order."""
    return [file for fragment in fragments for file in fragment.files]


def differing_types(file: DataFile, said: FileDescriptor | None, schema: Sequence[Field]) -> str:
    """How the types that a data file says its columns have differ from those of a schema; empty if they don't.

    `said`: what the file says of itself; None if it says nothing. Columns that the schema lacks count as dropped.
    """
    own = {field.id: field for field in said.schema.fields} if said is not None else {}
    if unknown := [number for number in file.fields if number >= 0 and number not in own]:
        return f"file {file.path!r} does not say which type its field {unknown[0]} has"
    for known in schema:
        theirs = own.get(known.id)
        if theirs is None:
            continue
        if (theirs.logical_type, theirs.parent_id) != (known.logical_type, known.parent_id):
            return (
                f"field {known.id} is {theirs.name!r} of type {theirs.logical_type!r} in file {file.path!r}, and "
                f"{known.name!r} of type {known.logical_type!r} in the table"
            )
        if theirs.nullable and not known.nullable:
            return f"column {known.name!r} may be null in file {file.path!r}, and not in the table"
    return ""


def next_fragment_id(manifest: Manifest, kept: FragmentList) -> int:
    """The lowest id above all ids that a fragment of this table ever had; `kept` are fragments of the version too.

    Lance: transaction.rs, build_manifest. After an Overwrite the ids continue, as in pylance 14.0.2. 4.0.0 starts at 0
    again, and so uses one id for several fragments over time.
    """
    if manifest.HasField("max_fragment_id"):
        return manifest.max_fragment_id + 1
    return max(max((fragment.id for fragment in manifest.fragments), default=-1), kept.last_id) + 1


def with_new_ids(fragments: Sequence[DataFragment], first: int, *, chosen: bool) -> list[DataFragment]:
    """Copies with ids from `first` on, in their order.

    If `chosen`, a fragment keeps an id that is at least `first` and within `CHOSEN_IDS_AHEAD`. Lance keeps any id but 0
    (transaction.rs, fragments_with_ids), so that two fragments can have the same id over time.
    """
    kept = {one.id for one in fragments if first <= one.id < first + CHOSEN_IDS_AHEAD} if chosen else set()
    if not kept:
        return [with_id(fragment, first + offset) for offset, fragment in enumerate(fragments)]
    others = (one for one in count(first) if one not in kept)
    left = set(kept)
    made = []
    for fragment in fragments:
        if fragment.id in left:
            left.remove(fragment.id)
            made.append(with_id(fragment, fragment.id))
        else:
            made.append(with_id(fragment, next(others)))
    return made


def with_id(fragment: DataFragment, fragment_id: int) -> DataFragment:
    """A copy with this id."""
    copied = DataFragment()
    copied.CopyFrom(fragment)
    copied.id = fragment_id
    return copied


def replace_fragments(manifest: Manifest, changed: Mapping[int, DataFragment]) -> None:
    """Replace, in place, the fragments with these ids."""
    for fragment in manifest.fragments:
        replacement = changed.get(fragment.id)
        if replacement is not None:
            fragment.CopyFrom(replacement)


def remove_fragments(manifest: Manifest, ids: Collection[int]) -> None:
    """Remove, in place, the fragments with these ids, as far as they exist."""
    if any(fragment.id in ids for fragment in manifest.fragments):
        set_fragments(manifest, [fragment for fragment in manifest.fragments if fragment.id not in ids])


def set_fragments(manifest: Manifest, fragments: Sequence[DataFragment]) -> None:
    """Make these the fragments of the version, in the order of their ids."""
    ordered = sorted(fragments, key=lambda fragment: fragment.id)
    kept = Manifest(fragments=ordered)
    manifest.ClearField("fragments")
    manifest.MergeFrom(kept)


def drop_tombstoned_files(fragments: Iterable[DataFragment]) -> None:
    """Drop, in place, data files that have no column, or only columns that readers read from other files.

    Lance: transaction.rs, remove_tombstoned_data_files.
    """
    for fragment in fragments:
        for file in fragment.files:
            if not file.fields or TOMBSTONE in file.fields:
                keep_files(fragment, lambda file: any(one != TOMBSTONE for one in file.fields))
                break


def drop_dead_files(fragments: Iterable[DataFragment], fields: Collection[int]) -> None:
    """Drop, in place, data files that have none of these fields.

    pylance 14.0.2 does this for the fragments that an operation changes; 4.0.0 keeps the files of dropped columns.
    """
    for fragment in fragments:
        keep_files(fragment, lambda file: any(one in fields for one in file.fields))


def keep_files(fragment: DataFragment, wanted: Callable[[DataFile], bool]) -> None:
    """Drop, in place, the data files for which `wanted` returns False."""
    kept = [file for file in fragment.files if wanted(file)]
    if len(kept) != len(fragment.files):
        only = DataFragment(files=kept)
        fragment.ClearField("files")
        fragment.MergeFrom(only)


def live_rows(fragment: DataFragment) -> int:
    """The number of rows that are not deleted."""
    deleted = fragment.deletion_file.num_deleted_rows if fragment.HasField("deletion_file") else 0
    return fragment.physical_rows - deleted


def file_version(file: DataFile) -> str | None:
    """The version of the file format; None if it is unknown.

    Lance: LanceFileVersion::try_from_major_minor.
    """
    return _FILE_VERSIONS.get((file.file_major_version, file.file_minor_version))


def has_other_file_version(fragments: Iterable[DataFragment], version: str) -> bool:
    """Whether some data file has another version than this one."""
    return any(file_version(file) != version for fragment in fragments for file in fragment.files)


def file_identity(file: DataFile) -> FileIdentity:
    """A key that is equal for two entries of the same data file: all attributes but the size, which is optional."""
    return (
        file.path,
        tuple(file.fields),
        tuple(file.column_indices),
        file.file_major_version,
        file.file_minor_version,
        file.base_id if file.HasField("base_id") else None,
    )


def fields_in_other_files(before: DataFragment, after: DataFragment) -> frozenset[int]:
    """The fields whose data readers find in another file or column after a change than before it, or that get data."""
    if list(before.files) == list(after.files):
        return frozenset()
    locations = dict(_locations(before))
    return frozenset(field for field, location in _locations(after) if locations.get(field) != location)


def _locations(fragment: DataFragment) -> Iterator[tuple[int, tuple[str, int | None, int | None]]]:
    """Each field that the fragment has data of, with the path, base and column of the data."""
    for file in fragment.files:
        base_id = file.base_id if file.HasField("base_id") else None
        for field, column in zip_longest(file.fields, file.column_indices):
            if field is not None and field >= 0:
                yield field, (file.path, base_id, column)


_FILE_VERSIONS = {
    (0, 0): "0.1",
    (0, 1): "0.1",
    (0, 2): "0.1",
    (0, 3): "2.0",
    (2, 0): "2.0",
    (2, 1): "2.1",
    (2, 2): "2.2",
    (2, 3): "2.3",
}
