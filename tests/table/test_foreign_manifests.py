"""Every number of a manifest that a foreign writer may have left at a bound of its type.

The latest version is either refused for what it is (`CorruptTable`, `UnsupportedTable`), or the next two versions are
built on it. Nothing else may come of it: any other error would stop the table's queue, at each record anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from committerd.commands.printing import when
from committerd.commands.status.table import look_at_table
from committerd.errors import CorruptTable, UnsupportedTable
from committerd.lance.format.manifest_file import decode, encode
from committerd.queue.dedupe import Refused
from committerd.table.prepare import Prepared
from committerd_common.messages import IndexMetadata, Manifest, Transaction
from tests.lance.format.golden_tables import facts, manifest_bytes
from tests.lance.samples import fragment, transaction
from tests.oracle.bounds import with_a_number_at_a_bound
from tests.table.scene import Scene

WRITER = "14.0.2"


def versions(table: str, version: int) -> Iterator[tuple[str, bytes]]:
    """The version of a table, each time with one number at a bound, in its manifest or its indices."""
    latest = decode(manifest_bytes(WRITER, table, version))
    written = transaction(latest.version - 1, reserve_fragments=Transaction.ReserveFragments())
    numbers: Iterator[tuple[str, Manifest]] = with_a_number_at_a_bound(latest.manifest)
    for name, changed in numbers:
        if changed.version == latest.version:  # which version it is, the name of the file says too
            yield name, encode(changed, latest.indices, written)
    for position, index in enumerate(latest.indices):
        for name, one in with_a_number_at_a_bound(index):
            indices: Sequence[IndexMetadata] = [*latest.indices[:position], one, *latest.indices[position + 1 :]]
            yield f"{index.name}.{name}", encode(latest.manifest, indices, written)


def config(read_version: int, key: str) -> Transaction:
    staged = transaction(read_version)
    staged.update_config.config_updates.update_entries.add(key=key, value="x")
    return staged


@pytest.mark.parametrize("table", ["plain", "stable_row_ids", "fragment_reuse"])
async def test_no_number_in_a_manifest_stops_the_queue(table: str, tmp_path: Path) -> None:
    built = refused = 0
    version = max(map(int, facts(WRITER)[table]))
    for number, (name, body) in enumerate(versions(table, version)):
        scene = Scene(tmp_path / str(number))
        scene.write_manifest(version, body)
        append = transaction(version, append=Transaction.Append(fragments=[fragment(0, name="new")]))
        try:
            outcomes = [await scene.commit(one) for one in (append, config(version, "a"), config(version, "b"))]
        except (CorruptTable, UnsupportedTable):
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error
        else:
            assert isinstance(outcomes[0], Prepared | Refused), name
            assert all(isinstance(one, Prepared) for one in outcomes[1:]), name
            built += 1
        try:
            found = await look_at_table(scene.table(), 10)
        except (CorruptTable, UnsupportedTable):
            continue
        assert all(when(one.timestamp_ms) for one in found.versions), name
    assert built > 100
    assert refused > 50
