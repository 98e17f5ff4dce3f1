"""Changing a version's list of fragments: ids, order, what is no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count

from committerd.format.fragment_list import FragmentList
from committerd.format.messages import DataFile, DataFragment, Manifest

CHOSEN_IDS_AHEAD = 1_000
"""A writer may choose ids so far behind the highest that the table has given out; ids are not to be had without end."""

TOMBSTONE = -2
"""Field id of a column in a data file that is no longer read from it."""

FileIdentity = tuple[str, tuple[int, ...], tuple[int, ...], int, int, int | None]


def files_of(fragments: Iterable[DataFragment]) -> list[DataFile]:
    """The data files of fragments, in their order."""
    return [file for fragment in fragments for file in fragment.files]


def next_fragment_id(manifest: Manifest, kept: FragmentList) -> int:
    """The first id that no fragment of this table ever had; those in `kept` are of the version too.

    Lance: transaction.rs, build_manifest. An Overwrite continues too, as with pylance 14.0.2; 4.0.0
    starts at 0 again and so gives one id to several fragments over time.
    """
    if manifest.HasField("max_fragment_id"):
        return manifest.max_fragment_id + 1
    return max(max((fragment.id for fragment in manifest.fragments), default=-1), kept.last_id) + 1


def with_new_ids(fragments: Sequence[DataFragment], first: int, *, chosen: bool) -> list[DataFragment]:
    """Copies with ids from `first` on, in their order.

    `chosen`: a fragment that came with an id from there on, and not too far, keeps it, as in Lance
    (transaction.rs, fragments_with_ids). Lance keeps any id but 0; what had that id before would
    then be taken for the new fragment by whoever remembers it.
    """
    kept = {one.id for one in fragments if first <= one.id < first + CHOSEN_IDS_AHEAD} if chosen else set()
    if not kept:
        return [with_id(fragment, first + place) for place, fragment in enumerate(fragments)]
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
    copied = DataFragment()
    copied.CopyFrom(fragment)
    copied.id = fragment_id
    return copied


def replace_fragments(manifest: Manifest, changed: Mapping[int, DataFragment]) -> None:
    """Put these in the place of those with the same ids."""
    for fragment in manifest.fragments:
        replacement = changed.get(fragment.id)
        if replacement is not None:
            fragment.CopyFrom(replacement)


def remove_fragments(manifest: Manifest, ids: Collection[int]) -> None:
    """Take out those that are there."""
    if any(fragment.id in ids for fragment in manifest.fragments):
        set_fragments(manifest, [fragment for fragment in manifest.fragments if fragment.id not in ids])


def set_fragments(manifest: Manifest, fragments: Sequence[DataFragment]) -> None:
    """Make these the fragments of the version, in the order of their ids."""
    ordered = sorted(fragments, key=lambda fragment: fragment.id)
    kept = Manifest(fragments=ordered)
    manifest.ClearField("fragments")
    manifest.MergeFrom(kept)


def drop_tombstoned_files(fragments: Iterable[DataFragment]) -> None:
    """Drop, in place, data files of which no column is read any more; also those without columns.

    Lance: transaction.rs, remove_tombstoned_data_files.
    """
    for fragment in fragments:
        for file in fragment.files:
            if not file.fields or TOMBSTONE in file.fields:
                keep_files(fragment, lambda file: any(one != TOMBSTONE for one in file.fields))
                break


def drop_dead_files(fragments: Iterable[DataFragment], fields: Collection[int]) -> None:
    """Drop, in place, data files that have none of these fields: of a column that was dropped since, too.

    pylance 14.0.2: of fragments that an operation changes; 4.0.0 drops those only whose columns are all tombstones.
    """
    for fragment in fragments:
        keep_files(fragment, lambda file: any(one in fields for one in file.fields))


def keep_files(fragment: DataFragment, wanted: Callable[[DataFile], bool]) -> None:
    """Drop, in place, the data files that are not wanted."""
    kept = [file for file in fragment.files if wanted(file)]
    if len(kept) != len(fragment.files):
        only = DataFragment(files=kept)
        fragment.ClearField("files")
        fragment.MergeFrom(only)


def live_rows(fragment: DataFragment) -> int:
    """Rows that are not deleted."""
    deleted = fragment.deletion_file.num_deleted_rows if fragment.HasField("deletion_file") else 0
    return fragment.physical_rows - deleted


def file_version(file: DataFile) -> str | None:
    """Version of the file format; None when we don't know it.

    Lance: LanceFileVersion::try_from_major_minor.
    """
    return _FILE_VERSIONS.get((file.file_major_version, file.file_minor_version))


def file_identity(file: DataFile) -> FileIdentity:
    """What makes two data file entries the same; not the size, which writers may leave unknown."""
    return (
        file.path,
        tuple(file.fields),
        tuple(file.column_indices),
        file.file_major_version,
        file.file_minor_version,
        file.base_id if file.HasField("base_id") else None,
    )


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
