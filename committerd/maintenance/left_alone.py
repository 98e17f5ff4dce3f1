"""What maintenance leaves alone, because pylance can't rewrite it: fragments and indices, until when, and why.

The list is an object of the table, so a run knows what earlier runs have tried. What is proved to fail is left alone
after its first failure. What may have failed for another reason, such as a store that was away, is left alone after its
third failure. It is tried again after an hour, and after twice as long each further time, up to 30 days; and at once by
another version of pylance.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from committerd.errors import ObjectUnreadable
from committerd.maintenance.report import FOLDER
from committerd.stores.port import ObjectStore

LEFT_ALONE = f"{FOLDER}left_alone.json"
_PAUSE_MS_FIRST = 3_600_000
_PAUSE_MS_MAX = 30 * 24 * 3_600_000
_UNPROVED_MAX = 2
"""So often something may fail for an unknown reason before it is left alone."""
_WHY_CHARS_MAX = 500
_BYTES_MAX = 8 * 1024 * 1024
"""A larger object under that name is not read: the list of 10,000 failures is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Fragments that were to be rewritten together, or an index, and what became of it."""

    fragments: tuple[int, ...] = ()
    """Ids, ascending; none for an index."""
    index: str = ""
    """Its name; empty for fragments."""
    why: str
    times: int = 1
    """How often it has failed."""
    until_ms: int
    """It is left alone until then (Unix time)."""


@dataclass(frozen=True, slots=True)
class FailedWork:
    """All that has failed, by one version of pylance. Immutable."""

    pylance: str
    entries: tuple[Failure, ...] = ()

    def after_failure(
        self, *, fragments: Collection[int] = (), index: str = "", why: str, proved: bool, now_ms: int
    ) -> FailedWork:
        """What has failed, with one more failure."""
        given = set(fragments)
        hit = [one for one in self.entries if self._is_hit(one, given, index)]
        times = 1 + max((one.times for one in hit), default=0)
        pauses = times if proved else times - _UNPROVED_MAX
        pause_ms = min(_PAUSE_MS_FIRST * 2 ** min(pauses - 1, 20), _PAUSE_MS_MAX) if pauses > 0 else 0
        made = Failure(
            fragments=tuple(sorted(given)),
            index=index,
            why=why[:_WHY_CHARS_MAX],
            times=times,
            until_ms=now_ms + pause_ms,
        )
        return replace(self, entries=(*self._without(given, index), made))

    def after_success(self, *, fragments: Collection[int] = (), index: str = "") -> FailedWork:
        """What has failed, without what is done now."""
        return replace(self, entries=tuple(self._without(set(fragments), index)))

    def among(self, *, fragments: Collection[int], indices: Collection[str]) -> FailedWork:
        """The entries of fragments and indices that the table still has."""
        gone = {id for one in self.entries for id in one.fragments}.difference(fragments)
        left = (one for one in self._without(gone, "") if not one.index or one.index in indices)
        return replace(self, entries=tuple(left))

    def left_alone(self, now_ms: int) -> tuple[Failure, ...]:
        """What is left alone now."""
        return tuple(one for one in self.entries if one.until_ms > now_ms)

    def _without(self, fragments: Collection[int], index: str) -> Iterable[Failure]:
        for one in self.entries:
            left = tuple(id for id in one.fragments if id not in fragments)
            if (left and not one.index) or (one.index and one.index != index):
                yield replace(one, fragments=left)

    @staticmethod
    def _is_hit(one: Failure, fragments: set[int], index: str) -> bool:
        return one.index == index if index else not fragments.isdisjoint(one.fragments)

    def encode(self) -> bytes:
        """The object's bytes."""
        return json.dumps({"pylance": self.pylance, "entries": [asdict(one) for one in self.entries]}).encode()


def decode(body: bytes | None, *, pylance: str = "") -> FailedWork:
    """What an object says. Nothing if it is damaged, or if another version of pylance has failed; empty = any."""
    try:
        found = json.loads(body) if body is not None else {}
        entries = [_entry(one) for one in found.get("entries", ())]
        made = FailedWork(str(found.get("pylance", pylance)), tuple(entries))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return FailedWork(pylance)
    return made if pylance in ("", made.pylance) else FailedWork(pylance)


def _entry(found: Mapping[str, Any]) -> Failure:
    """An entry of an object. Raises `TypeError` or `LookupError` if it is none."""
    made = Failure(**{**found, "fragments": tuple(found["fragments"])})
    numbers, texts = (*made.fragments, made.times, made.until_ms), (made.index, made.why)
    if not all(isinstance(one, int) for one in numbers) or not all(isinstance(one, str) for one in texts):
        raise TypeError("a field has another type")
    return replace(made, why=made.why[:_WHY_CHARS_MAX])


async def read_failed(store: ObjectStore, *, pylance: str = "") -> FailedWork:
    """What has failed before. Raises `StoreUnavailable`."""
    try:
        body = await store.get_range(LEFT_ALONE, 0, _BYTES_MAX + 1)
        return decode(None if body is None or len(body) > _BYTES_MAX else body, pylance=pylance)
    except ObjectUnreadable:
        return FailedWork(pylance)
