"""Prepares the version that one transaction makes of a table: judge, rebase, build.

A transaction that `judge` accepts is built alone or together with others. `build_version` produces every byte of the
next version, and `committerd.table.writing` writes them to the store. Both are decisions that ask for what they need
(`table.needs`); `prepare` runs them.
Neither checks whether the transaction was committed before: `queue.dedupe` does, and `Table.seen` where there is no
queue.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from committerd.errors import CorruptTable, InvalidRequest, RequestError
from committerd.lance.format.manifest_file import Body, ManifestFile, assemble
from committerd.lance.format.support import DATA_FORMATS
from committerd.lance.transactions.build import build as next_version
from committerd.lance.transactions.succession import require_next
from committerd.lance.transactions.transaction import reserved_range
from committerd.lance.versions.draft import BuildInput, CreateOptions
from committerd.lance.versions.invariants import OF_CONTENT, require_sound
from committerd.lance.versions.next_version import NextVersion
from committerd.queue.dedupe import Refused
from committerd.table.by_pylance import built_by_pylance
from committerd.table.case import PrepareOptions, Sources
from committerd.table.fetching import BuildWithPylance, Fetcher, OpenStore, run
from committerd.table.heavy_work import HeavyWork, at_once, heavy_size
from committerd.table.judge import Judged, judge, require_buildable, require_buildable_by_any
from committerd.table.needs import NOTHING_KNOWN, InThread, Reuse, StagedFacts, Steps
from committerd.table.refusals import refused_by
from committerd.table.versions import Committed, History, Table, committed_by
from committerd_common.messages import IndexMetadata, IndexSection, Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key, transaction_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A complete version: every byte of it, and the keys to write them under."""

    file: ManifestFile
    key: str
    body: Body
    scheme: NamingScheme
    judged: Judged
    """With all that is written before the manifest."""
    reserved: tuple[int, int]
    """First fragment id and count that a ReserveFragments gets; (0, 0) for other operations."""
    committed: Committed
    """The facts that the rules need about it once it is committed."""
    before: Manifest | None
    """The version below it, without fragments; None = this version creates the table."""

    @property
    def version(self) -> int:
        return self.file.version

    @property
    def transaction(self) -> Transaction:
        assert self.file.transaction is not None
        return self.file.transaction


_AS_USUAL = CreateOptions()


def create_options(wish: Mapping[str, Any]) -> CreateOptions:
    """Parse the JSON object of the header `create-options`. Raises `InvalidRequest` (`create_options`)."""
    if not wish:
        return _AS_USUAL
    known = {
        "enable_stable_row_ids": bool,
        "enable_v2_manifest_paths": bool,
        "data_storage_version": str,
    }
    for name, value in wish.items():
        if name not in known or not isinstance(value, known[name]):
            listed = ", ".join(f"{one} ({kind.__name__})" for one, kind in known.items())
            raise InvalidRequest(f"create option {name!r}: {value!r} is not one of {listed}", code="create_options")
    options = CreateOptions(**wish)
    if options.data_storage_version not in (None, *DATA_FORMATS):
        raise InvalidRequest(
            f"data_storage_version {options.data_storage_version!r} is not one of {', '.join(DATA_FORMATS)}",
            code="create_options",
        )
    return options


async def prepare(
    table: Table,
    latest: ManifestFile | None,
    transaction: Transaction,
    *,
    facts: StagedFacts = NOTHING_KNOWN,
    options: PrepareOptions,
    sources: Sources,
    open_store: OpenStore | None = None,
    pylance: BuildWithPylance | None = None,
    work: HeavyWork = at_once,
) -> Prepared | Refused:
    """Judge one transaction against `latest` (None = there is no table), and build the version that follows.

    `facts`: what is known of the files of the transaction. `open_store`, `pylance`: as for `Fetcher`. `work`: runs
    what may take long. Raises `UnsupportedTable` or `CorruptTable` when no version may be built on `latest`, and
    `StoreUnavailable`.
    """

    def steps() -> Steps[Prepared | Refused]:
        yield from require_buildable_by_any(latest, scheme=table.scheme, sources=sources)
        judged = yield from judge(History(table), latest, transaction, facts=facts, options=options, sources=sources)
        if isinstance(judged, Refused):
            return judged
        try:
            return (yield from build_version(latest, judged, scheme=table.scheme, sources=sources))
        except RequestError as error:
            return refused_by(error, judged.found)

    return await run(steps(), Fetcher(table, open_store, pylance), work=work)


async def build(
    table: Table,
    latest: ManifestFile | None,
    judged: Judged,
    *,
    sources: Sources,
    table_metadata: Mapping[str, str] | None = None,
    holds_records: bool = True,
) -> Prepared:
    """As `build_version`, with facts from the table's own store. Raises `StoreUnavailable` too."""
    steps = build_version(
        latest,
        judged,
        scheme=table.scheme,
        sources=sources,
        table_metadata=table_metadata,
        holds_records=holds_records,
    )
    return await run(steps, Fetcher(table))


def build_version(
    latest: ManifestFile | None,
    judged: Judged,
    *,
    scheme: NamingScheme | None,
    sources: Sources,
    table_metadata: Mapping[str, str] | None = None,
    holds_records: bool = True,
) -> Steps[Prepared]:
    """Build the version that follows `latest`.

    `scheme`: how the table names its manifests; None = there is no table. `table_metadata`: entries that replace all
    table metadata whose keys begin with `committerd.`; None or empty keeps it. `holds_records`: the version commits
    staged transactions, so another version must be able to follow it.

    Raises `InvalidRequest` when the transaction can't be built on `latest`, and `CorruptTable` when `latest` is damaged
    or the result would break an invariant.
    """
    transaction = judged.transaction
    given = BuildInput(
        now=sources.wall_clock(),
        ahead_max=sources.ahead_max,
        transaction_file=transaction_name(transaction.read_version, transaction.uuid),
        index_uuid=sources.new_uuid().bytes,
        create=judged.create,
        restored=judged.restored,
        source=judged.source,
        reuse=(yield Reuse(latest.indices)) if latest is not None else None,
        moves=judged.moves,
        table_metadata=table_metadata or {},
    )
    knowledge = sources.knowledge
    if latest is not None and (judged.by_pylance or (knowledge is not None and not knowledge.covers(latest))):
        file, body = yield from built_by_pylance(latest, transaction, given, scheme=scheme, options=judged.by_pylance)
        judged = replace(judged, by_pylance=judged.by_pylance or PrepareOptions())
        return prepared(latest, file, body, scheme=scheme or NamingScheme.V2, judged=judged)
    size = heavy_size(transaction, latest)
    if size:
        yield InThread(size)
    built = _sound(latest, transaction, given)
    if latest is None or scheme is None:
        v2 = judged.create.enable_v2_manifest_paths
        scheme = NamingScheme.V2 if v2 else NamingScheme.V1
    outline, own = built.packed
    fragments = built.kept.with_added(own)
    section = _index_section(latest, built.indices)
    file = ManifestFile(
        outline=outline,
        fragments=fragments,
        index_section=section,
        transaction=transaction,
        transaction_bytes=transaction.SerializeToString(deterministic=True),
    )
    if holds_records:
        reuse = given.reuse
        if latest is None or section is not latest.index_section:
            reuse = yield Reuse(file.indices, written=judged.files)
            if size:
                yield InThread(size)
        require_next(latest, file, built, given, reuse=reuse)
    return prepared(latest, file, assemble(outline, fragments, section, transaction), scheme=scheme, judged=judged)


def prepared(
    latest: ManifestFile | None, file: ManifestFile, body: Body, *, scheme: NamingScheme, judged: Judged
) -> Prepared:
    """The complete version that `judged.transaction` makes of `latest`. `body`: `file`, encoded."""
    before, transaction = latest.outline if latest is not None else None, judged.transaction
    return Prepared(
        file=file,
        key=manifest_key(file.version, scheme),
        body=body,
        scheme=scheme,
        judged=judged,
        reserved=reserved_range(before, transaction),
        committed=committed_by(transaction, file, before=before),
        before=before,
    )


def _sound(latest: ManifestFile | None, transaction: Transaction, given: BuildInput) -> NextVersion:
    """Build the next version and check its invariants.

    When the content breaks an invariant, raises `CorruptTable` if `latest` is damaged already, else `InvalidRequest`.
    """
    built = next_version(latest, transaction, given)
    try:
        require_sound(latest, built)
    except CorruptTable as error:
        if error.code not in OF_CONTENT:
            raise
        require_buildable(latest)  # raises when the table is damaged already
        raise InvalidRequest(f"the transaction can't be committed: {error}", code=error.code) from error
    return built


def _index_section(latest: ManifestFile | None, indices: Sequence[IndexMetadata]) -> IndexSection:
    """Wrap the indices in one message; reuse the latest version's message when they are the same objects."""
    known = latest.indices if latest is not None else ()
    if latest is not None and len(indices) == len(known) and all(map(operator.is_, indices, known)):
        return latest.index_section
    return IndexSection(indices=indices)
