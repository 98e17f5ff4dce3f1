"""An Overwrite gets the metadata of its schema from its data files, because pylance's transactions lack it."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from committerd.errors import StoreUnavailable
from committerd.lance.format.data_file import TAIL_BYTES
from committerd.queue.dedupe import Refused
from committerd.queue.outcomes import Status
from committerd.stores.local import LocalStore
from committerd.stores.port import ObjectStore, Tail
from committerd.table.prepare import Prepared, prepare
from committerd.table.versions import Table
from committerd_client.staging.fragments import fragment as message_of
from committerd_common.messages import Transaction
from tests.lance import samples
from tests.lance.samples import column, fragment, transaction
from tests.table.scene import ANY, Scene, sources

FOOTER_BYTES = 40


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t")


def overwriting(scene: Scene, data: pa.Table, *, version: str = "2.0") -> Transaction:
    """As pylance stages it."""
    made = write_fragments(data, str(scene.root), mode="create", data_storage_version=version)
    schema = [column(place) for place in range(len(data.schema))]
    return transaction(overwrite=Transaction.Overwrite(fragments=[message_of(one) for one in made], schema=schema))


def wide(columns: int) -> pa.Table:
    """The descriptor of its file begins before the part that is read first."""
    data = pa.table({f"column {place}": pa.array([1], pa.int64()) for place in range(columns)})
    return data.replace_schema_metadata({"k": "v"})


@pytest.mark.pylance
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("columns", [1, 2000])
async def test_it_is_read_from_a_data_file(scene: Scene, version: str, columns: int) -> None:
    staged = overwriting(scene, wide(columns), version=version)
    path = scene.root / "data" / staged.overwrite.fragments[0].files[0].path
    assert (path.stat().st_size > TAIL_BYTES) == (columns > 1)
    staged.read_version = 0
    answer = await scene.commit(staged)
    assert isinstance(answer, Prepared)
    assert dict(answer.file.manifest.schema_metadata) == {"k": b"v"}
    assert dict(answer.transaction.overwrite.schema_metadata) == {"k": b"v"}
    assert lance.dataset(str(scene.root)).schema.metadata == {b"k": b"v"}


@pytest.mark.pylance
async def test_it_is_found_wherever_the_table_of_buffers_stands(scene: Scene) -> None:
    """Only the footer has a fixed place in a data file."""
    staged = overwriting(scene, wide(1))
    staged.read_version = 0
    file = staged.overwrite.fragments[0].files[0]
    path = scene.root / "data" / file.path
    body = path.read_bytes()
    path.write_bytes(body[:-FOOTER_BYTES] + bytes(TAIL_BYTES) + body[-FOOTER_BYTES:])
    file.file_size_bytes = path.stat().st_size
    answer = await scene.commit(staged)
    assert isinstance(answer, Prepared)
    assert dict(answer.file.manifest.schema_metadata) == {"k": b"v"}


@pytest.mark.pylance
@pytest.mark.parametrize(
    "entries", [{"k": "v" * (2**20 + 1)}, {str(one): "v" * 2**18 for one in range(5)}, {"\0": "v"}]
)
async def test_more_than_a_table_should_carry_is_refused(scene: Scene, entries: dict[str, str]) -> None:
    staged = overwriting(scene, pa.table({"a": [1]}).replace_schema_metadata(entries))
    staged.read_version = 0
    answer = await scene.commit(staged)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.reason) == (Status.INVALID, "text_invalid")
    assert "the schema of its data file" in answer.message


async def kept(scene: Scene, staged: Transaction) -> bool:
    """Whether a table that is created by this Overwrite has the schema metadata that it says, and no other."""
    staged.read_version = 0
    answer = await prepare(scene.table(), None, staged, options=ANY, sources=sources())
    assert isinstance(answer, Prepared), answer
    return dict(answer.transaction.overwrite.schema_metadata) == dict(staged.overwrite.schema_metadata)


@pytest.mark.pylance
async def test_what_the_transaction_says_counts(scene: Scene) -> None:
    staged = overwriting(scene, wide(1))
    staged.overwrite.schema_metadata["other"] = b"1"
    assert await kept(scene, staged)


@pytest.mark.pylance
async def test_a_file_that_says_none_adds_none(scene: Scene) -> None:
    staged = overwriting(scene, pa.table({"a": [1]}))
    assert await kept(scene, staged)


@pytest.mark.parametrize("body", [None, b"", b"x" * 100, b"\0" * 96 + b"LANC"])
async def test_a_file_that_is_none_adds_none(scene: Scene, body: bytes | None) -> None:
    staged = transaction(overwrite=Transaction.Overwrite(fragments=[fragment(0)], schema=[column(0)]))
    if body is not None:
        scene.path("data/f0.lance").write_bytes(body)
    assert await kept(scene, staged)


async def test_nor_do_no_files_and_those_of_a_base_that_can_not_be_read(scene: Scene) -> None:
    nothing = transaction(overwrite=Transaction.Overwrite(schema=[column(0)]))
    elsewhere = transaction(overwrite=Transaction.Overwrite(fragments=[samples.fragment(0)], schema=[column(0)]))
    elsewhere.overwrite.fragments[0].files[0].base_id = 7
    elsewhere.overwrite.initial_bases.add(id=7, path=str(scene.root.with_name("elsewhere")))
    for staged in (nothing, elsewhere):
        assert await kept(scene, staged)


async def test_a_base_whose_store_is_away_stops_nobody(scene: Scene) -> None:
    class Away(LocalStore):
        async def get_tail(self, key: str, size: int) -> Tail | None:
            raise StoreUnavailable("no such bucket")

    def away(uri: str) -> ObjectStore:
        return Away(Path(uri))

    staged = transaction(overwrite=Transaction.Overwrite(fragments=[samples.fragment(0)], schema=[column(0)]))
    staged.read_version = 0
    with pytest.raises(StoreUnavailable):
        await prepare(Table(Away(scene.root)), None, staged, options=ANY, sources=sources())
    staged.overwrite.initial_bases.add(id=7, path=str(scene.root / "elsewhere"))
    staged.overwrite.fragments[0].files[0].base_id = 7
    answer = await prepare(scene.table(), None, staged, options=ANY, sources=sources(), open_store=away)
    assert isinstance(answer, Prepared)
    assert not answer.file.manifest.schema_metadata
