"""What the readable history says of a uuid or an application's version: has this record been settled before?

pylance never looks at the uuid and commits the same bytes twice; a queue that delivers at least once must look. The
ledger holds every uuid of the readable history, of foreign versions too, because someone may commit a staged file by
hand.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from committerd.format.messages import DUPLICATE, Refusal
from committerd.format.messages import Status as StatusNumber
from committerd.format.request import AppUnit
from committerd.rules.answers import Settled, Status
from committerd.rules.position import AppMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record is passed without being committed, and why; the reason is stable snake case."""

    status: Status
    reason: str
    message: str
    version: int = 0
    """DUPLICATE: where it was committed; 0 = unknown."""
    conflicting_version: int = 0
    conflicting_operation: str = ""


@dataclass(slots=True)
class Ledger:
    """Uuids of the readable versions. Grows by about 150 bytes for each record in them."""

    _committed: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, Refusal] = field(default_factory=dict)
    _below: Ledger | None = None

    def ahead(self, versions: Iterable[Settled]) -> Ledger:
        """What this one will be once it has learned of these versions; itself it does not change."""
        ahead = Ledger(_below=self)
        for settled in versions:
            ahead.add(settled)
        return ahead

    def add(self, settled: Settled) -> None:
        """Learn what one version says; in any order."""
        known, version = self._committed, settled.version
        for uuid in (settled.uuid, *(member.uuid for member in settled.members)):
            if uuid and known.get(uuid, 0) < version:
                known[uuid] = version
        for refusal in settled.refusals:
            if refusal.uuid and refusal.status != DUPLICATE:
                self._refused.setdefault(refusal.uuid, refusal)

    def committed_after(self, uuid: str, read_version: int) -> int | None:
        """The version above `read_version` that has this uuid."""
        version = self._committed.get(uuid)
        if version is not None and version > read_version:
            return version
        return self._below.committed_after(uuid, read_version) if self._below is not None else None

    def refused(self, uuid: str) -> Refusal | None:
        """How this uuid was refused."""
        earlier = self._below.refused(uuid) if self._below is not None else None
        return earlier or self._refused.get(uuid)

    def __len__(self) -> int:
        return len(self._committed) + len(self._refused)


class Asked(NamedTuple):
    """What dedupe looks at."""

    uuid: str
    read_version: int
    app: AppUnit | None = None
    is_replay: bool = False
    """Header `replay-of`: an earlier refusal of this uuid doesn't count."""


def dedupe(
    asked: Asked,
    ledger: Ledger,
    marks: Mapping[str, AppMark],
    *,
    version: int,
    members: Container[str] = (),
    refusals: Iterable[Refusal] = (),
) -> Refused | None:
    """The answer to a record that was settled before, None for a new one.

    `members` (their uuids) and `refusals` are those of the group being formed, which will be `version`; `marks` include
    its own.
    """
    seen = ledger.committed_after(asked.uuid, asked.read_version)
    if seen is None and asked.uuid in members:
        seen = version
    if seen is not None:
        return _duplicate("uuid_seen", f"transaction {asked.uuid} is in the table at version {seen}", seen)
    if asked.app is not None and (answer := _marked(asked.app, marks.get(asked.app.app_id))):
        return answer
    if asked.is_replay:
        return None
    earlier = ledger.refused(asked.uuid) or next(
        (r for r in refusals if r.uuid == asked.uuid and r.status != DUPLICATE), None
    )
    return None if earlier is None else again(earlier)


def again(earlier: Refusal) -> Refused:
    """The same answer as before."""
    return Refused(
        status=Status(StatusNumber.Name(earlier.status)),
        reason=earlier.reason,
        message=earlier.message,
        version=earlier.version,
        conflicting_version=earlier.conflicting_version,
        conflicting_operation=earlier.conflicting_operation,
    )


def _marked(app: AppUnit, mark: AppMark | None) -> Refused | None:
    if mark is None or mark.released:
        return None
    if app.run != mark.run:
        return Refused(
            status=Status.INVALID,
            reason="app_id_in_use",
            message=f"application {app.app_id!r} counts its versions in run {mark.run!r}, this record is of run "
            f"{app.run!r}: a lost checkpoint counts from 0 again and its data would silently vanish as duplicates. "
            "Restore the checkpoint, or use another app-id, or let the operator run `committerd app release "
            f"{app.app_id}`",
        )
    if app.version <= mark.version:
        known = mark.table_version if app.version == mark.version else 0
        return _duplicate(
            "app_version_seen",
            f"application {app.app_id!r} has committed version {mark.version}, this record is its version "
            f"{app.version}",
            known,
        )
    return None


def _duplicate(reason: str, message: str, version: int) -> Refused:
    return Refused(status=Status.DUPLICATE, reason=reason, message=message, version=version)
