"""Group `maintain`: what `committerd maintain` aims for, and how much it may take."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from committerd.settings.group import MIB, SettingsGroup

_HOURS = re.compile(r"(?P<first>[01]?[0-9]|2[0-3])-(?P<last>[01]?[0-9]|2[0-4])")


class MaintainSettings(SettingsGroup):
    """How the table is kept fit for reading. Only `committerd maintain` uses these settings."""

    rows_per_fragment: int = Field(
        default=1_000_000,
        ge=1,
        le=2**31,
        description="Rows that a fragment should have; smaller ones are rewritten together.",
    )
    bytes_per_fragment: int = Field(
        default=1024 * MIB,
        ge=64 * 1024,
        description="Size at which a data file is closed. A fragment below half of it and below rows_per_fragment is "
        "small.",
    )
    deleted_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="A fragment of which at least this share is deleted is rewritten without the deleted rows.",
    )
    fragments_max: int = Field(
        default=1_000,
        ge=1,
        description="With more small fragments than this, they are rewritten together even if few of them have about "
        "the same size. Fragments that are not small do not count.",
    )
    unindexed_rows_max: int = Field(
        default=100_000,
        ge=0,
        description="With more rows than this that an index does not cover, the rows are added to the index.",
    )
    segments_max: int = Field(
        default=8, ge=1, le=1000, description="With more segments than this, the segments of an index are merged."
    )
    task_bytes_max: int = Field(
        default=4096 * MIB,
        ge=MIB,
        description="Maximum bytes of data files that one task rewrites. A larger fragment is left as it is.",
    )
    task_seconds_max: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="Maximum time for one task, as estimated from the tasks before it. It does not cover indices.",
    )
    tasks_max: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Maximum number of tasks at once. Their fragments are replaced in one commit, which more tasks "
        "share if they are short.",
    )
    committer_share: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Largest share of the time that the committer may spend on the commits of maintenance; 1 = no "
        "limit. After commits that took long, the next task waits. Cleanups make no commits.",
    )
    hours: str = Field(
        default="",
        description="Hours of the day, in UTC, in which work may begin, such as 22-6; empty: all of them. --once obeys "
        "them too.",
    )
    interval_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="Time between two looks at the table when there is nothing to do. Shorter when small fragments "
        "arrive fast enough to reach half of fragments_max before that.",
    )
    cleanup_seconds: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Time from the start of one cleanup to the start of the next. After a cleanup that took more than "
        "half of this, the time is twice what the cleanup took.",
    )
    keep_hours: float = Field(
        default=24.0,
        ge=1,
        description="Hours for which a version stays readable after a newer one has followed it. Readers and writers "
        "must be done with the version within this time.",
    )
    keep_versions: int = Field(
        default=100, ge=1, description="Newest versions that stay readable, however old they are."
    )
    reclaim_hours: float = Field(
        default=168.0,
        ge=1,
        description="Age in hours at which a file that no version and no waiting record names is deleted. A writer "
        "must stage a file within this time after it has written it. A deletion file goes sooner, when the version "
        "that its writer read is gone.",
    )

    @field_validator("hours")
    @classmethod
    def _hours(cls, value: str) -> str:
        if value and _HOURS.fullmatch(value) is None:
            raise ValueError(
                "give the hour at which they begin and the hour at which they end, such as 22-6 or 8-18, or nothing"
            )
        return value

    def may_begin(self, hour: int) -> bool:
        """Whether tasks may begin in this hour (0 to 23, UTC)."""
        found = _HOURS.fullmatch(self.hours)
        if found is None:
            return True
        first, last = int(found["first"]), int(found["last"])
        return first <= hour < last if first < last else hour >= first or hour < last
