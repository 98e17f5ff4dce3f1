"""Rounds: which of the waiting records share versions, and in what order their versions are made.

A round is the longest run of waiting Appends, Deletes, row-rewriting Updates, and UpdateConfigs that only set or remove
keys. Each of its parts becomes one version: first the rows that are deleted and updated, then the Appends, then the
configuration. So an upsert comes before the Appends that wait with it, and does not conflict with them. Any other
operation ends the run, and is a version of its own where it stands.

An offset that is settled before a lower one is noted in the position as settled ahead. A round ends before more of them
would be needed than a position can carry, and where the records of one application would change their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from committerd.lance.rows.change import rewrites_rows
from committerd.queue.position import LISTED_MAX
from committerd_common.messages import Transaction


class Part(IntEnum):
    """The parts of a round, in the order of their versions."""

    ROWS = 0
    """Deletes, and Updates that rewrite rows."""
    APPENDS = 1
    CONFIG = 2
    """UpdateConfigs that only set or remove keys of the config or of the table metadata."""


class Coalesce(StrEnum):
    """Which records may share a version."""

    NONE = "none"
    """None: each transaction is a version of its own, in the order of their offsets."""
    APPENDS = "appends"
    """Consecutive Appends."""
    ALL = "all"
    """All parts of a round."""


def part_of(transaction: Transaction, coalesce: Coalesce = Coalesce.ALL) -> Part | None:
    """The part of a round that the transaction belongs to; None if it is a version of its own.

    A tag would become the tag of the whole version, so a transaction with one shares none.
    """
    if transaction.tag or coalesce is Coalesce.NONE:
        return None
    operation = transaction.WhichOneof("operation")
    if operation == "append":
        return Part.APPENDS
    if coalesce is Coalesce.APPENDS:
        return None
    if operation == "delete" or (operation == "update" and rewrites_rows(transaction.update)):
        return Part.ROWS
    if operation == "update_config" and _only_changes_keys(transaction.update_config):
        return Part.CONFIG
    return None


def changed_keys(transaction: Transaction) -> list[str]:
    """The keys that an UpdateConfig of part `CONFIG` sets or removes, each with the name of its map."""
    config = transaction.update_config
    return [
        *(f"config {entry.key}" for entry in config.config_updates.update_entries),
        *(f"table {entry.key}" for entry in config.table_metadata_updates.update_entries),
        *(f"config {key}" for key in (*config.upsert_values, *config.delete_keys)),
    ]


def _only_changes_keys(config: Transaction.UpdateConfig) -> bool:
    return not (
        config.schema_metadata
        or config.field_metadata
        or config.HasField("schema_metadata_updates")
        or config.field_metadata_updates
        or config.config_updates.replace
        or config.table_metadata_updates.replace
    )


@dataclass(slots=True, kw_only=True)
class Round:
    """Collects the records of a round, in the order in which they wait."""

    room: int = LISTED_MAX
    """How many more offsets the position can carry as settled ahead (`Position.room`), besides the re-executions that
    go first in the round.
    """
    _is_alone: bool = False
    """Whether the round is one record that is a version of its own."""
    _parts: set[Part] = field(default_factory=set)
    """The parts of the records so far."""
    _last_of_app: dict[str, Part] = field(default_factory=dict)
    _behind: int = 0
    """Records that come after one that was left waiting."""
    _left: bool = False
    _left_writers: set[str] = field(default_factory=set)
    """The applications and producers of the records that were left waiting."""
    _passing: dict[Part, int] = field(default_factory=dict)
    """For each part, the records of it and of earlier parts that come after a record of a later part."""

    def leaves(self, *, app_id: str = "", producer: str = "") -> None:
        """Leave the next record waiting: those behind it are settled ahead of it, but for those of the same writer."""
        self._left = True
        self._left_writers.update(_writers(app_id, producer))

    def takes(self, part: Part | None, *, app_id: str = "", producer: str = "") -> bool:
        """Take the next waiting record; False if the round ends before it.

        `part`: None = it is a version of its own. `app_id`, `producer`: empty = it has none.
        """
        if self._left and not (self._left_writers.isdisjoint(_writers(app_id, producer)) and self._has_room(0)):
            return False
        if self._is_alone:
            return False
        if part is None:
            self._is_alone = not self._parts
            return self._is_alone
        if app_id and self._last_of_app.get(app_id, part) > part:
            return False
        passing = {one: self._passing.get(one, 0) + 1 for one in Part if part <= one < self._last_part()}
        if not all(map(self._has_room, passing.values())):
            return False
        self._passing |= passing
        self._behind += self._left
        self._parts.add(part)
        if app_id:
            self._last_of_app[app_id] = part
        return True

    def refuses(self) -> Part | None:
        """The part in whose version the next record, which can't be decoded, is refused; None if the round has no room.

        It is settled ahead only of records that were left waiting.
        """
        if self._left and not self._has_room(0):
            return None
        self._behind += self._left
        return self._last_part()

    def _has_room(self, passing: int) -> bool:
        """Whether the position can carry one more record of which so many pass others."""
        return self._behind + self._left + passing <= self.room

    def _last_part(self) -> Part:
        return max(self._parts, default=Part.ROWS)


def _writers(app_id: str, producer: str) -> set[str]:
    """What a record must not share with one that it passes."""
    return {f"{kind} {name}" for kind, name in (("app-id", app_id), ("producer", producer)) if name}
