"""Group `store`: how the table's store is used."""

from __future__ import annotations

from pydantic import Field

from committerd.settings.group import SettingsGroup


class StoreSettings(SettingsGroup):
    """How objects are written."""

    durable: bool = Field(
        default=True,
        description="Local files: sync file and folder before a commit counts as done. With false, commits survive a "
        "crash of the process, but not of the machine.",
    )
    recheck_seconds: float = Field(
        default=10.0,
        gt=0,
        le=60,
        description="Before a put, the committer looks for the latest version again if its last look is older than "
        "this. An idle committer looks for foreign versions this often.",
    )
    probe: bool = Field(
        default=True,
        description="At start: test that the store lets only one of several writers create an object, and refuse to "
        "run on a store that doesn't. false = trust the store, for example because `committerd probe` has tested it.",
    )
