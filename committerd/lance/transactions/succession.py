"""A version is put only if another one can be built on it.

A well-formed transaction may still make every later build fail. That is checked before its version is put, when one
record can be refused for it; afterwards the table would be damaged.
"""

from __future__ import annotations

from dataclasses import replace

from committerd.errors import CommitterError, InvalidRequest
from committerd.lance.format.fragment_reuse import Content
from committerd.lance.format.manifest_file import ManifestFile, assemble, decode
from committerd.lance.format.support import require_supported
from committerd.lance.transactions.build import build
from committerd.lance.transactions.transaction import footprint_of_theirs
from committerd.lance.versions.draft import BuildInput
from committerd.lance.versions.invariants import require_sound
from committerd.lance.versions.metadata import require_little_metadata
from committerd.lance.versions.next_version import NextVersion
from committerd.lance.versions.requested_features import require_no_new_features
from committerd_common.messages import DataFile, DataFragment, Field, Manifest, Transaction

_UUID = "00000000-0000-4000-8000-000000000000"


def require_next(
    latest: ManifestFile | None, made: ManifestFile, built: NextVersion, given: BuildInput, *, reuse: Content | None
) -> None:
    """Return if versions can be built on `made`, which follows `latest` and was assembled from `built`.

    Tries it with what has changed: serializes the new parts and reads them back, and builds an UpdateConfig and
    an Append on the version. `reuse` is the content of the fragment reuse index of `made`. An Append changes only
    counters and fragments, which `require_sound` checks, so it is not tried.

    Raises `InvalidRequest` with code `stops_the_table`. If the same fails on `latest`, `made` is not to blame. Raises
    `InvalidRequest` with code `metadata_too_large` if `made` would make later versions slow, and `UnsupportedRequest`
    with code `table_feature` if another writer's next commit would make the table unsupported.
    """
    transaction = made.transaction
    assert transaction is not None
    if transaction.WhichOneof("operation") == "append":
        return
    outline, own = built.packed
    before = latest.outline if latest is not None else None
    require_little_metadata(before, outline)
    require_no_new_features(before, outline)
    try:
        require_supported(replace(made, fragments=own))
        read_back = decode(bytes(assemble(outline, own, made.index_section, transaction)))
        footprint_of_theirs(transaction, before=None, after=read_back.outline, indices=read_back.indices)
        _try_out(made, replace(given, reuse=reuse))
    except CommitterError as error:
        if latest is not None and not _can_follow(latest, given):
            return
        raise InvalidRequest(
            f"nothing could be committed after this transaction, so it is refused: {error}", code="stops_the_table"
        ) from error


def _can_follow(latest: ManifestFile, given: BuildInput) -> bool:
    try:
        _try_out(latest, given)
    except CommitterError:
        return False
    return True


def _try_out(file: ManifestFile, given: BuildInput) -> None:
    """Build some versions on this one. Raises whatever error that raises."""
    bare = replace(given, restored=None, source=None, table_metadata={})
    for trial in _trials(file.outline):
        require_sound(file, build(file, trial, bare))


def _trials(outline: Manifest) -> list[Transaction]:
    """Transactions that every table must accept: an UpdateConfig, and an Append of one row."""
    configure, append = Transaction(uuid=_UUID), Transaction(uuid=_UUID)
    configure.update_config.config_updates.SetInParent()
    leaves = [field.id for field in outline.fields if field.type == Field.LEAF]
    if not leaves:
        return [configure]
    fragment = DataFragment(
        physical_rows=1,
        files=[DataFile(path="trial.lance", fields=leaves[:1], column_indices=[0], file_major_version=2)],
    )
    append.append.fragments.append(fragment)
    return [configure, append]
