"""The client's use of protobuf, in any installed runtime: prints its version and implementation."""

from __future__ import annotations

import google.protobuf
from google.protobuf.internal import api_implementation

from committerd_common.errors import InvalidRequest
from committerd_common.messages import (
    COMMITTED,
    DataFragment,
    Outcome,
    Status,
    Transaction,
    VectorIndexDetails,
)
from committerd_common.request import decode_transaction
from committerd_common.unknown_fields import unknown_fields

UUID = "6b2f4d1e-0c1a-4f8e-9a55-2f3d7c9b1e00"
UNKNOWN = b"\x98\x3e\x05"
"""Field 995, a number."""


def encoding_is_kept() -> None:
    transaction = Transaction(uuid=UUID, read_version=3)
    fragment = transaction.append.fragments.add(id=1, physical_rows=10)
    fragment.files.add(path="x.lance", fields=[0, 1], column_indices=[0, 1])
    transaction.transaction_properties["made-by"] = "a test"
    body = transaction.SerializeToString(deterministic=True)
    assert body == (
        b'\x08\x03\x12$6b2f4d1e-0c1a-4f8e-9a55-2f3d7c9b1e00"\x11\n\x07made-by\x12\x06a test'
        b"\xa2\x06\x19\n\x17\x08\x01\x12\x11\n\x07x.lance\x12\x02\x00\x01\x1a\x02\x00\x01 \n"
    ), body
    assert decode_transaction(body, bytes_max=1000) == transaction
    assert transaction.WhichOneof("operation") == "append"
    assert type(transaction.append) is Transaction.Append
    assert Status.Name(COMMITTED) == "COMMITTED"
    assert Outcome.FromString(Outcome(uuid=UUID, status=COMMITTED).SerializeToString()).status == COMMITTED
    assert VectorIndexDetails.DESCRIPTOR.full_name == "committerd.lance.table.VectorIndexDetails"


def unknown_fields_are_kept_and_named() -> None:
    body = Transaction(uuid=UUID).SerializeToString() + UNKNOWN
    assert Transaction.FromString(body).SerializeToString() == body
    assert unknown_fields(Transaction.FromString(body)) == ["Transaction#995"]
    fragment = DataFragment.FromString(DataFragment(id=1).SerializeToString() + UNKNOWN)
    transaction = Transaction()
    transaction.append.fragments.append(fragment)
    transaction.append.fragments.add().CopyFrom(fragment)
    read = Transaction.FromString(transaction.SerializeToString())
    assert unknown_fields(read) == [f"Transaction.append.fragments[{place}]#995" for place in range(2)]
    known = Transaction()
    known.update_config.field_metadata_updates[3].replace = True
    known.update_config.schema_metadata_updates.SetInParent()
    assert unknown_fields(known) == []


def damage_is_told() -> None:
    for body in (b"\x12\x02\xc2\xc2", b"\x12\xff", b"\x0c"):  # invalid UTF-8, too short, a group without a start
        try:
            decode_transaction(body, bytes_max=1000)
        except InvalidRequest as error:
            assert error.code == "record_undecodable", error  # noqa: PT017  # there is no pytest in this environment
        else:
            raise AssertionError(body)


if __name__ == "__main__":
    encoding_is_kept()
    unknown_fields_are_kept_and_named()
    damage_is_told()
    print(google.protobuf.__version__, api_implementation.Type())
