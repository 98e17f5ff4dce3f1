"""The one version of main that has all that happened on a branch: judged, rebased and built.

What the branch did to rows that main has is one transaction, which the conflict rules judge and rebase as any other
(`surrogate`): it reads the version at which the branch began. The version is then built from its result, from the new
fragments, the schema and the configuration of the branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from committerd.branches.changes import (
    Changes,
    FileKey,
    Frame,
    RowIdsOfMain,
    change_map,
    file_key,
    same_rows,
    same_schema,
    versions_of_main,
)
from committerd.branches.grid import ADVICE
from committerd.branches.refusal import PromotionConflict, PromotionRefused
from committerd.lance.format.fragment_list import FragmentList
from committerd.lance.format.manifest_file import ManifestFile, assemble
from committerd.lance.format.support import has_stable_row_ids
from committerd.lance.operations.changed_fragments import put_in_place
from committerd.lance.rows.deletions import deletion_file
from committerd.lance.transactions.succession import require_next
from committerd.lance.versions.draft import BuildInput, finish, next_draft
from committerd.lance.versions.fragments import fields_in_other_files, next_fragment_id
from committerd.lance.versions.indices import without_updated_fields
from committerd.lance.versions.invariants import require_sound
from committerd.lance.versions.mem_wal import follow_indices
from committerd.lance.versions.next_version import NextVersion
from committerd.table.case import Sources
from committerd.table.judge import Judged
from committerd.table.needs import DeletionFile, FoundDeletions, Reuse, Rows, StagedFacts, Steps, described_part
from committerd.table.places import Location, deletion_file_location
from committerd.table.prepare import Prepared, prepared
from committerd_common.messages import BasePath, DataFragment, IndexSection, Manifest, Transaction
from committerd_common.paths import NamingScheme, deletion_key, transaction_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What is to be brought to main."""

    uuid: str
    properties: Mapping[str, str]
    """What the transaction says of the branch, for people."""
    start: int
    """The version at which the branch began."""
    base: ManifestFile
    """The version of main that the changes are relative to: the one at which the branch began, or the last
    promotion.
    """
    before: ManifestFile
    """The version of the branch that is the same as `base` but for what main had committed until then."""
    after: ManifestFile
    """The version of the branch that is brought to main."""
    changes: Changes
    frame: Frame
    added_base: BasePath | None
    """The branch's folder as a base path, if main does not have it."""
    first_row_id: int
    """The row ids that main had given out when the branch began are below it."""
    inserted_rows: Transaction.KeyExistenceFilter | None = None
    """The keys that the branch inserted, if its transactions say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnMain:
    """The changes of the branch to fragments that main has, and the rows of its new ones."""

    matches: Mapping[int, DataFragment]
    """The fragment of `base`, by the id on the branch, of each fragment that the branch changed or removed."""
    surrogate: Transaction | None
    """The changes as a transaction that has read `base`; None = no fragment has changed."""
    unwritten: Mapping[str, BitMap] = field(default_factory=dict)
    """The content of its deletion files, by key."""
    bodies: Mapping[str, bytes] = field(default_factory=dict)
    added_rows: Mapping[int, BitMap] = field(default_factory=dict)
    """The deleted rows of new fragments, by their id on the branch."""

    def facts(self) -> StagedFacts:
        """What is known of the deletion files of the surrogate, which are not written yet."""
        updated = _lists(self.surrogate)[0] if self.surrogate is not None else ()
        found = dict[Location, FoundDeletions]()
        for one in updated:
            if one.HasField("deletion_file"):
                key = deletion_key(one.id, one.deletion_file, staged=True)
                if key in self.unwritten:
                    found[Location(key)] = FoundDeletions(described_part(one), len(self.unwritten[key]))
        return StagedFacts(deletions=found)


def matched(promotion: Promotion) -> dict[int, DataFragment]:
    """As `OnMain.matches`. Raises `PromotionConflict` if `base` has other files than the branch then had."""
    touched = [*promotion.changes.removed, *(before for before, _ in promotion.changes.changed)]
    by_id = {one.id: one for one in promotion.base.fragments.of([one.id for one in touched])}
    by_key: dict[FileKey, DataFragment] = {}
    found = dict[int, DataFragment]()
    for one in touched:
        key = promotion.frame.key(one)
        there = by_id.get(one.id)
        if there is None or file_key(there) != key:
            by_key = by_key or {file_key(known): known for known in promotion.base.fragments}
            there = by_key.get(key)
        if there is None or there.physical_rows != one.physical_rows:
            raise PromotionConflict(
                f"the branch changed fragment {one.id}, and version {promotion.base.version} of main, with which the "
                f"last promotion of this branch was committed, has that fragment no more. {ADVICE}",
                version=promotion.base.version,
                rule="moved_rows",
            )
        found[one.id] = there
    return found


def deletion_files_of(promotion: Promotion) -> Rows:
    """The deletion files of the branch that must be read, in the order that `on_main` expects."""
    return Rows([file for file in _files(promotion) if file is not None], 0)


def _files(promotion: Promotion) -> Iterator[DeletionFile | None]:
    changes = promotion.changes
    for one in changes.removed:
        yield _file(one, promotion.before)
    for before, after in changes.changed:
        yield _file(before, promotion.before)
        yield _file(after, promotion.after)
    for one in changes.added:
        yield _file(one, promotion.after)


def _file(fragment: DataFragment, version: ManifestFile) -> DeletionFile | None:
    if not fragment.HasField("deletion_file"):
        return None
    return DeletionFile(fragment, deletion_file_location(fragment, version.outline.base_paths, staged=False), False)


def deletion_files_of_main(promotion: Promotion, matches: Mapping[int, DataFragment]) -> Rows:
    """The deletion files of main that must be read, in the order that `on_main` expects."""
    files = (_file(one, promotion.base) for one in matches.values())
    return Rows([file for file in files if file is not None], 0)


def on_main(
    promotion: Promotion,
    matches: Mapping[int, DataFragment],
    *,
    of_branch: Sequence[BitMap],
    of_main: Sequence[BitMap],
    sources: Sources,
) -> OnMain:
    """The changes of the branch to fragments of main.

    `of_branch`, `of_main`: what the deletion files hold (`deletion_files_of`, `deletion_files_of_main`). Raises
    `PromotionConflict` if main had deleted rows at `base` that the branch deletes or moves, and `PromotionRefused`
    (`branch_replaced`) if the branch has rows again that it had deleted.
    """
    found, found_main = iter(of_branch), iter(of_main)
    known = [next(found) if file is not None else BitMap() for file in _files(promotion)]
    rows = iter(known)
    theirs = {id: next(found_main) if one.HasField("deletion_file") else BitMap() for id, one in matches.items()}
    changes, frame = promotion.changes, promotion.frame
    gone = list[int]()
    updated = list[DataFragment]()
    unwritten, bodies = dict[str, BitMap](), dict[str, bytes]()
    file_ids = sources.file_ids()
    fields, both, only_deletes = set[int](), dict[int, BitMap](), True
    for one in changes.removed:
        there, had = matches[one.id], next(rows)
        gone.append(there.id)
        if theirs[one.id] - had:
            both[there.id] = theirs[one.id] - had
    for before, after in changes.changed:
        there, had, has = matches[before.id], next(rows), next(rows)
        if had - has:
            raise PromotionRefused(
                f"fragment {before.id} of the branch has rows again that were deleted at version "
                f"{promotion.before.version}: was the branch restored?",
                code="branch_replaced",
            )
        if (has - had) & theirs[before.id]:
            both[there.id] = (has - had) & theirs[before.id]
        made = DataFragment()
        made.CopyFrom(there)
        if list(before.files) != list(after.files):
            only_deletes = False
            moved = frame.fragment(after)
            made.ClearField("files")
            made.files.extend(moved.files)
            fields |= fields_in_other_files(before, after)
        deleted = theirs[before.id] | has
        if len(deleted) >= there.physical_rows:
            gone.append(there.id)
            continue
        if deleted != theirs[before.id]:
            file, key, body = deletion_file(there.id, deleted, latest_version=promotion.base.version, file_ids=file_ids)
            made.deletion_file.CopyFrom(file)
            unwritten[key], bodies[key] = deleted, body
        updated.append(made)
    if both:
        raise PromotionConflict(
            f"the branch deleted or moved rows of fragments {sorted(both)} that main had deleted up to version "
            f"{promotion.base.version}. {ADVICE}",
            version=promotion.base.version,
            rule="same_row",
        )
    added_rows = {one.id: next(rows) for one in changes.added}
    return OnMain(
        matches=matches,
        surrogate=_surrogate(promotion, updated, gone, fields, only_deletes=only_deletes),
        unwritten=unwritten,
        bodies=bodies,
        added_rows=added_rows,
    )


def _surrogate(
    promotion: Promotion, updated: list[DataFragment], gone: list[int], fields: set[int], *, only_deletes: bool
) -> Transaction | None:
    changes = promotion.changes
    made = Transaction(read_version=promotion.base.version, uuid=promotion.uuid)
    if not (updated or gone):
        if not changes.added:
            return None
        made.append.fragments.extend(_bare(promotion.frame.fragment(one)) for one in changes.added)
    elif only_deletes and not changes.added:
        made.delete.updated_fragments.extend(updated)
        made.delete.deleted_fragment_ids.extend(gone)
    else:
        made.update.updated_fragments.extend(updated)
        made.update.removed_fragment_ids.extend(gone)
        schema = {one.id for one in promotion.after.outline.fields}
        made.update.fields_modified.extend(sorted(fields & schema))
        made.update.fields_for_preserving_frag_bitmap.extend(sorted(schema))
        if promotion.inserted_rows is not None:
            made.update.inserted_rows.CopyFrom(promotion.inserted_rows)
    return made


def _bare(fragment: DataFragment) -> DataFragment:
    fragment.id = 0
    return fragment


def with_settings(latest: ManifestFile, promotion: Promotion) -> ManifestFile:
    """The latest version of main with the base paths, schema and configuration that the branch gives it.

    Raises `PromotionConflict` if main has changed its schema too.
    """
    outline, changes = Manifest(), promotion.changes
    outline.CopyFrom(latest.outline)
    if promotion.added_base is not None:
        outline.base_paths.append(promotion.added_base)
    if changes.schema is not None:
        if not same_schema(latest.outline, promotion.before.outline):
            raise PromotionConflict(
                f"the branch changed the schema, and main has changed it too since the branch began. {ADVICE}",
                version=latest.version,
                rule="schema",
            )
        outline.ClearField("fields")
        outline.fields.extend(changes.schema)
    change_map(outline.config, changes.config)
    change_map(outline.table_metadata, changes.table_metadata)
    change_map(outline.schema_metadata, changes.schema_metadata)
    return replace(latest, outline=outline)


def build(
    latest: ManifestFile,
    judged: Judged,
    promotion: Promotion,
    there: OnMain,
    *,
    scheme: NamingScheme,
    sources: Sources,
) -> Steps[Prepared]:
    """Build the version that follows `latest`.

    `judged`: the surrogate, judged on `with_settings(latest, promotion)`; its transaction may be without an operation.
    """
    start = with_settings(latest, promotion)
    given = BuildInput(
        now=sources.wall_clock(),
        ahead_max=sources.ahead_max,
        transaction_file=transaction_name(latest.version, promotion.uuid),
        index_uuid=sources.new_uuid().bytes,
        reuse=(yield Reuse(latest.indices)),
    )
    draft = next_draft(start, given)
    updated, gone, fields = _lists(judged.transaction)
    changed = put_in_place(draft, updated, gone)
    draft.indices = without_updated_fields(draft.indices, changed, fields, draft.manifest.fields)
    shift = draft.next_fragment_id() - next_fragment_id(promotion.before.outline, promotion.before.fragments)
    new, written = _new_fragments(latest, promotion, there, shift=shift, sources=sources)
    if new:
        draft.spend_ids(max(one.id for one in new))
    if draft.has_stable_row_ids:
        born = promotion.after.outline.next_row_id - promotion.before.outline.next_row_id
        draft.manifest.next_row_id = latest.outline.next_row_id + born
        for fragment in draft.manifest.fragments:
            if fragment.id in changed and fields:
                _stamp(fragment, promotion, draft.version)
    draft.add(new)
    draft.keep_useful_indices()
    finish(draft, changed)
    follow_indices(draft)
    built = NextVersion.of(draft)
    require_sound(start, built)
    outline, own = built.packed
    fragments = built.kept.with_added(own)
    transaction = _transaction(latest, promotion, judged.transaction, new, outline=outline, fragments=fragments)
    section = IndexSection(indices=built.indices)
    file = ManifestFile(
        outline=outline,
        fragments=fragments,
        index_section=section,
        transaction=transaction,
        transaction_bytes=transaction.SerializeToString(deterministic=True),
    )
    reuse = yield Reuse(file.indices)
    require_next(start, file, built, given, reuse=reuse)
    judged = replace(judged, transaction=transaction, files=_bodies(updated, there, judged) | written)
    return prepared(latest, file, assemble(outline, fragments, section, transaction), scheme=scheme, judged=judged)


def _bodies(updated: Sequence[DataFragment], there: OnMain, judged: Judged) -> dict[str, bytes]:
    """The deletion files to write for the fragments that main has, by key."""
    known = {**there.bodies, **judged.files}
    keys = (deletion_key(one.id, one.deletion_file, staged=True) for one in updated if one.HasField("deletion_file"))
    return {key: known[key] for key in keys if key in known}


def _lists(transaction: Transaction) -> tuple[Sequence[DataFragment], Sequence[int], Sequence[int]]:
    """Updated fragments, ids of removed ones, and fields that were rewritten in place."""
    if transaction.HasField("delete"):
        return transaction.delete.updated_fragments, transaction.delete.deleted_fragment_ids, ()
    if transaction.HasField("update"):
        update = transaction.update
        return update.updated_fragments, update.removed_fragment_ids, update.fields_modified
    return (), (), ()


def _new_fragments(
    latest: ManifestFile, promotion: Promotion, there: OnMain, *, shift: int, sources: Sources
) -> tuple[list[DataFragment], dict[str, bytes]]:
    """The fragments that were born on the branch, as main has them, and the bodies of their deletion files by key.

    `shift`: what is added to their ids. Main's ids are those of the branch if main has given out none since.
    """
    made, written, version = list[DataFragment](), dict[str, bytes](), latest.version + 1
    stable = has_stable_row_ids(latest.outline)
    ids = _row_ids(latest, promotion, there) if stable else None
    file_ids = sources.file_ids()
    for one in promotion.changes.added:
        number = one.id + shift
        fragment = promotion.frame.fragment(one)
        fragment.id = number
        if deleted := there.added_rows[one.id]:
            file, key, body = deletion_file(number, deleted, latest_version=latest.version, file_ids=file_ids)
            fragment.deletion_file.CopyFrom(file)
            written[key] = body
        if ids is not None:
            fragment.inline_row_ids = ids.of(one)
            fragment.inline_created_at_versions = versions_of_main(
                one.inline_created_at_versions, one, start=promotion.start, version=version
            )
            fragment.inline_last_updated_at_versions = versions_of_main(
                one.inline_last_updated_at_versions, one, start=promotion.start, version=version
            )
        made.append(fragment)
    return made, written


def _row_ids(latest: ManifestFile, promotion: Promotion, there: OnMain) -> RowIdsOfMain:
    promoted = dict[int, int]()
    if promotion.before.version != promotion.start:
        for one in (*promotion.changes.removed, *(before for before, _ in promotion.changes.changed)):
            promoted.update(same_rows(one, there.matches[one.id], from_id=promotion.first_row_id))
    new_from = promotion.before.outline.next_row_id
    return RowIdsOfMain(
        kept_below=promotion.first_row_id,
        promoted=promoted,
        new_from=new_from,
        shift=latest.outline.next_row_id - new_from,
    )


def _stamp(fragment: DataFragment, promotion: Promotion, version: int) -> None:
    """Take the versions of the last change of the rows of a fragment that the branch changed in place."""
    after = next((one for _, one in promotion.changes.changed if promotion.frame.key(one) == file_key(fragment)), None)
    if after is not None and fragment.inline_last_updated_at_versions:
        fragment.inline_last_updated_at_versions = versions_of_main(
            after.inline_last_updated_at_versions, after, start=promotion.start, version=version
        )


def _transaction(
    latest: ManifestFile,
    promotion: Promotion,
    judged: Transaction,
    new: Sequence[DataFragment],
    *,
    outline: Manifest,
    fragments: FragmentList,
) -> Transaction:
    """What the version says of itself, to writers that have read an earlier one: the narrowest operation that covers
    it.
    """
    made, changes = Transaction(read_version=latest.version, uuid=promotion.uuid), promotion.changes
    change_map(made.transaction_properties, promotion.properties)
    if changes.schema is not None:
        made.merge.fragments.extend(fragments)
        made.merge.schema.extend(outline.fields)
        change_map(made.merge.schema_metadata, dict(outline.schema_metadata))
    elif judged.HasField("append"):
        made.append.fragments.extend(new)
    elif judged.HasField("delete"):
        made.delete.CopyFrom(judged.delete)
    elif judged.HasField("update"):
        made.update.CopyFrom(judged.update)
        made.update.new_fragments.extend(new)
    else:
        said = made.update_config
        _say(said.config_updates, changes.config)
        _say(said.table_metadata_updates, changes.table_metadata)
        texts = {key: None if value is None else value.decode() for key, value in changes.schema_metadata.items()}
        _say(said.schema_metadata_updates, texts)
    return made


def _say(update: Transaction.UpdateMap, entries: Mapping[str, str | None]) -> None:
    for key, value in entries.items():
        entry = update.update_entries.add(key=key)
        if value is not None:
            entry.value = value
