"""Transactions that would take far more memory than bytes are refused before they are decoded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from google.protobuf.descriptor import FieldDescriptor

from committerd.errors import InvalidRequest
from committerd.lance.format.decoded_size import SMALL_BYTES_MAX, decoded_bytes_max, require_few_messages
from committerd_common.messages import Transaction
from tests.hostile.records import counted, nearly_empty, repeated_messages
from tests.lance.samples import fragment

Path = Sequence[FieldDescriptor]
PATHS = {path[-1].full_name: path for path in repeated_messages(Transaction.DESCRIPTOR)}


def appending(count: int) -> Transaction:
    made = Transaction()
    made.append.fragments.extend(fragment(number, name=f"{number:032x}") for number in range(count))
    return made


def updating(count: int) -> Transaction:
    """An Update of fragments that have all that a fragment may have: five messages each, as short as a writer's."""
    made = Transaction()
    for number in range(count):
        made.update.updated_fragments.append(fragment(number, name=f"{number:056x}", deleted=1))
        made.update.updated_fragment_offsets[number].values.append(1)
    return made


def require_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        require_few_messages(body)
    assert raised.value.code == "budget_exceeded"


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("message", [b"", b"\xf8\x01\x01"], ids=["empty", "with a number"])
def test_many_nearly_empty_messages_are_refused(path: Path, message: bytes) -> None:
    require_refused(nearly_empty(path, 20_000, message))


def test_beyond_a_megabyte_messages_have_to_be_longer() -> None:
    path = PATHS["committerd.lance.table.Transaction.Append.fragments"]
    require_few_messages(nearly_empty(path, 80_000, bytes(10)))
    require_refused(nearly_empty(path, 600_000, b"\x20\x01" * 5))


@pytest.mark.parametrize("head", [b"\x0a\x80\x00", b"\x8a\x00\x00", b"\x0a\x80\x80\x00"])
def test_a_length_or_a_tag_of_more_bytes_than_needed_hides_none(head: bytes) -> None:
    require_refused(counted(100, head * 5_000))


@pytest.mark.parametrize(
    "transaction",
    [
        appending(1),
        appending(5_000),
        appending(60_000),
        updating(70_000),
        Transaction(delete=Transaction.Delete(deleted_fragment_ids=range(100_000))),
    ],
    ids=["small", "many fragments", "very many", "as large as is allowed", "many numbers"],
)
def test_others_pass(transaction: Transaction) -> None:
    require_few_messages(transaction.SerializeToString())


def test_many_short_entries_pass() -> None:
    """They only look like more messages than they are."""
    made = Transaction()
    for number in range(2_000):
        made.update_config.config_updates.update_entries.add(key=f"k{number}", value="")
    body = made.SerializeToString()
    assert SMALL_BYTES_MAX < len(body) < 2_000 * 16
    require_few_messages(body)
    for cut in range(len(body) - 40, len(body)):
        require_few_messages(body[:cut])  # not decodable, which is not its concern


@pytest.mark.parametrize("inside", [b"\x0d1234", b"\x0912345678", b"\x08\x01", b"\x0b", b"\x08\xff", b"\xff"])
def test_fields_of_every_wire_type_are_passed_over(inside: bytes) -> None:
    entry = counted(1, counted(1, b"k" * 14)) + counted(1, b"")
    *above, updates, _ = PATHS["committerd.lance.table.Transaction.UpdateMap.update_entries"]
    require_few_messages(nearly_empty((*above, updates), 1, entry * 1_000 + inside))


_MEASURE = """
import pathlib, sys
from committerd_common.messages import Transaction
resident = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
body = sys.stdin.buffer.read()
before = resident()
transaction = Transaction.FromString(body)
print(resident() - before)
"""


def memory_of(bodies: Sequence[bytes]) -> list[int]:
    """The memory that each takes once decoded, in bytes."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ.copy()
        )
        for _ in bodies
    ]
    return [int(process.communicate(body)[0]) for process, body in zip(processes, bodies, strict=True)]


def test_what_passes_takes_no_more_memory_than_is_said() -> None:
    def as_many_as_pass(path: Path) -> bytes:
        return nearly_empty(path, 130_000, b"\xfa\x01\x03abc")

    bodies = [
        as_many_as_pass(PATHS["committerd.lance.table.Transaction.Append.fragments"]),
        Transaction(delete=Transaction.Delete(deleted_fragment_ids=[1] * 1_000_000)).SerializeToString(),
    ]
    for body, taken in zip(bodies, memory_of(bodies), strict=True):
        require_few_messages(body)
        assert taken < decoded_bytes_max(len(body))
    assert decoded_bytes_max(SMALL_BYTES_MAX) == 64 * SMALL_BYTES_MAX
