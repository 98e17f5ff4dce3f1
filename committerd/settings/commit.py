"""Group `commit`: how transactions become versions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import (
    NoDecode,
)

from committerd.lance.format.kind import Kind
from committerd.lance.operations.permissions import DEFAULT_OPERATIONS
from committerd.queue.rounds import Coalesce
from committerd.settings.dataset import checked_uri
from committerd.settings.group import MIB, Listed, SettingsGroup, listed


class CommitSettings(SettingsGroup):
    """How transactions become versions."""

    coalesce: Coalesce = Field(
        default=Coalesce.ALL,
        description="Which waiting transactions share versions. all: what waits together becomes up to "
        "three versions, one for the Deletes and the Updates that rewrite rows, one for the Appends, and one for the "
        "UpdateConfigs that only set or remove keys. appends: consecutive Appends share one. none: each transaction "
        "has a version of its own, so there are far fewer commits a second.",
    )
    group_records_max: int = Field(
        default=1000, ge=1, le=10_000, description="Maximum number of transactions in one version."
    )
    group_bytes_max: int = Field(
        default=16 * MIB,
        ge=1,
        description="Maximum bytes of staged transactions in one version (a single transaction always fits).",
    )
    group_fragments_max: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of new fragments in one version (a single transaction always fits).",
    )
    batch_producers: Listed = Field(
        default=(),
        description="Producers that stage in bulk, by header `producer` or else `app-id`; `*` stands for any "
        "characters. While others wait too, a version takes at most a tenth of commit.group_records_max from each of "
        "them, in place of three tenths to a half; a record with many files counts as several. So the others wait "
        "less, and the batch takes longer.",
    )
    interval_seconds_min: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Shortest time between two versions; 0 = as fast as the store takes them.",
    )
    refusal_interval_seconds: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Shortest time between two versions that only record refusals; under load, refusals ride along "
        "with commits. A refusal that may reserve rows is written sooner, as long as such versions take no more "
        "than a twentieth of the time.",
    )
    hold_seconds_max: float = Field(
        default=2.0,
        ge=0,
        le=60,
        description="Longest hold: after the committer has refused a re-execution, it commits nothing else until the "
        "next try arrives, or this time is over. Holds take at most a quarter of the time. They may "
        "delay a second refusal by about 4 times this, for each operation that waits. Also the longest time for which "
        "a refused transaction reserves its rows and keys: others that change them are refused. If another one waits "
        "in line behind it, its refusal is published after at most 4 times this. 0 = nothing is reserved.",
    )
    verify_files: Literal["always", "stale", "never"] = Field(
        default="always",
        description="Whether to check before the commit that a record's files exist, with the size, rows and columns "
        "that it gives: readers can't open or scan a table otherwise. always: for each record, while it waits. "
        "stale: only for "
        "records older than 5 days (Lance's cleanup deletes unreferenced files after 7). never: for none.",
    )
    trust_rewrites: Literal["marked", "all"] = Field(
        default="marked",
        description="Through which Rewrites rows are followed, so that a Delete or an upsert passes them. marked: "
        "those whose writer says that rows keep their order (as committerd's compaction does), and all in tables with "
        "stable row ids. all: also those of other writers. Choose all only if each of them keeps the order, as "
        "compactions of pylance 4 to 14 do: after a Rewrite that sorts rows, the wrong rows would be deleted.",
    )
    unknown: Literal["refuse", "pylance"] = Field(
        default="refuse",
        description="What to do where committerd's knowledge of Lance ends: a table with a feature, or a transaction "
        "with an operation or a field, that it does not know. refuse: the table waits for a later committerd, and the "
        "transaction is UNSUPPORTED. pylance: pylance (installed with committerd[lance]) builds the version, in a "
        "process of its own, and committerd puts it; such a transaction is committed only if no version follows the "
        "one that it read, is a version of its own, and takes about a second.",
    )
    transaction_files_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of data files and index files that one transaction may bring; with more it is "
        "INVALID. "
        "Applies when commit.verify_files checks the files.",
    )
    named_bytes_max: int = Field(
        default=64 * MIB,
        ge=1024,
        description="Maximum bytes of deletion files that one transaction may bring; with more it is INVALID. "
        "Applies when commit.verify_files checks the files.",
    )
    allowed_operations: Annotated[frozenset[Kind], NoDecode, BeforeValidator(listed)] = Field(
        default=DEFAULT_OPERATIONS,
        description="Operations to commit, named as in the Transaction message; any other one is UNSUPPORTED.",
    )
    producers_file: str | None = Field(
        default=None,
        description="TOML file with the producers that may stage, their keys, and what each may stage. With it, a "
        "record that no producer of the file has signed is INVALID. The file is read again when it changes.",
    )
    allowed_bases: Listed = Field(
        default=(),
        description="URI prefixes outside the table that a transaction may name (Clone, UpdateBases, initial "
        "bases). committerd uses its own credentials there, so the default is none.",
    )
    mixed_file_versions: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Whether a transaction may bring the first data files of another data_storage_version than the "
        "table's. refuse: it is INVALID. allow: it is committed, as Lance 14 does; from then on no Lance below 12 can "
        "read the table, and nothing takes this back. A table that mixes versions already takes them in any case.",
    )
    transaction_bytes_max: int = Field(
        default=8 * MIB,
        ge=1024,
        description="Maximum bytes of one staged transaction, inline or by claim check; with more it is INVALID. "
        "Decoded, it takes several times as much memory.",
    )
    app_marks_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Maximum number of application ids that the table remembers, with 1 KiB for each on average. It "
        "forgets those that are unused for 30 days; until it has room, records of a new application are INVALID.",
    )
    republish_max: int = Field(
        default=10_000,
        ge=0,
        description="Maximum number of outcomes to publish again at a start when the consumer group has no offset.",
    )

    @field_validator("allowed_bases")
    @classmethod
    def _bases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_uri(one) for one in value)
