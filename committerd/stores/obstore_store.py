"""A table's directory in a container of a cloud, through obstore.

obstore is the object_store crate, with which pylance reaches the same clouds; both take the same options. Its own
retries are off, so that each attempt is visible in `committerd.stores.retries`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import obstore
import obstore.store
from obstore.exceptions import BaseError

from committerd.errors import InvalidRequest, SettingsError
from committerd.settings.clouds import CloudSettings
from committerd.stores.cloud import Cloud
from committerd.stores.clouds import CloudPlace
from committerd.stores.obstore_failures import ERRORS, failure_of
from committerd.stores.port import (
    Content,
    Created,
    Exists,
    ObjectEntry,
    Tail,
    TailOrError,
    in_one_piece,
    require_below_root,
    tail_by_size,
    tails_of_each,
)
from committerd.stores.retries import Absent, ConditionFailed, Fault, Retries, ignored
from committerd_common.paths import DATA

_log = logging.getLogger(__name__)

_KEY_BYTES_MAX = 1024
"""The limit of Google Cloud Storage; that of Azure is as many characters."""
_NEVER_IN_A_KEY = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LISTED_AT_ONCE = 1000
_BYTES_PER_SECOND_MIN = 1 << 20
"""The slowest transfer that is waited for: the time limit of a request grows by its body's size divided by this."""
_SECONDS_MAX = 24 * 3600
"""obstore's own time limit of a request, which is never reached: `send` ends a request earlier."""

_T = TypeVar("_T")


def open_container(cloud: Cloud, root: str, settings: CloudSettings, *, seconds_max: float, retries: int) -> Any:
    """obstore's store of a container. `root`: its URI. `seconds_max`: of one request. `retries`: obstore's own.

    Raises `SettingsError` for settings that obstore refuses.
    """
    given = {name: value for name, value in cloud.options(settings).items() if value is not None}
    sending: dict[str, Any] = {
        "connect_timeout": f"{settings.connect_timeout_seconds}s",
        "timeout": f"{seconds_max}s",
    }
    if (settings.endpoint_url or "").startswith("http://"):
        sending["allow_http"] = True
    if settings.ca_bundle is not None:
        sending["root_certificate"] = _authorities(f"{cloud.service}.ca_bundle", settings.ca_bundle)
    if "@" in root:  # the URI's account wins, as in Lance
        given.pop("azure_storage_account_name", None)
    try:
        return getattr(obstore.store, cloud.obstore_class).from_url(
            root,
            config=given,
            credential_provider=cloud.credentials(settings),
            client_options=sending,
            retry_config={"max_retries": retries},
        )
    except (BaseError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise SettingsError(f"{cloud.service}: {root} can't be opened: {reason}") from error


def _authorities(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path!r} can't be read: {error.strerror}") from error


class ObstoreClient:
    """Sends each request to one container once. Stores may share it."""

    def __init__(self, cloud: Cloud, root: str, settings: CloudSettings) -> None:
        """`root`: URI of the container. Raises `SettingsError` for settings that obstore refuses."""
        self.cloud = cloud
        self.settings = settings
        self.container: Any = open_container(cloud, root, settings, seconds_max=_SECONDS_MAX, retries=0)
        self.versioning_advice = ""
        """Not empty if the container keeps what is replaced or deleted in it."""
        self._root = root
        self._all = anyio.CapacityLimiter(settings.connections_max)
        self._many = anyio.CapacityLimiter(max(1, settings.connections_max * 3 // 4))
        """Leaves a quarter of the connections to other requests."""

    async def put(self, key: str, body: bytes, mode: Any, _: anyio.CancelScope) -> None:
        """A `request` of `send`. `key`: in the container. `mode`: as obstore takes it."""
        made = await obstore.put_async(self.container, key, body, mode=mode, use_multipart=False)
        advice = self.cloud.versioning_advice
        if advice and made["version"] is not None and not self.versioning_advice:
            self.versioning_advice = advice
            _log.info("cloud.container_versioned", extra={"container": self._root, "advice": advice})

    async def send(
        self,
        operation: str,
        where: str,
        request: Callable[[anyio.CancelScope], Awaitable[_T]],
        *,
        body: bytes = b"",
        is_one_of_many: bool = False,
    ) -> _T:
        """Send one request. `where`: the object's name, for messages. `request`: may extend its scope's deadline.

        Returns its result. Raises `Absent`, `ConditionFailed` or `RequestFailed`.
        """
        settings = self.settings
        seconds = settings.connect_timeout_seconds + settings.read_timeout_seconds + seconds_of(len(body))
        try:
            async with self._many if is_one_of_many else nullcontext(), self._all:
                with anyio.fail_after(seconds) as scope:
                    return await request(scope)
        except ERRORS as error:
            raise failure_of(error, f"{self.cloud.service} {operation} of {where}", self.cloud.advice) from error


def seconds_of(size: int) -> float:
    """How long the transfer of a body may take."""
    return size / _BYTES_PER_SECOND_MIN


class ObstoreStore:
    """`ObjectStore` on a prefix of a container."""

    lists_whole_folders = False

    def __init__(self, client: ObstoreClient, place: CloudPlace, *, failed: Callable[[Fault], None] = ignored) -> None:
        """`failed`: called with the fault of each request that fails."""
        self._client = client
        self._container = client.container
        self._retries = Retries(client.settings.attempts, failed)
        self._prefix = place.prefix
        self.uri = place.uri

    async def get(self, key: str) -> bytes | None:
        part = await self._read(key)
        return None if part is None else part.body

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        if start >= end:
            return None if await self.head(key) is None else b""
        part = await self._read(key, (start, end))
        return None if part is None else part.body

    async def get_tail(self, key: str, size: int) -> Tail | None:
        if self._client.cloud.has_suffix_ranges:
            part = await self._read(key, {"suffix": size})
            if part is None:
                return None
            if part.whole is not None:
                return Tail(body=part.body, size=part.whole)
        # The cloud has no suffix ranges, or the object is empty.
        return await tail_by_size(self, key, size)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)

    async def head(self, key: str) -> int | None:
        full = self._full(key)
        try:
            found = await self._repeated("head", key, lambda _: obstore.head_async(self._container, full))
        except Absent:
            return None
        return int(found["size"])

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """As the port says; sends one request per 1,000 to 5,000 keys, as the server likes.

        It lists the objects in subfolders too and drops them, because obstore lists page by page only with them. The
        folders that a committer lists (manifests, references, an index, reports) have no subfolders.
        """
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"a folder ends with a slash: {prefix!r}")

        async def keys_in_it(scope: anyio.CancelScope) -> list[str]:
            keys, seconds = list[str](), scope.deadline - anyio.current_time()
            async for page in self._listing(prefix, start_after):
                # A server that does not know where to start sends all keys.
                keys += [one.key for one in self._entries(page) if _is_directly_in(one.key, prefix, start_after)]
                if limit is not None and len(keys) >= limit:
                    break
                scope.deadline = anyio.current_time() + seconds
            return sorted(keys)[:limit]

        return await self._repeated("list", prefix, keys_in_it)

    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        """As the port says. A listing that fails goes on after the last key; some objects may then come twice."""
        listing, last = self._listing(prefix, ""), ""

        async def next_page(_: anyio.CancelScope) -> Sequence[Any]:
            nonlocal listing
            try:
                return await anext(listing)
            except StopAsyncIteration:
                return ()
            except BaseException:
                listing = self._listing(prefix, last)
                raise

        while page := await self._repeated("list", prefix, next_page):
            entries = self._entries(page)
            last = entries[-1].key
            yield entries

    async def put(self, key: str, body: bytes) -> None:
        await self._repeated("put", key, partial(self._client.put, self._full(key), body, "overwrite"), body=body)

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        where, whole = f"{self.uri}/{key}", in_one_piece(body)
        put = self._client.send("put", where, partial(self._client.put, self._full(key), whole, "create"), body=whole)
        return await self._retries.once(put, what=where)

    async def copy(self, source: str, target: str) -> bool:
        """As the port says; by way of this machine, because Azure may go on copying after it has responded."""
        body = await self.get(source)
        if body is None:
            return False
        await self.put(target, body)
        return True

    async def delete(self, key: str) -> None:
        full = self._full(key)
        with suppress(Absent):
            await self._repeated("delete", key, lambda _: obstore.delete_async(self._container, full))

    async def _read(self, key: str, span: Any = None) -> _Part | None:
        """Read an object or a range of it; None when it does not exist. `span`: as obstore takes it."""
        full = self._full(key)

        async def read(scope: anyio.CancelScope) -> _Part:
            found = await obstore.get_async(self._container, full, options={"range": span} if span else None)
            start, end = found.range
            scope.deadline = max(
                scope.deadline,
                anyio.current_time() + self._client.settings.read_timeout_seconds + seconds_of(end - start),
            )
            return _Part(bytes(await found.bytes_async()), int(found.meta["size"]))

        try:
            # Very many data files are read, to check them.
            return await self._repeated("get", key, read, is_one_of_many=key.startswith(DATA))
        except Absent:
            return None
        except ConditionFailed:  # there is nothing in the range
            return _Part(b"", None)

    def _listing(self, prefix: str, start_after: str) -> Any:
        """Begin a listing of all objects below `prefix`: an async iterator of pages, as obstore has them."""
        offset = self._prefix + start_after if start_after else None
        return obstore.list(self._container, self._below(prefix), offset=offset, chunk_size=_LISTED_AT_ONCE)

    def _entries(self, found: Sequence[Any]) -> Sequence[ObjectEntry]:
        return [
            ObjectEntry(
                key=one["path"].removeprefix(self._prefix),
                size=int(one["size"]),
                modified_ms=int(one["last_modified"].timestamp() * 1000),
            )
            for one in found
        ]

    async def _repeated(
        self, operation: str, key: str, request: Callable[[anyio.CancelScope], Awaitable[_T]], **sending: Any
    ) -> _T:
        send = partial(self._client.send, operation, f"{self.uri}/{key}", request, **sending)
        return await self._retries.repeated(send, of_object=operation in ("get", "head", "delete"))

    def _below(self, prefix: str) -> str | None:
        """The folder as obstore names it."""
        return (self._prefix + prefix).rstrip("/") or None

    def _full(self, key: str) -> str:
        """Return the object's key in the container. Raises `InvalidRequest` (`path_invalid`) when there can be none."""
        require_below_root(key)
        full = self._prefix + key
        if len(full.encode("utf-8", "replace")) > _KEY_BYTES_MAX:
            raise InvalidRequest(
                f"{key[:200]!r} is longer than {self._client.cloud.name} allows: {_KEY_BYTES_MAX} bytes",
                code="path_invalid",
            )
        if _NEVER_IN_A_KEY.search(full):
            raise InvalidRequest(f"{key[:200]!r} has a control character, or is no text", code="path_invalid")
        return full


def _is_directly_in(key: str, folder: str, start_after: str) -> bool:
    return key > start_after and "/" not in key[len(folder) :]


class _Part(NamedTuple):
    """An object or a part of it."""

    body: bytes
    whole: int | None
    """Size of the whole object in bytes; None when there is nothing in the range."""
