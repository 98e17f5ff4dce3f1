"""The case of one transaction: all that its judgement knows of it from the start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from pyroaring import BitMap

from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.operation import Operation, StagedFiles
from committerd.lance.operations.permissions import Permissions
from committerd.lance.versions.bases import is_allowed_base
from committerd.lance.versions.draft import CreateOptions
from committerd.table.knowledge import Knowledge
from committerd.table.needs import InThread, StagedFacts, Steps
from committerd.table.row_groups import DeletionFiles
from committerd.table.staged_files import FileLimits
from committerd.table.versions import History
from committerd_common.messages import BasePath, Manifest, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What the request and the operator's settings ask for or allow, besides the transaction itself."""

    allowed: Permissions = field(default_factory=Permissions)
    verify_files: bool = False
    """Check that the staged files exist."""
    file_limits: FileLimits = field(default_factory=FileLimits)
    rules_out_duplicate: bool = False
    """Something other than the history proves that the transaction was not committed before."""
    create: CreateOptions = field(default_factory=CreateOptions)
    create_only: bool = False
    compares_types: bool = False
    """Whether an Append at read version 0 is compared with the table by the types in its data files too."""
    copy_clone: bool = False
    """Whether a deep Clone copies the files; if not, they must exist."""
    trusts_rewrites: bool = False
    """Whether the Rewrites of all writers count as in order."""
    tells_rows_and_keys: bool = False
    """Whether the refusal of a Delete or Update says which rows and keys it has (`Refused.rows_and_keys`)."""
    lists_checked: bool = True
    """Whether the result lists each version that the transaction was compared with (`Comparison.checked`)."""
    as_member: bool = False
    """Whether a Delete or Update that only deletes and adds rows is judged as a member of a version of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of time, random numbers and ids."""

    wall_clock: Callable[[], datetime]
    random: random.Random
    new_uuid: Callable[[], UUID]
    ahead_max: timedelta | None = None
    """How far a version's timestamp may run ahead of the clock to exceed that of the version below; None = any."""

    knowledge: Knowledge | None = None
    """What committerd knows, if pylance builds versions where that ends; None = there, committerd refuses."""

    def file_ids(self) -> Iterator[int]:
        """Random 64-bit numbers for the names of new deletion files."""
        return iter(lambda: self.random.getrandbits(64), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A transaction, the version it is judged on, and what is known of its files."""

    history: History
    latest: ManifestFile | None
    transaction: Transaction
    """Normalised."""
    files: StagedFiles
    operation: Operation
    schema: TableSchema
    """Of the latest version; without fields if there is no table."""
    facts: StagedFacts
    options: PrepareOptions
    sources: Sources
    size: int
    """Size of the transaction in bytes if work on it may take long, else 0."""

    def in_thread(self) -> Steps[None]:
        """Let the next step, up to the next need, run in a thread if it may take long."""
        if self.size:
            yield InThread(self.size)

    def excerpt(self, file: ManifestFile) -> Manifest:
        """The part of a version that is needed to judge the transaction."""
        return self.operation.excerpt(self.transaction, file)

    @property
    def latest_bases(self) -> Sequence[BasePath]:
        """The base paths of the latest version."""
        return self.latest.outline.base_paths if self.latest is not None else ()

    def deletion_files(
        self, read: ManifestFile | None, written: Mapping[str, BitMap] = MappingProxyType({})
    ) -> DeletionFiles:
        """Where the deletion files lie of the latest version, of staged fragments, and of the version `read`.

        `written`: the content of deletion files that a rebase has made, by key.
        """
        return DeletionFiles(
            latest=self.latest_bases,
            read=read.outline.base_paths if read is not None else (),
            unwritten={**self.history.unwritten, **written} if written else self.history.unwritten,
            staged_bytes_max=self.options.file_limits.bytes,
        )

    def all_bases(self) -> Sequence[BasePath]:
        """The base paths of the next version."""
        return [*self.latest_bases, *self.operation.initial_bases(self.transaction)]

    def readable_bases(self) -> Sequence[BasePath]:
        """The base paths of the next version in which the operator's settings allow to check files."""
        return [base for base in self.all_bases() if is_allowed_base(base.path, self.options.allowed.bases)]
