"""Checks and reads the files of a transaction or a version: existence, sizes, and the rows that deletion files name."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import anyio
from anyio import to_thread
from pyroaring import BitMap

from committerd.concurrency import for_each
from committerd.errors import InvalidRequest, ObjectUnreadable, OutdatedRequest, SettingsError, StoreUnavailable
from committerd.lance.checks.texts import require_schema_metadata
from committerd.lance.format.byte_range import ByteRange
from committerd.lance.format.data_file import (
    FOOTER_BYTES,
    TAIL_BYTES,
    FileFacts,
    buffer_table,
    decode_descriptor,
    facts,
    first_buffer,
)
from committerd.lance.format.fragment_reuse import Content, ExternalContent, decode_content, reuse_content
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.operations.operation import StagedFiles
from committerd.lance.operations.rebase import DeletionMerge, DeletionRead, Deletions
from committerd.lance.transactions.fit import require_files_as_described
from committerd.lance.transactions.transaction import index_files, new_files, staged_files, unlisted_indices
from committerd.stores.port import ObjectStore, Tail
from committerd.table.deletion_vectors import DeletionVectors
from committerd.table.kept_reuse import KeptReuse
from committerd.table.work import LIGHT_BYTES_MAX, Do, Work, at_once
from committerd_common.deletion_file import decode_deletions
from committerd_common.index_details import FRAGMENT_REUSE_INDEX
from committerd_common.messages import (
    BasePath,
    DataFile,
    DataFragment,
    FileDescriptor,
    IndexMetadata,
    Manifest,
    Transaction,
)
from committerd_common.paths import DATA, VERSIONS, data_key, deletion_key, index_file_key, index_prefix

OpenStore = Callable[[str], ObjectStore]

_T = TypeVar("_T")

_NAMED_MAX = 10
_MISSING_MAX = 10
"""Once so many files of a transaction are missing, the others are not looked for: it is refused anyway."""
BODIES_AT_ONCE = 256
"""Maximum number of deletion files that are read in one go."""
_SMALL_BODY_BYTES = 64 * 1024
"""Deletion files below this size are read in one go: 16 MiB at most."""
_MANIFESTS_TRIED = 4
"""Manifests to try when checking that the table is readable: a single one may itself be unreadable."""
_NAME_CHARS_MAX = 200
_FOOTER_BYTES = 16 * 1024
"""Bytes of a data file's end to read first. They hold the descriptor of all but wide files."""
_ENDS_AT_ONCE = 256
"""Maximum number of files whose ends are read in one go."""
_SCHEMA_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of the different schemas of the data files that are read together. The types of others aren't known."""
_DESCRIPTORS_AT_ONCE = 4
"""Descriptors of wide files to read at the same time: of up to 8 MiB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a version's files lie: in the table's folder, and in its base paths."""

    store: ObjectStore
    bases: Sequence[BasePath] = ()
    open_store: OpenStore | None = None
    """Opens the store of a base path; None = base paths can't be read."""
    deletion_vectors: DeletionVectors = field(default_factory=DeletionVectors)
    """The content of deletion files that were read or written before."""
    unwritten: Mapping[str, BitMap] = field(default_factory=dict)
    """The content of deletion files in the table's folder that versions formed ahead have still to write, by key."""

    def locate(self, key: str, base_id: int | None) -> tuple[ObjectStore, str]:
        """Return the store that has an object, and the object's key there. Raises `InvalidRequest` (`base_unreadable`).

        `base_id`: None = the table's folder.
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


async def read_named(
    store: ObjectStore, key: str, read: Callable[[], Awaitable[_T]], *, code: str = "file_unreadable"
) -> _T:
    """Call `read`, which reads an object that a record names, and return its result.

    When the store refuses to read that object, the table's own manifests are read next. If those are readable and the
    store refuses the object once more, the record is at fault: raises `InvalidRequest` with `code`. If they are not,
    raises `StoreUnavailable`: with expired credentials, for example, nothing is readable.
    """
    try:
        return await read()
    except ObjectUnreadable:
        await _require_readable(store)
    try:
        return await read()
    except ObjectUnreadable as error:
        raise InvalidRequest(
            f"the record names {key[:_NAME_CHARS_MAX]!r}, which can't be read, while the table can: {error}. Use a "
            "regular file in the table's folder that the committer may read, and stage a new transaction",
            code=code,
        ) from error


async def _require_readable(store: ObjectStore) -> None:
    """List the table's manifests and read the end of one. Raises `ObjectUnreadable` when none of them is readable."""
    unread: list[ObjectUnreadable] = []
    for key in await store.list(VERSIONS, limit=_MANIFESTS_TRIED):
        try:
            await store.get_tail(key, 1)
        except ObjectUnreadable as error:
            unread.append(error)
        else:
            return
    if unread:
        raise unread[0]


async def missing_files(store: ObjectStore, keys: Sequence[str]) -> list[str]:
    """Return those keys that have no object, in their order; some of them if there are many. Raises as `read_named`."""
    sizes = await _sizes(store, keys)
    return [key for key in keys if sizes.get(key, 0) is None]


def missing_file(keys: Sequence[str]) -> InvalidRequest:
    """The error that names these missing files (`missing_file`)."""
    listed = ", ".join(key[:_NAME_CHARS_MAX] for key in keys[:_NAMED_MAX])
    more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
    more += "; perhaps others, which were not looked for" if len(keys) >= _MISSING_MAX else ""
    return InvalidRequest(
        f"files of the transaction are missing: {listed}{more}. Were they written to another table's "
        "folder, or did a cleanup delete them? Write them again, and stage a new transaction",
        code="missing_file",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits on the files of one transaction."""

    files: int = 100_000
    """Maximum number of data files and index files that it adds."""
    bytes: int = 64 * 1024 * 1024
    """Maximum bytes of its deletion files together."""


class Named(NamedTuple):
    """A data file or index file that a transaction adds."""

    key: str
    size: int
    """In bytes, according to the transaction; 0 = the transaction does not give it."""
    base_id: int | None


def named_files(transaction: Transaction, files: StagedFiles, current: Manifest | None) -> list[Named]:
    """List the data files and index files that a transaction adds.

    `files`: the staged files of the transaction. `current`: an excerpt of the latest version, whose own data files are
    left out unless the transaction describes them otherwise; None = leave out nothing.
    """
    wanted = [
        Named(data_key(file.path), file.file_size_bytes, file.base_id if file.HasField("base_id") else None)
        for file in files.data_files
    ]
    wanted += [
        Named(index_file_key(file.index_uuid, file.path), file.size_bytes, file.base_id)
        for file in index_files(transaction)
    ]
    if current is None or not current.fragments:
        return wanted
    known = {where: said for fragment in current.fragments for where, said in _described_files(fragment)}
    staged = {where: said for fragment in files.fragments for where, said in _described_files(fragment)}

    def is_known(one: Named) -> bool:
        where = one.key, one.base_id
        if where not in known or where not in staged:
            return where in known
        (rows, size, columns), (rows_said, size_said, columns_said) = known[where], staged[where]
        return rows == rows_said and size_said in (0, size) and columns_said <= columns

    return [one for one in wanted if not is_known(one)]


def _described_files(
    fragment: DataFragment,
) -> Iterator[tuple[tuple[str, int | None], tuple[int, int, frozenset[tuple[int, int]]]]]:
    """Key and base of each data file of the fragment; its rows, size in bytes, and fields with their columns."""
    for file in fragment.files:
        where = data_key(file.path), file.base_id if file.HasField("base_id") else None
        pairs = zip(file.fields, file.column_indices, strict=False)
        yield (
            where,
            (
                fragment.physical_rows,
                file.file_size_bytes,
                frozenset(pair for pair in pairs if pair[0] >= 0),
            ),
        )


def staged_deletions(files: StagedFiles, current: Manifest | None) -> list[DataFragment]:
    """Return the staged fragments whose deletion file the latest version (`current`) does not have."""
    with_deletions = [fragment for fragment in files.fragments if fragment.HasField("deletion_file")]
    if not with_deletions or current is None:
        return with_deletions
    known = {one.id: one.deletion_file for one in current.fragments if one.HasField("deletion_file")}
    return [one for one in with_deletions if known.get(one.id) != one.deletion_file]


@dataclass(slots=True)
class CheckedFiles:
    """The files of a transaction that were found. A missing file may still appear."""

    at: float = float("-inf")
    """When they were checked, on the event loop's clock, in seconds."""
    is_final: bool = False
    """Whether they were verified for the version that is being formed, so what is missing is not looked for again."""
    lacks: bool = False
    """Whether a file is missing, or is not what the transaction says."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Size in bytes of each file in the table's folder, by key."""
    facts: dict[str, FileFacts | None] = field(default_factory=dict)
    """What each data file in the table's folder says of itself, by key; None = it says nothing that is understood."""
    missing: set[str] = field(default_factory=set)
    """The keys of the files that the table's folder lacks; without those of which the store can't say."""
    deletions: dict[str, tuple[DataFragment, int]] = field(default_factory=dict)
    """By key of a deletion file: its fragment's `physical_rows` and `deletion_file`, and the number of deleted rows."""
    faults: dict[str, tuple[DataFragment, InvalidRequest]] = field(default_factory=dict)
    """By key of a deletion file that is missing or damaged: as in `deletions`, and what is wrong."""


async def check_files_of_several(
    store: ObjectStore,
    transactions: Sequence[Transaction],
    limits: FileLimits,
    *,
    verifies: Sequence[bool] | None = None,
    is_final: bool = False,
    deletion_vectors: DeletionVectors | None = None,
    work: Work = at_once,
) -> list[CheckedFiles]:
    """Check ahead of judging which files of these transactions exist in the table's own folder.

    Refuses nothing. Returns one result per transaction, in their order. `verifies`: for each transaction whether its
    files are verified (None = all are). If they are not, only the facts are read that judging it needs. `is_final`: as
    in `CheckedFiles`. `deletion_vectors`: keeps what deletion files hold.

    Raises `StoreUnavailable`.
    """
    places = Places(store=store, deletion_vectors=deletion_vectors or DeletionVectors())
    listed: list[_Listed] = []
    verifies = verifies or [True] * len(transactions)
    for transaction, verified in zip(transactions, verifies, strict=True):
        size = transaction.ByteSize()
        call = partial(_listed if verified else _needed, transaction, limits)
        listed.append(await work(call, size=size) if size > LIGHT_BYTES_MAX else call())
    found = [CheckedFiles(at=anyio.current_time(), is_final=is_final and verified) for verified in verifies]

    async def look() -> None:
        keys = [[file.key for file in one.named] for one in listed]
        sizes, facts_of_all = await _sizes_and_facts(store, keys)
        for checked_files, one in zip(found, listed, strict=True):
            for file in one.named:
                size = sizes.get(file.key)
                if file.key in facts_of_all:
                    checked_files.facts[file.key] = facts_of_all[file.key]
                if size is not None:
                    checked_files.sizes[file.key] = size
                elif file.key in sizes:
                    checked_files.missing.add(file.key)
                checked_files.lacks |= not _fits(file, size)

    deleting = [(one.deleting, checked) for one, checked in zip(listed, found, strict=True) if one.deleting]

    async def read() -> None:
        await _check_deletions_of_several(places, deleting, limits)

    await for_each([look, read] if deleting else [look], lambda call: call())
    return found


class _Listed(NamedTuple):
    """The files of a transaction in the table's folder."""

    named: Sequence[Named]
    """Its data files and index files; none if there are too many."""
    deleting: Sequence[DataFragment]
    """The fragments that have a deletion file."""


def _listed(transaction: Transaction, limits: FileLimits) -> _Listed:
    files = new_files(transaction)
    named = named_files(transaction, files, None) if len(files.data_files) <= limits.files else []
    return _Listed(
        [one for one in named if one.base_id is None] if len(named) <= limits.files else [],
        [one for one in staged_deletions(files, None) if not one.deletion_file.HasField("base_id")],
    )


def _needed(transaction: Transaction, limits: FileLimits) -> _Listed:
    """As `_listed`, but only the files whose size or rows it takes to judge the transaction."""
    files = new_files(transaction)
    sizeless = [one for one in files.data_files if not one.file_size_bytes and not one.HasField("base_id")]
    deletes = transaction.WhichOneof("operation") in ("delete", "update")
    return _Listed(
        [Named(data_key(one.path), 0, None) for one in sizeless] if len(sizeless) <= limits.files else [],
        [
            one
            for one in staged_deletions(files, None)
            if (deletes or _is_uncounted(one)) and not one.deletion_file.HasField("base_id")
        ],
    )


async def _check_deletions_of_several(
    places: Places, deleting: Sequence[tuple[Sequence[DataFragment], CheckedFiles]], limits: FileLimits
) -> None:
    """Read the deletion files of these fragments, and note what each holds; skips those that are at fault.

    `deleting`: for each transaction its fragments with deletion files in the table's folder, and where to note them.
    """
    allowances = [Allowance(limits) for _ in deleting]
    fragments = [(number, one) for number, (several, _) in enumerate(deleting) for one in several]
    for batch in _batches(fragments):
        some = [(number, one) for number, one in batch if len(deleting[number][1].faults) < _MISSING_MAX]
        small = await small_bodies(places.store, [_deletion_key(one) for _, one in some])
        of_each: dict[int, list[DataFragment]] = {}
        for number, one in some:
            of_each.setdefault(number, []).append(one)

        async def check(
            number: int,
            of_each: Mapping[int, Sequence[DataFragment]] = of_each,
            small: Mapping[str, bytes | None] = small,
        ) -> None:
            checked_files = deleting[number][1]
            for one in of_each[number]:
                try:
                    await _check_deletions(places, one, checked_files, allowances[number], small=small)
                except InvalidRequest as error:
                    checked_files.faults[_deletion_key(one)] = _described(one), error
                    checked_files.lacks = True

        await for_each(of_each, check)


async def _check_deletions_of_one(
    places: Places, fragments: Sequence[DataFragment], checked_files: CheckedFiles, limits: FileLimits
) -> None:
    """As `_check_deletions`, for the fragments of one transaction."""
    allowance = Allowance(limits)
    in_bases = [one for one in fragments if one.deletion_file.HasField("base_id")]
    unknown = [
        one for one in fragments if not one.deletion_file.HasField("base_id") and not _is_checked(one, checked_files)
    ]
    for one in unknown if checked_files.is_final else ():
        described, error = checked_files.faults.get(_deletion_key(one), (None, None))
        if error is not None and described == _described(one):
            raise error
    for some in _batches(unknown):
        small = await small_bodies(places.store, [_deletion_key(one) for one in some])
        for one in some:
            await _check_deletions(places, one, checked_files, allowance, small=small)
    await for_each(in_bases, lambda one: _read_in_base(places, one, allowance))


def _batches(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), BODIES_AT_ONCE):
        yield items[start : start + BODIES_AT_ONCE]


def _deletion_key(fragment: DataFragment) -> str:
    return deletion_key(fragment.id, fragment.deletion_file, staged=True)


async def require_files(
    places: Places,
    transaction: Transaction,
    files: StagedFiles,
    *,
    current: Manifest | None,
    written: Container[str],
    checked_files: CheckedFiles,
    limits: FileLimits,
    do: Do,
) -> None:
    """Return if the staged `files` exist, have the sizes that the transaction gives, and delete as many rows.

    `current`: an excerpt of the latest version, whose files are taken to exist. `written`: keys that are written before
    the version. Files that `checked_files` has are not checked again; those found now are added to it. Files in a base
    path are checked as far as `places` can read it. `do`: runs what may take long for very many files.

    Raises `InvalidRequest` (`too_many_files`, `missing_file`, `file_size`, `physical_rows_too_many`, `deletion_file`,
    `named_bytes`, `file_unreadable`), and `StoreUnavailable`.
    """

    def to_find() -> tuple[list[Named], list[str], list[Named]]:
        """(the files in the table's folder, the keys of those that are not known, the files in base paths)"""
        named = [one for one in named_files(transaction, files, current) if one.key not in written]
        _require_few(named, limits)
        own = [one for one in named if one.base_id is None]
        unknown = [one.key for one in own if not _fits(one, checked_files.sizes.get(one.key))]
        if checked_files.is_final:
            if gone := [key for key in unknown if key in checked_files.missing]:
                raise missing_file(gone)
            unknown = [key for key in unknown if key not in checked_files.sizes]
        # Those that were missing first: if they still are, no other one is looked for.
        unknown.sort(key=lambda key: key not in checked_files.missing)
        return own, unknown, [one for one in named if one.base_id is not None] if len(own) < len(named) else []

    own, unknown, in_bases = await do(to_find)
    if in_bases:
        await _require_in_bases(places, in_bases)
    sizes = await _sizes(places.store, unknown)
    if gone := [key for key in unknown if sizes.get(key, 0) is None]:
        raise missing_file(gone)
    checked_files.sizes.update((key, size) for key, size in sizes.items() if size is not None)

    def to_read() -> tuple[list[str], list[DataFragment]]:
        """(the data files whose facts are not known, the fragments with deletion files to read)"""
        _require_sizes(own, checked_files.sizes)
        deletions = [
            one
            for one in staged_deletions(files, current)
            if deletion_key(one.id, one.deletion_file, staged=True) not in written
        ]
        unknown = [one.key for one in own if one.key.startswith(DATA) and one.key not in checked_files.facts]
        return unknown, deletions

    await _require_folders(places.store, [index_prefix(uuid) for uuid in unlisted_indices(transaction)])
    unread, deletions = await do(to_read)
    checked_files.facts.update(await _facts_of(places.store, unread))
    await do(partial(_require_as_described, transaction, files, current, checked_files))
    await _check_deletions_of_one(places, deletions, checked_files, limits)


async def _require_folders(store: ObjectStore, prefixes: Sequence[str]) -> None:
    """Return if each of these folders has a file. Raises `InvalidRequest` (`missing_file`)."""
    empty = list[str]()

    async def look(prefix: str) -> None:
        if not await store.list(prefix, limit=1):
            empty.append(prefix)

    await for_each(prefixes, look)
    if empty:
        raise missing_file(sorted(empty))


def _require_as_described(
    transaction: Transaction, files: StagedFiles, current: Manifest | None, checked_files: CheckedFiles
) -> None:
    known = {file.path: checked_files.facts.get(data_key(file.path)) for file in files.data_files}
    facts_by_path = {path: found for path, found in known.items() if found is not None}
    if facts_by_path:
        require_files_as_described(transaction, files, current, facts_by_path)


def _require_few(named: Sequence[Named], limits: FileLimits) -> None:
    if len(named) > limits.files:
        raise InvalidRequest(
            f"the transaction brings {len(named)} files, but at most {limits.files} are allowed (setting "
            "commit.transaction_files_max): commit in smaller parts",
            code="too_many_files",
        )


def _fits(one: Named, size: int | None) -> bool:
    return size is not None and one.size in (0, size)


def _require_sizes(named: Sequence[Named], sizes: Mapping[str, int]) -> None:
    """Raise `InvalidRequest` for files that are missing in `sizes` (`missing_file`) or differ in size (`file_size`)."""
    if all(_fits(one, sizes.get(one.key)) for one in named):
        return
    if missing := [one.key for one in named if one.key not in sizes]:
        raise missing_file(missing)
    wrong = [one for one in named if not _fits(one, sizes[one.key])]
    listed = ", ".join(
        f"{one.key[:_NAME_CHARS_MAX]} has {sizes[one.key]} bytes, not {one.size}" for one in wrong[:_NAMED_MAX]
    )
    more = f", and {len(wrong) - _NAMED_MAX} more" if len(wrong) > _NAMED_MAX else ""
    raise InvalidRequest(
        f"files of the transaction have other sizes than it says: {listed}{more}. Were they still being "
        "written, or replaced? Write new files, and stage a new transaction",
        code="file_size",
    )


async def _require_in_bases(places: Places, named: Sequence[Named]) -> None:
    """As `_require_sizes`, for files in base paths. For an unreadable file the transaction's own size is trusted."""
    sizes: dict[tuple[str, int | None], int | None] = {}
    missing = list[str]()

    async def look(one: Named) -> None:
        if len(missing) >= _MISSING_MAX:
            return
        try:
            store, key = places.locate(one.key, one.base_id)
            sizes[one.key, one.base_id] = size = await store.head(key)
        except (InvalidRequest, StoreUnavailable):
            sizes[one.key, one.base_id] = size = one.size
        if size is None:
            missing.append(one.key)

    await for_each(named, look)
    if missing:
        raise missing_file(missing)
    for base_id in dict.fromkeys(one.base_id for one in named):
        there = {key: size for (key, base), size in sizes.items() if base == base_id and size is not None}
        _require_sizes([one for one in named if one.base_id == base_id], there)


class Allowance:
    """Bytes of deletion files that may still be read for one transaction."""

    def __init__(self, limits: FileLimits) -> None:
        self._all = self.left = limits.bytes

    def spend(self, body: bytes, key: str) -> None:
        """Deduct the size of `body`. Raises `InvalidRequest` (`named_bytes`) when it exceeds the rest."""
        self.left -= len(body)
        if self.left < 0:
            raise InvalidRequest(
                f"the deletion files that the transaction names have more than the {self._all} bytes that are allowed "
                f"(setting commit.named_bytes_max), with {key[:_NAME_CHARS_MAX]}: commit in smaller parts",
                code="named_bytes",
            )


async def small_bodies(store: ObjectStore, keys: Sequence[str]) -> dict[str, bytes | None]:
    """Read these objects as far as they are readable and below `_SMALL_BODY_BYTES`; None for a missing one."""
    distinct = list(dict.fromkeys(keys))
    tails = zip(distinct, await store.get_tails(distinct, size=_SMALL_BODY_BYTES), strict=True)
    return {
        key: None if tail is None else tail.body
        for key, tail in tails
        if tail is None or (isinstance(tail, Tail) and tail.size < _SMALL_BODY_BYTES)
    }


async def _check_deletions(
    places: Places,
    fragment: DataFragment,
    checked_files: CheckedFiles,
    allowance: Allowance,
    *,
    small: Mapping[str, bytes | None] = MappingProxyType({}),
) -> None:
    """Read a staged deletion file, unless `checked_files` has it for the same description of the fragment.

    `small`: the bodies of deletion files in the table's folder that were just read, by key; None = it is missing.
    """
    if _is_checked(fragment, checked_files):
        return
    key = _deletion_key(fragment)
    body = small.get(key)
    if body is None and key in small:
        raise missing_file([key])
    if body is not None:
        rows = _decoded(places, fragment, body, store=places.store, key=key, staged=True, allowance=allowance)
    else:
        rows = await read_deletions(places, fragment, staged=True, allowance=allowance, again=True)
    checked_files.deletions[key] = _described(fragment), len(rows)


def _is_checked(fragment: DataFragment, checked_files: CheckedFiles) -> bool:
    """Whether its deletion file was read for the same description of the fragment."""
    known = checked_files.deletions.get(_deletion_key(fragment))
    return known is not None and known[0] == _described(fragment)


def _described(fragment: DataFragment) -> DataFragment:
    return DataFragment(physical_rows=fragment.physical_rows, deletion_file=fragment.deletion_file)


async def _read_in_base(places: Places, fragment: DataFragment, allowance: Allowance) -> None:
    try:
        await read_deletions(places, fragment, staged=True, allowance=allowance, again=True)
    except StoreUnavailable:
        return
    except InvalidRequest as error:
        if error.code not in ("base_unreadable", "file_unreadable"):
            raise


async def with_known_sizes(
    places: Places, transaction: Transaction, files: StagedFiles, checked_files: CheckedFiles, *, limits: FileLimits
) -> Transaction:
    """Fill in the sizes of data files and the numbers of deleted rows that the writer left out.

    Returns the same object when nothing is missing. Lance fills them in too (`migrate_manifest`). Facts that
    `checked_files` has are not read again.

    Raises `InvalidRequest` (`missing_file`, `deletion_file`, `named_bytes`, `file_unreadable`).
    """
    sizeless = [
        data_key(file.path) for file in files.data_files if not file.file_size_bytes and not file.HasField("base_id")
    ]
    uncounted = [fragment for fragment in files.fragments if _is_uncounted(fragment)]
    if not sizeless and not uncounted:
        return transaction
    filled = Transaction()
    filled.CopyFrom(transaction)
    sizes = checked_files.sizes | await _sizes(
        places.store, [key for key in sizeless if key not in checked_files.sizes]
    )
    if missing := [key for key in sizeless if sizes.get(key, 0) is None]:
        raise missing_file(missing)
    files, allowance = staged_files(filled), Allowance(limits)
    for file in files.data_files:
        if not file.HasField("base_id"):
            file.file_size_bytes = file.file_size_bytes or sizes[data_key(file.path)] or 0
    for fragment in files.fragments:
        if _is_uncounted(fragment):
            key = deletion_key(fragment.id, fragment.deletion_file, staged=True)
            known = checked_files.deletions.get(key)
            rows = known[1] if known else len(await read_deletions(places, fragment, staged=True, allowance=allowance))
            fragment.deletion_file.num_deleted_rows = rows
            if not rows:
                # A count of 0 means "unknown", so a deletion file without rows can't be represented.
                fragment.ClearField("deletion_file")
    return filled


async def with_schema_metadata(places: Places, transaction: Transaction) -> Transaction:
    """Fill in the schema metadata of an Overwrite from its first data file.

    pylance commits the schema metadata but leaves it out of the transaction; every data file that it writes has it.
    Returns the same object when the transaction has the metadata already, when it adds no files, or when the file has
    none. Raises `InvalidRequest` (`text_invalid`, `file_unreadable`).
    """
    overwrite = transaction.overwrite
    file = next((file for fragment in overwrite.fragments for file in fragment.files), None)
    if overwrite.schema_metadata or file is None:
        return transaction
    try:
        descriptor = await described(places, file)
    except (InvalidRequest, StoreUnavailable):
        if not file.HasField("base_id"):
            raise
        return transaction  # the file is in a base path that this process can't read
    if descriptor is None or not descriptor.schema.metadata:
        return transaction
    require_schema_metadata(descriptor.schema.metadata)
    filled = Transaction()
    filled.CopyFrom(transaction)
    for name, value in descriptor.schema.metadata.items():
        filled.overwrite.schema_metadata[name] = value
    return filled


async def described(places: Places, file: DataFile) -> FileDescriptor | None:
    """Read what a data file says of itself (row count and schema); None when it is missing or says nothing.

    Raises `InvalidRequest` (`file_unreadable`), and `StoreUnavailable`.
    """
    return await _descriptor(*places.locate(data_key(file.path), file.base_id if file.HasField("base_id") else None))


async def _descriptor(store: ObjectStore, key: str) -> FileDescriptor | None:
    """Read the descriptor (row count and schema) of a data file; None when the file is missing or has none."""
    tail = await read_named(store, key, lambda: store.get_tail(key, TAIL_BYTES))
    if tail is None:
        return None

    async def read(extent: ByteRange) -> bytes:
        before = tail.size - len(tail.body)
        if extent.start >= before:
            return tail.body[extent.start - before : extent.end - before]
        return await read_named(store, key, lambda: store.get_range(key, extent.start, extent.end)) or b""

    table = buffer_table(tail.body, tail.size)
    place = first_buffer(await read(table), tail.size) if table is not None else None
    return await _decoded_descriptor(await read(place)) if place is not None else None


async def _decoded_descriptor(body: bytes) -> FileDescriptor | None:
    """As `decode_descriptor`; a large one takes up to 3 s, in a thread."""
    if len(body) > LIGHT_BYTES_MAX:
        return await to_thread.run_sync(decode_descriptor, body)
    return decode_descriptor(body) if body else None


async def read_deletions(
    places: Places,
    fragment: DataFragment,
    *,
    staged: bool,
    allowance: Allowance | None = None,
    again: bool = False,
) -> BitMap:
    """Return the deleted row offsets of a fragment, which no caller changes; empty when it has no deletion file.

    `again`: read the file even if its content is known, because that does not show that it is still there.

    For a damaged file, raises `InvalidRequest` (when `staged`) or `CorruptTable`, each with code `deletion_file`.
    When the file is missing, raises `InvalidRequest` with code `missing_file` (when `staged`), or else
    `OutdatedRequest`: a cleanup removes the deletion files that only old versions have. Raises `InvalidRequest` with
    code `named_bytes` when it is larger than the `allowance`.
    """
    if not fragment.HasField("deletion_file"):
        return BitMap()
    file = fragment.deletion_file
    base_id = file.base_id if file.HasField("base_id") else None
    store, key = places.locate(deletion_key(fragment.id, file, staged=staged), base_id)
    if base_id is None and key in places.unwritten:
        return places.unwritten[key]
    known = None if again else places.deletion_vectors.get(store.uri, key, fragment)
    if known is not None:
        return known
    most = None if allowance is None else allowance.left + 1
    body = await read_named(store, key, lambda: store.get(key) if most is None else store.get_range(key, 0, most))
    if body is None and staged:
        raise missing_file([key])
    if body is None:
        raise _cleaned_up(
            f"{key}, which has the rows of fragment {fragment.id} that were deleted in an earlier version"
        )
    return _decoded(places, fragment, body, store=store, key=key, staged=staged, allowance=allowance)


def _cleaned_up(file: str) -> OutdatedRequest:
    """The error for a file that only old versions have and that is missing."""
    return OutdatedRequest(f"{file}, is gone: a cleanup has removed it. Read the latest version and do the work again")


def _decoded(
    places: Places,
    fragment: DataFragment,
    body: bytes,
    *,
    store: ObjectStore,
    key: str,
    staged: bool,
    allowance: Allowance | None,
) -> BitMap:
    """The rows that the deletion file of a fragment holds; keeps them. Raises as `read_deletions`."""
    if allowance is not None:
        allowance.spend(body, key)
    rows = decode_deletions(body, fragment, staged=staged)
    places.deletion_vectors.keep(store.uri, key, rows)
    return rows


async def read_merge(
    merge: DeletionMerge, *, staged: Places, read: Places, latest: Places, allowance: Allowance
) -> Deletions:
    """Read the deleted rows of a fragment at its read version, as staged, and at the latest version.

    `allowance`: for the staged deletion file.
    """
    return Deletions(
        read=await read_deletions(read, merge.read, staged=False),
        ours=await read_deletions(staged, merge.ours, staged=True, allowance=allowance),
        latest=await read_deletions(latest, merge.latest, staged=False),
    )


async def read_wanted(places: Places, wanted: Sequence[DeletionRead], *, allowance: Allowance) -> list[BitMap]:
    """Read the deleted rows of each of these fragments, several at the same time.

    `allowance`: for the staged deletion files. Raises as `read_deletions`.
    """
    found: dict[int, BitMap] = {}

    async def read(place: int) -> None:
        fragment, is_staged = wanted[place]
        found[place] = await read_deletions(
            places, fragment, staged=is_staged, allowance=allowance if is_staged else None
        )

    await for_each(range(len(wanted)), read)
    return [found[place] for place in range(len(wanted))]


async def read_reuse(
    store: ObjectStore,
    indices: Iterable[IndexMetadata],
    *,
    kept: KeptReuse | None = None,
    written: Mapping[str, bytes] = MappingProxyType({}),
    is_old: bool = False,
) -> Content | None:
    """Read the content of the fragment reuse index; None when `indices` has no such index.

    `kept`: has what was read before, and gets what is read now; None for the index of a record, whose file must be
    there. `written`: bodies of files that are written before the version, by key.

    When its file is missing, raises `InvalidRequest` (`missing_file`), or `OutdatedRequest` for the indices of an old
    version (`is_old`).
    """
    index = next((index for index in indices if index.name == FRAGMENT_REUSE_INDEX), None)
    if index is None:
        return None
    known = kept.get(index) if kept is not None else None
    if known is not None:
        return known
    content = reuse_content(index)
    if isinstance(content, ExternalContent):
        content = await _external_content(store, content, written=written, is_old=is_old)
    if kept is not None:
        kept.keep(index, content)
    return content


async def _external_content(
    store: ObjectStore, place: ExternalContent, *, written: Mapping[str, bytes], is_old: bool
) -> Content:
    key, start, end = place
    if key in written:
        return decode_content(written[key][start:end], end - start)
    body = await read_named(store, key, lambda: store.get_range(key, start, end))
    if body is None and is_old:
        raise _cleaned_up(f"{key}, which is a part of an index of an earlier version")
    if body is None:
        raise missing_file([key])
    return decode_content(body, end - start)


@dataclass(frozen=True, slots=True)
class Copy:
    """One object that a deep Clone copies: from `source` in `store` to `target` in the new table."""

    store: ObjectStore
    source: str
    target: str


async def copies_of(source: ManifestFile, places: Places) -> list[Copy]:
    """List all objects that a deep Clone of a version copies: data files, deletion files, index files."""
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


def _is_uncounted(fragment: DataFragment) -> bool:
    return fragment.HasField("deletion_file") and not fragment.deletion_file.num_deleted_rows


_End = Tail | ObjectUnreadable | InvalidRequest | None
"""The end of an object; an error about it; None = it is missing."""


async def _ends(store: ObjectStore, each: Sequence[Sequence[str]], *, size: int) -> AsyncIterator[tuple[str, _End]]:
    """Read at most the last `size` bytes of each object, many at once; yields the key and the end of each.

    `each`: the keys of each transaction. Of a transaction of which `_MISSING_MAX` are missing, the others are not
    looked for, and are left out.
    """
    named = [(number, key) for number, keys in enumerate(each) for key in dict.fromkeys(keys)]
    missing = Counter[int]()
    for start in range(0, len(named), _ENDS_AT_ONCE):
        some = [(number, key) for number, key in named[start : start + _ENDS_AT_ONCE] if missing[number] < _MISSING_MAX]
        keys = list(dict.fromkeys(key for _, key in some))
        ends = dict(zip(keys, await store.get_tails(keys, size=size), strict=True))
        missing.update(number for number, key in some if ends[key] is None)
        for one in ends.items():
            yield one


async def _sizes(store: ObjectStore, keys: Sequence[str]) -> dict[str, int | None]:
    """Return the size in bytes of each object, None for a missing one. Raises as `read_named`.

    Once `_MISSING_MAX` are missing, the others are not looked for, and are left out.
    """
    sizes: dict[str, int | None] = {}
    async for key, end in _ends(store, [keys], size=1):
        if isinstance(end, Tail | None):
            sizes[key] = None if end is None else end.size
        else:
            sizes[key] = await read_named(store, key, partial(store.head, key))
    return sizes


async def _sizes_and_facts(
    store: ObjectStore, each: Sequence[Sequence[str]]
) -> tuple[dict[str, int | None], dict[str, FileFacts | None]]:
    """The size of each readable object in bytes, None for a missing one; and what each data file says of itself.

    One request for an object, and another one for a very wide data file. `each`: as in `_ends`.
    """
    reading = _Reading(store)
    sizes: dict[str, int | None] = {}

    async def look(in_data: bool) -> None:
        keys = [[key for key in keys if key.startswith(DATA) is in_data] for keys in each]
        async for key, end in _ends(store, keys, size=_FOOTER_BYTES if in_data else 1):
            if isinstance(end, Tail | None):
                sizes[key] = None if end is None else end.size
                if in_data:
                    reading.take(key, end)

    await for_each([True, False], look)
    await reading.finish()
    return sizes, reading.found


async def _facts_of(store: ObjectStore, keys: Sequence[str]) -> dict[str, FileFacts | None]:
    """What these data files say of themselves, without those that are missing. Raises as `read_named`."""
    reading = _Reading(store)
    async for key, end in _ends(store, [keys], size=_FOOTER_BYTES):
        if not isinstance(end, Tail | None):
            end = await read_named(store, key, partial(store.get_tail, key, _FOOTER_BYTES))
        reading.take(key, end)
    await reading.finish()
    return reading.found


class _Reading:
    """What data files say of themselves, from their ends. No end is kept: there may be 100,000 files."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._beyond: dict[str, tuple[ByteRange, Tail]] = {}
        """By key: the place of a descriptor that is not in the file's end, and the footer."""
        self._schemas: dict[bytes, bytes] = {}
        """The schemas so far, each once: most files of a table have the same."""
        self._schema_bytes = 0
        self.found: dict[str, FileFacts | None] = {}

    def take(self, key: str, tail: Tail | None) -> None:
        """Take what the end of a file says; None = there is no file."""
        if tail is None:
            return
        place = _descriptor_place(tail)
        start = tail.size - len(tail.body)
        if place is not None and place.start < start:
            self._beyond[key] = place, Tail(body=tail.body[-FOOTER_BYTES:], size=tail.size)
        else:
            body = b"" if place is None else tail.body[place.start - start : place.end - start]
            self._note(key, tail, decode_descriptor(body) if body else None)

    async def finish(self) -> None:
        """Read the descriptors that are not in the ends."""

        async def read(key: str) -> None:
            place, footer = self._beyond[key]
            with suppress(ObjectUnreadable, InvalidRequest):
                body = await self._store.get_range(key, place.start, place.end) or b""
                self._note(key, footer, await _decoded_descriptor(body))

        await for_each(self._beyond, read, at_once=_DESCRIPTORS_AT_ONCE)

    def _note(self, key: str, tail: Tail, descriptor: FileDescriptor | None) -> None:
        said = None if descriptor is None else facts(tail.body, descriptor)
        self.found[key] = None if said is None else said._replace(fields=self._once(said.fields))

    def _once(self, schema: bytes) -> bytes:
        """The same schema as before, if there was one; empty if the schemas would take too much memory."""
        known = self._schemas.get(schema)
        if known is None and self._schema_bytes + len(schema) <= _SCHEMA_BYTES_MAX:
            known = self._schemas[schema] = schema
            self._schema_bytes += len(schema)
        return known or b""


def _descriptor_place(tail: Tail) -> ByteRange | None:
    table = buffer_table(tail.body, tail.size)
    start = tail.size - len(tail.body)
    if table is None or table.start < start:
        return None
    return first_buffer(tail.body[table.start - start : table.end - start], tail.size)
