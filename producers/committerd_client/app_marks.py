"""Which units of an application are in a table, as the table itself records it.

The committer keeps the mark of each application in `table_metadata` (ARCHITECTURE, "What a table carries"). Looking at
it before rows are written saves the files of a unit that is there already. The committer decides; this look may only
save work, so a mark that can't be read counts as none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from committerd_client.errors import InvalidTransaction
from committerd_client.headers import App
from committerd_client.results import APP_VERSION_SEEN, CommitResult, CommitStatus

_log = logging.getLogger(__name__)

_KEY_PREFIX = "committerd.app."


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMark:
    """The last unit of an application that is in the table."""

    app_id: str
    run: str
    version: int
    """The unit's number; -1 after `committerd app release`."""
    uuid: str
    table_version: int
    offset: int

    def result(self, app: App) -> CommitResult | None:
        """The result for a unit that is in the table already; None if it is not.

        Raises `InvalidTransaction` (`app_id_in_use`) for a unit of another run.
        """
        if self.version < 0:
            return None
        if app.run != self.run:
            raise InvalidTransaction(
                f"the table records version {self.version} of application {self.app_id!r} in run {self.run!r}, and "
                f"this is run {app.run!r}: use another app-id, or let the operator run `committerd app release "
                f"{self.app_id}`",
                code="app_id_in_use",
            )
        if app.version > self.version:
            return None
        return CommitResult(
            uuid=self.uuid,
            status=CommitStatus.DUPLICATE,
            version=self.table_version if app.version == self.version else None,
            offset=self.offset,
            operation="",
            reason=APP_VERSION_SEEN,
            message=f"the table records version {self.version} of application {self.app_id!r}",
        )


def mark_in(table_metadata: Mapping[str, str], app_id: str) -> AppMark | None:
    """The application's mark in a version; None if there is none."""
    text = table_metadata.get(f"{_KEY_PREFIX}{app_id}")
    if text is None:
        return None
    try:
        raw = json.loads(text)
        return AppMark(
            app_id=app_id,
            run=str(raw["run"]),
            version=int(raw["version"]),
            uuid=str(raw["uuid"]),
            table_version=int(raw["table_version"]),
            offset=int(raw["offset"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def log_duplicate(app: App, found: CommitResult) -> None:
    """Log that a unit adds nothing: a line if it is the last one, and a warning if it is below the last one.

    The result of the last unit has its version. That of an older one has none.
    """
    if found.version is not None:
        _log.info("app=%r: it is in the table already (version %d)", app[:2], found.version)
    else:
        _log.warning("app=%r: %s", app[:2], below_the_last(found))


def below_the_last(found: CommitResult) -> str:
    """What to say of a unit below the last one of its application, which the committer takes for a duplicate."""
    return (
        f"nothing is added, because {found.message}, and the numbers of an application must grow. If these rows are "
        "not in the table (a backfill), write them under another app-id"
    )
