"""Each transaction of a branch against each version that main has committed since the branch began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from committerd.branches.history import Step
from committerd.branches.refusal import PromotionConflict
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.grid import Verdict, compared, reason
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.transactions.transaction import excerpt, footprint_of_ours
from committerd.lance.versions.fragments import FileIdentity
from committerd.table.versions import Committed

ADVICE = "Nothing was committed. Do that work again on the latest version of main"


def footprint_of(
    step: Step, below: ManifestFile, known: frozenset[int], bases: Mapping[int | None, int | None]
) -> Footprint:
    """What a transaction of the branch touches of the fragments that main has too (`known`).

    `below`: the version of the branch below its own. `bases`: as `Frame.bases`.
    """
    touched = footprint_of_ours(step.transaction, excerpt(below, step.transaction), below.indices)

    def of_main(files: Mapping[int, tuple[FileIdentity, ...]]) -> dict[int, tuple[FileIdentity, ...]]:
        return {
            id: tuple((*file[:-1], bases[file[-1]]) for file in several) for id, several in files.items() if id in known
        }

    return replace(
        touched,
        fragments=touched.fragments & known,
        removed=touched.removed & known,
        files=of_main(touched.files),
        files_read=None if touched.files_read is None else of_main(touched.files_read),
        replaced={id: fields for id, fields in touched.replaced.items() if id in known},
        groups=tuple(group & known for group in touched.groups if group & known),
        moves=tuple(one for one, group in zip(touched.moves, touched.groups, strict=False) if group & known),
    )


def require_no_conflict(step: Step, ours: Footprint, committed: Iterable[Committed]) -> None:
    """Ask the conflict rules about one transaction of the branch. Raises `PromotionConflict`."""
    found = compared(ours, [(one.version, one.footprint) for one in committed])
    deciding = found.deciding
    if deciding is None or deciding.verdict < Verdict.RETRYABLE:
        return
    theirs = str(deciding.theirs or "unreadable")
    raise PromotionConflict(
        f"version {step.version} of the branch ({step.kind}) conflicts with version {deciding.version} of main "
        f"({theirs}), by rule {deciding.rule}: {reason(deciding.rule)} {ADVICE}",
        branch_version=step.version,
        branch_operation=str(step.kind),
        version=deciding.version,
        operation=theirs,
        rule=deciding.rule,
    )


def touching(steps: Sequence[tuple[Step, Footprint]], theirs: Footprint) -> list[Step]:
    """The transactions of the branch that changed rows of the fragments that a version of main has changed."""
    return [step for step, ours in steps if ours.fragments & theirs.fragments]
