"""What builds versions where committerd's knowledge ends, as far as the simulation needs it."""

from __future__ import annotations

import random

from committerd.errors import StoreUnavailable, UnsupportedRequest
from committerd.lance.format.manifest_file import ManifestFile, decode, encode
from committerd.stores.port import ObjectStore
from committerd.table.needs import BuiltByPylance, PylanceBuilt
from committerd_common.messages import Manifest, Transaction
from committerd_common.paths import NamingScheme, manifest_key
from tests.simulation.faults import Lost, Refused, Weather

FLAG = 1 << 14
"""The feature flag of a table that committerd does not know."""


class Pylance:
    """`table.fetching.BuildWithPylance`: appends, and commits nothing, under a number outside the history."""

    def __init__(self, weather: Weather, rng: random.Random) -> None:
        self._weather = weather
        self._rng = rng

    async def __call__(self, store: ObjectStore, need: BuiltByPylance) -> PylanceBuilt:
        base = await store.get(manifest_key(need.version, NamingScheme.V2))
        if base is None:
            raise StoreUnavailable(f"version {need.version} is gone")
        try:
            built, _ = await self._weather.journey(
                f"pylance.build {need.version}", lambda: self._built(decode(base), need.transaction)
            )
        except (Refused, Lost) as error:
            raise StoreUnavailable(str(error)) from error
        return built

    def _built(self, base: ManifestFile, asked: Transaction) -> PylanceBuilt:
        body = self._committed(base, asked)
        nothing = Transaction(read_version=decode(body).version)
        nothing.update_config.SetInParent()
        return PylanceBuilt(body, self._committed(decode(body), nothing), "")

    def _committed(self, base: ManifestFile, asked: Transaction) -> bytes:
        if asked.WhichOneof("operation") not in ("append", "update_config"):
            raise UnsupportedRequest("this pylance only appends", code="pylance_refused")
        made = Manifest()
        made.CopyFrom(base.manifest)
        made.version = 1 << 63 | self._rng.getrandbits(62)
        for fragment in asked.append.fragments:
            made.max_fragment_id += 1
            made.fragments.add().CopyFrom(fragment)
            made.fragments[-1].id = made.max_fragment_id
        return encode(made, base.indices, asked)
