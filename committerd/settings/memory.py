"""Group `memory`: how much the committer remembers of a table's history."""

from __future__ import annotations

from pydantic import Field

from committerd.settings.group import MIB, SettingsGroup


class MemorySettings(SettingsGroup):
    """What committerd keeps in memory of the table's history. The defaults fit 512 MiB, however long the history.

    A process for many tables keeps within each bound with all of them together.
    """

    ledger_bytes: int = Field(
        default=128 * MIB,
        ge=MIB,
        description="Memory for the uuids of the readable history: 8 bytes for each record, so the default is enough "
        "for 14 million records. When it is full, committerd drops the oldest versions, and a record without app-id "
        "whose read version is older than the rest is UNDECIDED. All tables of a process share it: each has an equal "
        "part for certain, at least 1 MiB, and what the others leave.",
    )
    footprint_bytes: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="Memory for the footprints of committed versions (what each touched), to find conflicts. "
        "committerd reads the others from the store again when a record needs them. All tables of a process share it: "
        "the table that was not used for longest gives back first.",
    )
    deletion_vector_bytes: int = Field(
        default=32 * MIB,
        ge=MIB,
        description="Memory for the content of deletion files that committerd has read or written (which rows are "
        "deleted). It reads the others from the store again when a record needs them. Shared as footprint_bytes.",
    )
