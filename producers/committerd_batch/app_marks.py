"""Which units of an application are in a table, as the table itself records it.

The committer keeps the mark of each application in `table_metadata` (ARCHITECTURE, "What a table carries"). Looking at
it before a batch is written saves the files of a batch that is there already. The committer decides; this look may
only save work, so a mark that can't be read counts as none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from committerd_batch.errors import AppIdInUse, AppIdMissing, app_id_in_use
from committerd_client.headers import App, app_unit
from committerd_client.results import CommitResult, CommitStatus

_KEY_PREFIX = "committerd.app."
_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


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
        """The result for a unit that is in the table already; None if it is not. Raises `AppIdInUse`."""
        if self.version < 0:
            return None
        if app.run != self.run:
            raise self._in_use(app)
        if app.version > self.version:
            return None
        return CommitResult(
            uuid=self.uuid,
            status=CommitStatus.DUPLICATE,
            version=self.table_version if app.version == self.version else None,
            offset=self.offset,
            operation="",
            reason="app_version_seen",
            message=f"the table records version {self.version} of application {self.app_id!r}",
        )

    def _in_use(self, app: App) -> AppIdInUse:
        said = f"The table records version {self.version} of run {self.run!r}, and this is run {app.run!r}"
        return app_id_in_use(self.app_id, said)


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


def unit(app_id: str | None, app_version: int | None) -> App | None:
    """The unit of work of a job; None if it has none. Raises `ValueError`, `TypeError` and `AppIdMissing`."""
    if app_id is None and app_version is None:
        return None
    if app_id is None or app_version is None:
        raise ValueError("app_id and app_version belong together: give both or none")
    return app_unit((checked(app_id), app_version))


def checked(app_id: str) -> str:
    """Return the app id itself. Raises `AppIdMissing` if it is not a valid one."""
    if not isinstance(app_id, str) or not _APP_ID.fullmatch(app_id):
        raise AppIdMissing(
            f"{app_id!r} can't be an app id: 1 to 128 of the characters A-Z a-z 0-9 . _ - are needed. Give the writer "
            "app_id='...'"
        )
    return app_id
