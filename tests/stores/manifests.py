"""A table with an external manifest store, as several processes see it, and the ways to read its first version."""

from __future__ import annotations

from committerd.stores.external_manifests import ExternalManifests
from committerd.stores.port import Exists, ManifestEntry, Tail
from committerd_common.paths import NamingScheme, manifest_key, parse_staging_name
from tests.contracts.entries import FakeManifests, Shelf, Trouble, troubled_entries, troubled_objects
from tests.simulation.store import Bucket, FakeStore

FINAL = manifest_key(1, NamingScheme.V2)
SECOND = manifest_key(2, NamingScheme.V2)
OTHERS = f"{FINAL}-11111111-2222-4333-8444-555555555555"

WRITE_STEPS = ["objects.put", "entries.put_if_absent", "objects.copy", "entries.replace", "objects.delete"]
"""The five steps, in their order."""


class CrashError(BaseException):
    """The process ends here."""


class Scene:
    """One table as several processes see it."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.shelf = Shelf()
        self.events: list[str] = []
        self.taken: set[str] = set()
        """Objects that the test removed."""

    def process(self, trouble: Trouble | None = None) -> ExternalManifests:
        trouble = trouble or Trouble()
        return ExternalManifests(
            troubled_objects(FakeStore(self.bucket), trouble),
            troubled_entries(FakeManifests(self.shelf), trouble),
            uri="memory://t?table",
            count=self.events.append,
        )

    def take_away(self, key: str) -> None:
        """Remove an object, as a cleanup or an accident does."""
        self.bucket.delete(key)
        self.taken.add(key)

    @property
    def staged(self) -> list[str]:
        return [key for key in self.bucket.objects if parse_staging_name(key.removeprefix("_versions/"))]

    def require_finished(self, body: bytes, *, version: int = 1) -> None:
        """Check that the version is in its place, that its entry says so, and that nothing temporary is left."""
        key = manifest_key(version, NamingScheme.V2)
        assert self.bucket.objects[key] == body
        assert self.shelf.entries[version] == ManifestEntry(version=version, key=key, size=len(body))
        assert not self.staged


async def _lists(store: ExternalManifests) -> bool:
    return FINAL in await store.list("_versions/")


async def _gets(store: ExternalManifests) -> bool:
    return await store.get(FINAL) == b"one"


async def _gets_tail(store: ExternalManifests) -> bool:
    return await store.get_tail(FINAL, 2) == Tail(body=b"ne", size=3)


async def _gets_range(store: ExternalManifests) -> bool:
    return await store.get_range(FINAL, 0, 2) == b"on"


async def _has_head(store: ExternalManifests) -> bool:
    return await store.head(FINAL) == 3


async def _finds_it_taken(store: ExternalManifests) -> bool:
    return await store.put_if_absent(FINAL, b"two") == Exists()


LOOKS = {
    "list": _lists,
    "get": _gets,
    "get_tail": _gets_tail,
    "get_range": _gets_range,
    "head": _has_head,
    "put_if_absent": _finds_it_taken,
}
