"""Probes whether a store gives the guarantees that a committer needs, on objects of its own beside the manifests.

Correctness rests on one guarantee: of several concurrent writers of one new key, exactly one gets `Created`. A server
that ignores the condition responds 200 to all of them. No error ever shows that, and the second commit silently
replaces the first.

The objects are named `_versions/~probe-SECONDS-...`. No reader of Lance takes them for manifests, and they sort after
all manifests. The probe deletes them at its end. Objects of a killed probe are deleted by a later one, after an hour.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

import anyio
from anyio import CapacityLimiter

from committerd.concurrency import for_each, map_each
from committerd.errors import CommitterError, PutUnknown, RefusedToRun, SettingsError, StoreUnavailable
from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.port import Created, Exists, ObjectStore, Tail
from committerd_common.paths import VERSIONS

_log = logging.getLogger(__name__)

ROUNDS = 3
CONTENDERS = 4
"""Concurrent puts of one key, in each round."""

_PREFIX = f"{VERSIONS}~probe-"
_LEFTOVER_SECONDS = 3600
_CLEANING_SECONDS_MAX = 10.0
_TRIES = 5
_BODY = bytes(range(256))
_STARTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    fault: str = ""
    """The store's fault; empty when the check passed."""
    seconds: float

    @property
    def good(self) -> bool:
        return not self.fault


class _Fault(CommitterError):
    """The store breaks a guarantee."""


async def probe(store: ObjectStore, *, now: datetime, new_uuid: Callable[[], UUID]) -> Sequence[Check]:
    """Run all checks and return their results.

    Raises `StoreUnavailable` when the store does not respond, which proves nothing.
    """
    trial = _Trial(store, f"{_PREFIX}{int(now.timestamp()):010}-{new_uuid().hex[:12]}-")

    async def run(check: tuple[str, Callable[[], Awaitable[None]]]) -> Check:
        name, attempt = check
        start, fault = anyio.current_time(), ""
        try:
            await attempt()
        except _Fault as found:
            fault = str(found)
        except SettingsError as found:
            if found.code != "no_atomic_create":
                raise
            fault = str(found)
        return Check(name=name, fault=fault, seconds=anyio.current_time() - start)

    try:
        return await map_each(trial.attempts(), run)  # together, because a committer starts after them
    finally:
        with anyio.move_on_after(_CLEANING_SECONDS_MAX, shield=True):
            await trial.clean(now)


class Neighbours:
    """What the tables of one bucket share in a process: the proof of the bucket, and the turns to start."""

    def __init__(self) -> None:
        self.is_proved = False
        """Whether the bucket has passed the probe: the guarantees are the bucket's, not the table's."""
        self.probing = anyio.Lock()
        self.starts = CapacityLimiter(_STARTS_AT_ONCE)
        """The tables that read their versions and topics at a time. All at once would wait for each other so long that
        their requests time out, and they would begin again. A bucket that hangs takes the turns of no other."""


class Prover:
    """Probes a store until it passes once, then never again."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        wall_clock: Callable[[], datetime],
        new_uuid: Callable[[], UUID],
        neighbours: Neighbours | None = None,
    ) -> None:
        """`neighbours`: the other tables of the bucket; None = this is the only one."""
        self._store = store
        self._wall_clock = wall_clock
        self._new_uuid = new_uuid
        self._neighbours = neighbours or Neighbours()

    async def prove(self) -> None:
        """Probe the store unless it, or another table of its bucket, has passed before.

        Raises `RefusedToRun` (`store_unsafe`) for a store that fails, and `StoreUnavailable` as `probe`.
        """
        if not self._neighbours.is_proved:
            async with self._neighbours.probing:
                if not self._neighbours.is_proved:
                    await self._probe()

    async def _probe(self) -> None:
        start, uri = anyio.current_time(), self._store.uri
        checks = await probe(self._store, now=self._wall_clock(), new_uuid=self._new_uuid)
        faults = [f"{check.name}: {check.fault}" for check in checks if not check.good]
        if faults:
            raise RefusedToRun(
                f"the store of {uri} can't keep a table safe: {'; '.join(faults)}. Nothing was committed. Use a "
                "server or file system that does it right (on S3: conditional writes, `If-None-Match: *` on PutObject, "
                "including proxies on the way); `committerd probe` tries again",
                code="store_unsafe",
            )
        self._neighbours.is_proved = True
        _log.info("store.proved", extra={"uri": uri, "duration_seconds": round(anyio.current_time() - start, 3)})


class _Trial:
    """The checks of one probe, and the objects that they create."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._made: set[str] = set()

    def attempts(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        return (
            # The object store needs no conditional puts where an external manifest store decides.
            ("manifest_store", partial(self._decides, self._store))
            if isinstance(self._store, ExternalManifests)
            else ("put_if_absent", self._races),
            ("read", self._reads),
            ("list", self._lists),
            ("copy", self._copies),
            ("delete", self._deletes),
        )

    async def _decides(self, store: ExternalManifests) -> None:
        if not await store.conditions_hold():
            raise _Fault(
                "a put that must only create replaced an entry that existed, so one commit would replace another"
            )

    async def clean(self, now: datetime) -> None:
        """Delete the objects of this probe and the leftovers of killed ones, as far as the store permits."""
        try:
            for key in await self._store.list(VERSIONS, start_after=_PREFIX):
                made_at = key.removeprefix(_PREFIX).partition("-")[0]
                if made_at.isdecimal() and int(made_at) < now.timestamp() - _LEFTOVER_SECONDS:
                    self._made.add(key)
            await for_each(sorted(self._made), self._store.delete)
        except StoreUnavailable:
            return

    async def _races(self) -> None:
        proved: list[bool] = []

        async def race(number: int) -> None:
            proved.append(await self._race(self._key(f"race-{number}")))

        await for_each(range(ROUNDS), race)
        if not any(proved):
            raise StoreUnavailable("the store replied to none of several conditional puts")

    async def _race(self, key: str) -> bool:
        """Put one new key several times concurrently, then once more; False when too few responses came to decide."""
        winners: list[bytes] = []
        unknown: list[bytes] = []

        async def contend(body: bytes) -> None:
            try:
                if isinstance(await self._store.put_if_absent(key, body), Created):
                    winners.append(body)
            except PutUnknown:
                unknown.append(body)

        await for_each([f"contender {number} of {key}".encode() for number in range(CONTENDERS)], contend)
        stands = await self._store.get(key)
        if len(winners) > 1:
            raise _Fault(
                f"{len(winners)} of {CONTENDERS} writers of one new object were told that they had created it: "
                "one commit would replace another, and its rows would be lost"
            )
        if stands is None and unknown and not winners:
            return False
        if stands not in (winners or unknown):
            raise _Fault("an object contains other bytes than those of the writer that was told it had created it")
        if await self._put(key, b"too late") == Created() or await self._store.get(key) != stands:
            raise _Fault("a put that must only create replaced an object that existed")
        return True

    async def _reads(self) -> None:
        key = self._key("read")
        await self._store.put(key, _BODY[::-1] + _BODY)
        await self._store.put(key, _BODY)
        store, size = self._store, len(_BODY)
        wanted: list[tuple[str, Callable[[], Awaitable[object]], object]] = [
            ("a whole object", lambda: store.get(key), _BODY),
            ("a range", lambda: store.get_range(key, 3, 17), _BODY[3:17]),
            ("a range beyond the end", lambda: store.get_range(key, 250, 300), _BODY[250:]),
            ("the end of an object", lambda: store.get_tail(key, 16), Tail(body=_BODY[-16:], size=size)),
            ("a small object's end", lambda: store.get_tail(key, 1000), Tail(body=_BODY, size=size)),
            ("an object's size", lambda: store.head(key), size),
            ("an object that is not there", lambda: store.get(self._key("nothing")), None),
        ]

        async def read(one: tuple[str, Callable[[], Awaitable[object]], object]) -> None:
            what, call, expected = one
            _same(what, await call(), expected)

        await for_each(wanted, read)

    async def _lists(self) -> None:
        keys = [self._key(f"list-{name}") for name in ("1", "10", "2", "B", "a")]
        await for_each(reversed(keys), lambda key: self._store.put(key, b""))
        store, before = self._store, f"{self._prefix}list-"
        _same("a listing", await store.list(VERSIONS, start_after=before, limit=len(keys)), keys)
        _same("a listing from a key on", await store.list(VERSIONS, start_after=keys[1], limit=2), keys[2:4])
        await store.delete(keys[0])
        _same("a listing after a delete", await store.list(VERSIONS, start_after=before, limit=1), keys[1:2])

    async def _copies(self) -> None:
        source, target = self._key("copy-source"), self._key("copy-target")
        await for_each([(source, _BODY), (target, b"old")], lambda one: self._store.put(*one))
        _same("a copy", await self._store.copy(source, target), True)
        _same("a copied object", await self._store.get(target), _BODY)
        _same("a copy of nothing", await self._store.copy(self._key("nothing"), target), False)

    async def _deletes(self) -> None:
        key = self._key("delete")
        await self._store.put(key, _BODY)
        await self._store.delete(key)
        _same("a deleted object", await self._store.get(key), None)
        if await self._put(key, _BODY) != Created():
            raise _Fault("the key of a deleted object can't be used again")

    async def _put(self, key: str, body: bytes) -> Created | Exists:
        """Put if absent, and retry while the put result is unknown."""
        unknown = ""
        for _ in range(_TRIES):
            try:
                result = await self._store.put_if_absent(key, body)
            except PutUnknown as error:
                unknown = str(error)
                continue
            # Our own earlier attempt may have created it.
            return Created() if unknown and await self._store.get(key) == body else result
        raise StoreUnavailable(f"the store does not reply to a put: {unknown}")

    def _key(self, name: str) -> str:
        self._made.add(self._prefix + name)
        return self._prefix + name


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise _Fault(f"{what} is {_shown(found)}, and should be {_shown(wanted)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
