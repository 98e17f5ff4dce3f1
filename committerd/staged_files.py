"""Files that a transaction or a version refers to: are they there, how large are they, what do
they delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from committerd.errors import InvalidRequest, SettingsError
from committerd.format.deletion_file import decode_deletions
from committerd.format.fragment_reuse import (
    Content,
    ExternalContent,
    decode_content,
    reuse_content,
)
from committerd.format.index_details import FRAGMENT_REUSE_INDEX
from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import BasePath, DataFragment, IndexMetadata, Transaction
from committerd.format.paths import data_key, deletion_key, index_prefix
from committerd.ports import ObjectStore
from committerd.rules.brought import Brought, brought
from committerd.rules.rebase import DeletionMerge, Deletions
from committerd.several import for_each

OpenStore = Callable[[str], ObjectStore]

_TOLD_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a version's files lie: its own folder, and its bases."""

    store: ObjectStore
    bases: Sequence[BasePath] = ()
    open_store: OpenStore | None = None
    """None = bases can't be read."""

    def locate(self, key: str, base_id: int | None) -> tuple[ObjectStore, str]:
        """The store that has an object, and its key there. Raises `InvalidRequest`
        (`base_unreadable`).
        """
        if base_id is None:
            return self.store, key
        base = next((base for base in self.bases if base.id == base_id), None)
        if base is None or self.open_store is None:
            raise InvalidRequest(
                f"{key} lies in base {base_id}, which can't be read from here; commit it with `committerd commit`",
                code="base_unreadable",
            )
        inside = key if base.is_dataset_root else key.partition("/")[2]
        try:
            return self.open_store(base.path), inside
        except SettingsError as error:
            raise InvalidRequest(f"{key} lies in base {base_id}: {error}", code="base_unreadable") from error


async def missing_files(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    """Those of the keys that have no object, in their order."""
    sizes = await _sizes(store, keys)
    return [key for key in keys if sizes[key] is None]


def missing_file(keys: Sequence[str]) -> InvalidRequest:
    """What to say of them."""
    told = ", ".join(keys[:_TOLD_MAX])
    more = f" and {len(keys) - _TOLD_MAX} more" if len(keys) > _TOLD_MAX else ""
    return InvalidRequest(
        f"files that the transaction refers to are not there: {told}{more}. Was it staged longer ago than cleanup "
        "keeps files? Write them again and stage a new transaction",
        code="missing_file",
    )


def staged_keys(transaction: Transaction, what: Brought, latest: ManifestFile | None) -> list[str]:
    """Objects in the table's folder that the transaction brings, `what` among them: the latest
    version does not refer to them.
    """
    wanted = list(_fragment_keys(what.fragments, staged=True))
    wanted += [
        data_key(group.new_file.path)
        for group in transaction.data_replacement.replacements
        if not group.new_file.HasField("base_id")
    ]
    for index in transaction.create_index.new_indices:
        if not index.HasField("base_id"):
            wanted += [index_prefix(index.uuid.uuid) + file.path for file in index.files]
    for one in transaction.rewrite.rewritten_indices:
        wanted += [index_prefix(one.new_id.uuid) + file.path for file in one.new_index_files]
    known = set(_fragment_keys(latest.fragments, staged=False)) if latest else set()
    return [key for key in dict.fromkeys(wanted) if key not in known]


async def with_known_sizes(store: ObjectStore, transaction: Transaction, what: Brought) -> Transaction:
    """The transaction with sizes of data files and numbers of deleted rows that its writer left
    out of `what` it brings.

    The same object when nothing is missing. Lance fills them in too (migrate_manifest). Raises
    `InvalidRequest` (`missing_file`, `deletion_file`).
    """
    sizeless = [data_key(file.path) for file in what.files if not file.file_size_bytes and not file.HasField("base_id")]
    uncounted = [fragment for fragment in what.fragments if _is_uncounted(fragment)]
    if not sizeless and not uncounted:
        return transaction
    filled = Transaction()
    filled.CopyFrom(transaction)
    sizes = await _sizes(store, sizeless)
    if missing := [key for key in sizeless if sizes[key] is None]:
        raise missing_file(missing)
    what = brought(filled)
    for file in what.files:
        if not file.HasField("base_id"):
            file.file_size_bytes = file.file_size_bytes or sizes[data_key(file.path)] or 0
    for fragment in what.fragments:
        if _is_uncounted(fragment):
            rows = await read_deletions(Places(store=store), fragment, staged=True)
            fragment.deletion_file.num_deleted_rows = len(rows)
            if not rows:
                # A count of 0 means that it is not known, so a file that deletes nothing can't be
                # named.
                fragment.ClearField("deletion_file")
    return filled


async def read_deletions(places: Places, fragment: DataFragment, *, staged: bool) -> BitMap:
    """Deleted row offsets of a fragment; empty when it has no deletion file.

    Raises `InvalidRequest` (staged) or `CorruptTable` with code `deletion_file`, `InvalidRequest`
    with code `missing_file` when it is not there.
    """
    if not fragment.HasField("deletion_file"):
        return BitMap()
    file = fragment.deletion_file
    base_id = file.base_id if file.HasField("base_id") else None
    store, key = places.locate(deletion_key(fragment.id, file, staged=staged), base_id)
    body = await store.get(key)
    if body is None:
        raise missing_file([key])
    return decode_deletions(body, fragment, staged=staged)


async def read_merge(merge: DeletionMerge, *, staged: Places, read: Places, latest: Places) -> Deletions:
    """The deletions of a fragment in its three states."""
    return Deletions(
        read=await read_deletions(read, merge.read, staged=False),
        ours=await read_deletions(staged, merge.ours, staged=True),
        latest=await read_deletions(latest, merge.latest, staged=False),
    )


async def read_reuse(store: ObjectStore, indices: Iterable[IndexMetadata]) -> Content | None:
    """What the fragment reuse index says; None when there is none."""
    index = next((index for index in indices if index.name == FRAGMENT_REUSE_INDEX), None)
    if index is None:
        return None
    content = reuse_content(index)
    if isinstance(content, ExternalContent):
        body = await store.get_range(content.key, content.start, content.end)
        if body is None:
            raise missing_file([content.key])
        return decode_content(body)
    return content


@dataclass(frozen=True, slots=True)
class Copy:
    """One object that a deep clone needs, where it is and under which key it will be."""

    store: ObjectStore
    source: str
    target: str


async def copies_of(source: ManifestFile, places: Places) -> list[Copy]:
    """All that a deep clone of a version copies: data files, deletion files, index files."""
    wanted: list[tuple[str, int | None]] = []
    for fragment in source.fragments:
        for file in fragment.files:
            base_id = file.base_id if file.HasField("base_id") else None
            wanted.append((data_key(file.path), base_id))
        if fragment.HasField("deletion_file"):
            deletions = fragment.deletion_file
            base_id = deletions.base_id if deletions.HasField("base_id") else None
            wanted.append((deletion_key(fragment.id, deletions, staged=False), base_id))
    copies = [Copy(*places.locate(key, base_id), key) for key, base_id in dict.fromkeys(wanted)]
    for index in source.indices:
        base_id = index.base_id if index.HasField("base_id") else None
        prefix = index_prefix(index.uuid.uuid)
        store, folder = places.locate(prefix, base_id)
        copies += [Copy(store, key, prefix + key.removeprefix(folder)) for key in await store.list(folder)]
    return copies


def _fragment_keys(fragments: Iterable[DataFragment], *, staged: bool) -> Iterator[str]:
    for fragment in fragments:
        for file in fragment.files:
            if not file.HasField("base_id"):
                yield data_key(file.path)
        file_of_deletions = fragment.deletion_file
        if fragment.HasField("deletion_file") and not file_of_deletions.HasField("base_id"):
            yield deletion_key(fragment.id, file_of_deletions, staged=staged)


def _is_uncounted(fragment: DataFragment) -> bool:
    return fragment.HasField("deletion_file") and not fragment.deletion_file.num_deleted_rows


async def _sizes(store: ObjectStore, keys: Sequence[str]) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {}

    async def look(key: str) -> None:
        sizes[key] = await store.head(key)

    await for_each(dict.fromkeys(keys), look)
    return sizes
