from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import Default

from committerd_common import file_pb2, index_pb2, rowids_pb2, table_pb2, transaction_pb2
from committerd_common.messages import Transaction

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "generate" / "protos.py"
GENERATED = ROOT / "producers" / "committerd_common"
LANCE = (file_pb2, index_pb2, rowids_pb2, table_pb2, transaction_pb2)


def test_the_generated_code_is_what_the_protos_say() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_drift_is_noticed_and_named(tmp_path: Path) -> None:
    for folder in ("protos/lance", "protos/committerd", "producers/committerd_common", "scripts/generate"):
        (tmp_path / folder).mkdir(parents=True)
        for source in (ROOT / folder).glob("*"):
            if source.suffix == ".proto" or "_pb2" in source.name or source == SCRIPT:
                (tmp_path / folder / source.name).write_bytes(source.read_bytes())
    generated = tmp_path / "producers" / "committerd_common"
    (generated / "file_pb2.py").write_text("# edited\n")
    (generated / "gone_pb2.py").write_text("# no longer in protos/\n")
    (generated / "index_pb2.pyi").unlink()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / SCRIPT.relative_to(ROOT)), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    check = run("--check")
    assert check.returncode == 1
    assert "file_pb2.py, gone_pb2.py, index_pb2.pyi; run `make protos`" in check.stdout
    assert (generated / "gone_pb2.py").exists()
    assert run().returncode == 0
    assert not (generated / "gone_pb2.py").exists()
    assert run("--check").returncode == 0
    assert (generated / "file_pb2.py").read_bytes() == (GENERATED / "file_pb2.py").read_bytes()


def test_another_librarys_lance_messages_can_be_loaded_beside_ours() -> None:
    theirs = FileDescriptorProto(name="table.proto", package="lance.table", syntax="proto3")
    theirs.message_type.append(DescriptorProto(name="Manifest"))
    Default().AddSerializedFile(theirs.SerializeToString())
    assert Default().FindMessageTypeByName("lance.table.Manifest").fields == []
    for module in LANCE:
        assert module.DESCRIPTOR.package.startswith("committerd.lance.")
        assert module.DESCRIPTOR.name.startswith("committerd_common/")


def test_a_transaction_has_the_fifteen_operations_of_lance_4() -> None:
    (operation,) = Transaction.DESCRIPTOR.oneofs
    assert {field.number: field.name for field in operation.fields} == {
        100: "append",
        101: "delete",
        102: "overwrite",
        103: "create_index",
        104: "rewrite",
        105: "merge",
        106: "restore",
        107: "reserve_fragments",
        108: "update",
        109: "project",
        110: "update_config",
        111: "data_replacement",
        112: "update_mem_wal_state",
        113: "clone",
        114: "update_bases",
    }


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("Manifest", {*range(1, 17), *range(18, 27)}),
        ("DataFragment", set(range(1, 11))),
        ("IndexMetadata", set(range(1, 12))),
        ("DeletionFile", {1, 2, 3, 4, 7}),
    ],
)
def test_messages_have_the_fields_that_we_mean_to_know(message: str, numbers: set[int]) -> None:
    descriptor = table_pb2.DESCRIPTOR.message_types_by_name[message]
    assert {field.number for field in descriptor.fields} == numbers
