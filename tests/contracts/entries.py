"""An external manifest store in memory, and one that fails where a test wants it to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from committerd.errors import PutUnknown, StoreUnavailable
from committerd.stores.port import Created, Exists, ManifestEntry, ManifestStore, ObjectStore
from committerd_common.paths import VERSION_MAX
from tests.simulation.faults import Lost, Refused, Weather


class Shelf:
    """The entries. Several stores can share one shelf, as several processes share a table."""

    def __init__(self) -> None:
        self.entries: dict[int, ManifestEntry] = {}


class FakeManifests:
    """`committerd.stores.port.ManifestStore` as one process sees a shelf."""

    def __init__(self, shelf: Shelf, weather: Weather | None = None) -> None:
        self._entries = shelf.entries
        self._weather = weather or Weather()

    async def get(self, version: int) -> ManifestEntry | None:
        found: ManifestEntry | None = await self._call(f"get {version}", lambda: self._entries.get(version))
        return found

    async def latest(self) -> ManifestEntry | None:
        def highest() -> ManifestEntry | None:
            return max(self._versions(), key=lambda entry: entry.version, default=None)

        found: ManifestEntry | None = await self._call("latest", highest)
        return found

    async def put_if_absent(self, entry: ManifestEntry) -> Created | Exists:
        def put() -> Created | Exists:
            if entry.version in self._entries:
                return Exists()
            self._entries[entry.version] = entry
            return Created()

        try:
            answer, fate = await self._weather.journey(f"entries.put_if_absent {entry.version}", put)
        except Refused as refused:
            raise StoreUnavailable(str(refused)) from refused
        except Lost as lost:
            raise PutUnknown(str(lost)) from lost
        return Exists() if fate.ends == "doubled" else answer

    async def replace(self, entry: ManifestEntry) -> bool:
        def put() -> bool:
            there = entry.version in self._entries
            if there:
                self._entries[entry.version] = entry
            return there

        replaced: bool = await self._call(f"replace {entry.version}", put)
        return replaced

    async def delete(self, version: int, *, key: str) -> None:
        def drop() -> None:
            entry = self._entries.get(version)
            if entry is not None and entry.key == key:
                del self._entries[version]

        await self._call(f"delete {version}", drop)

    def _versions(self) -> Iterable[ManifestEntry]:
        return (entry for entry in self._entries.values() if entry.version <= VERSION_MAX)

    async def _call(self, call: str, effect: Callable[[], Any]) -> Any:
        try:
            return (await self._weather.journey(f"entries.{call}", effect))[0]
        except (Refused, Lost) as error:
            raise StoreUnavailable(str(error)) from error


@dataclass
class Trouble:
    """Which calls fail, before or after their effect: `objects.copy`, `entries.get`, or, of one folder's objects,
    `objects.put _versions`.
    """

    before: dict[str, BaseException] = field(default_factory=dict)
    after: dict[str, BaseException] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    """All calls, in order."""
    once: bool = True
    """Only the first call fails."""
    meanwhile: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    """Actions of others just before a call has its effect, once."""

    def add(self, when: str, call: str, error: BaseException) -> Trouble:
        """Add a call that fails, `before` or `after` its effect."""
        (self.before if when == "before" else self.after)[call] = error
        return self

    def meet(self, planned: dict[str, BaseException], names: Iterable[str]) -> None:
        for name in names:
            error = planned.pop(name, None) if self.once else planned.get(name)
            if error is not None:
                raise error


class _Troubled:
    """Any port, with failures before and after its calls."""

    def __init__(self, name: str, inner: object, trouble: Trouble) -> None:
        self._name = name
        self._inner = inner
        self._trouble = trouble

    def __getattr__(self, method: str) -> Any:
        inner = getattr(self._inner, method)
        if not callable(inner):
            return inner
        call = f"{self._name}.{method}"

        async def called(*args: Any, **kwargs: Any) -> Any:
            names = [call, *(f"{call} {argument.partition('/')[0]}" for argument in args if isinstance(argument, str))]
            self._trouble.calls.append(call)
            self._trouble.meet(self._trouble.before, names)
            others = self._trouble.meanwhile.pop(call, None)
            if others is not None:
                await others()
            answer = await inner(*args, **kwargs)
            self._trouble.meet(self._trouble.after, names)
            return answer

        return called


def troubled_objects(objects: ObjectStore, trouble: Trouble) -> ObjectStore:
    """The store; its calls are named `objects.put` and so on."""
    return cast(ObjectStore, _Troubled("objects", objects, trouble))


def troubled_entries(entries: ManifestStore, trouble: Trouble) -> ManifestStore:
    """The manifest store; its calls are named `entries.get` and so on."""
    return cast(ManifestStore, _Troubled("entries", entries, trouble))
