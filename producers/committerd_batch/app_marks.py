"""The unit of work of a batch, and whether the table has it already."""

from __future__ import annotations

import re

from committerd_batch.errors import AppIdMissing, app_id_in_use
from committerd_client.app_marks import AppMark
from committerd_client.errors import InvalidTransaction
from committerd_client.headers import App, app_unit
from committerd_client.results import CommitResult

_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def result_of(mark: AppMark | None, app: App | None) -> CommitResult | None:
    """The result for a unit that is in the table already; None if it is not. Raises `AppIdInUse`."""
    if mark is None or app is None:
        return None
    try:
        return mark.result(app)
    except InvalidTransaction as error:
        said = str(error).partition(": ")[0]
        raise app_id_in_use(mark.app_id, said[:1].upper() + said[1:]) from error


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
