"""A field, an operation or a flag that nobody knows yet is refused by name, or kept: never dropped in silence."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import lance
import pytest

from committerd.errors import UnsupportedTable
from committerd.lance.format.manifest_file import decode
from committerd.lance.format.support import require_supported
from committerd_common.messages import IndexSection, Manifest, Transaction
from tests.committer.test_by_pylance import PylanceBench, append, bench, ids, root, work
from tests.oracle.scenario import commit_staged
from tests.oracle.unknown_fields import OPERATION, UNKNOWN, make, places, put_next, transactions, with_unknown

__all__ = ["bench", "root"]

pytestmark = pytest.mark.pylance

NUMBER = re.compile(r"#2000|field 2001|flag \d+")
"""How a message names what nobody knows."""


def later_tables(manifest: Manifest, section: IndexSection) -> dict[str, tuple[Manifest, IndexSection]]:
    found = {f"Manifest.{one}": (with_unknown(manifest, one), section) for one in places(manifest)}
    found |= {f"IndexSection.{one}": (manifest, with_unknown(section, one)) for one in places(section)}
    for bit in (18, 40, 63):
        for word in ("reader_feature_flags", "writer_feature_flags"):
            flagged = Manifest()
            flagged.CopyFrom(manifest)
            setattr(flagged, word, getattr(flagged, word) | 1 << bit)
            found[f"bit {bit} of {word}"] = flagged, section
    return found


async def test_a_table_of_a_later_lance_is_refused_by_name(root: Path, bench: PylanceBench) -> None:
    """pylance 14.0.2 does not know these either, and its commits would drop them."""
    make(root)
    latest = bench.latest()
    tables = later_tables(latest.manifest, latest.index_section)
    assert len(tables) > 15
    for name, (manifest, section) in tables.items():
        path = put_next(root, manifest, section)
        with pytest.raises(UnsupportedTable) as error:
            require_supported(decode(path.read_bytes()))
        assert NUMBER.search(str(error.value)), name
        with pytest.raises(UnsupportedTable, match="Neither can pylance") as error:
            await bench.assembler.require_buildable(await bench.head())
        assert error.value.code in ("unknown_fields", "feature_flags"), name
        path.unlink()
    assert not bench.detached()


async def test_a_record_of_a_later_lance_is_refused_by_name(root: Path, bench: PylanceBench) -> None:
    make(root)
    work(root)
    later: dict[str, Transaction] = {"operation": Transaction()}
    later["operation"].MergeFromString(OPERATION)
    for operation, staged in transactions(root).items():
        later |= {f"{operation}, {place}": with_unknown(staged, place) for place in places(staged)}
    assert len(later) > 50
    rows_before = ids(root)
    for name, one in later.items():
        one.uuid, one.read_version = str(uuid.uuid4()), lance.dataset(str(root)).version
        outcome = await commit_staged(root, one.SerializeToString())
        reason = "unknown_operation" if name == "operation" else "unknown_fields"
        assert (outcome.verdict, outcome.reason) == ("error", reason), name
        assert NUMBER.search(outcome.message), name
        (refusal,) = (await bench.commit(one)).own.settled.refusals
        assert refusal.reason == "pylance_refused", name
    assert ids(root) == rows_before
    assert not bench.detached()


@pytest.mark.parametrize("added", [UNKNOWN, OPERATION])
async def test_a_record_that_meets_a_version_of_a_later_lance_is_done_again(added: bytes, root: Path) -> None:
    """Nobody knows what its transaction conflicts with, though its content is known."""
    make(root)
    staged = append(root)
    latest = decode(max((root / "_versions").glob("*.manifest"), key=lambda one: one.stat().st_mtime).read_bytes())
    put_next(root, latest.manifest, latest.index_section, added)
    outcome = await commit_staged(root, staged.SerializeToString())
    assert (outcome.verdict, outcome.reason) == ("retryable", "conflict")
