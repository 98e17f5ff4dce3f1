"""Reads objects that a record names. Whose fault is it if the store refuses to read one?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from committerd.errors import InvalidRequest, ObjectUnreadable
from committerd.stores.port import ObjectStore
from committerd.table.staged_files import NAME_CHARS_MAX
from committerd_common.paths import VERSIONS

_T = TypeVar("_T")

_MANIFESTS_TRIED = 4
"""Manifests to try when checking that the table is readable: a single one may itself be unreadable."""


async def read_named(
    store: ObjectStore, key: str, read: Callable[[], Awaitable[_T]], *, code: str = "file_unreadable"
) -> _T:
    """Call `read`, which reads an object that a record names, and return its result.

    When the store refuses to read that object, the table's own manifests are read next. If those are readable and the
    store refuses the object once more, the record is at fault: raises `InvalidRequest` with `code`. If they are not,
    raises `StoreUnavailable`: with expired credentials, for example, nothing is readable.
    """
    try:
        return await read()
    except ObjectUnreadable:
        await _require_readable(store)
    try:
        return await read()
    except ObjectUnreadable as error:
        raise InvalidRequest(
            f"the record names {key[:NAME_CHARS_MAX]!r}, which can't be read, while the table can: {error}. Use a "
            "regular file in the table's folder that the committer may read, and stage a new transaction",
            code=code,
        ) from error


async def _require_readable(store: ObjectStore) -> None:
    """List the table's manifests and read the end of one. Raises `ObjectUnreadable` when none of them is readable."""
    unread: list[ObjectUnreadable] = []
    for key in await store.list(VERSIONS, limit=_MANIFESTS_TRIED):
        try:
            await store.get_tail(key, 1)
        except ObjectUnreadable as error:
            unread.append(error)
        else:
            return
    if unread:
        raise unread[0]
