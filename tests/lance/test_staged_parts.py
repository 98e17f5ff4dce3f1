"""What a transaction adds to a table, and what else must be read to judge it."""

from __future__ import annotations

import pytest

from committerd.lance.format.kind import Kind
from committerd.lance.operations.operation import StagedIndexFile
from committerd.lance.transactions.transaction import (
    index_files,
    needs_version_below,
    new_files,
    staged_files,
    unlisted_indices,
)
from committerd_common.messages import DataFragment, IndexFile, IndexMetadata, Transaction
from tests.lance.operations import append, create_index, rewrite
from tests.lance.samples import data_file, fragment, index, mem_wal_index, transaction, uuid_of

OLD, NEW = fragment(1, name="old"), fragment(0, name="new")
GROUPS = [
    Transaction.Rewrite.RewriteGroup(old_fragments=[OLD], new_fragments=[NEW]),
    Transaction.Rewrite.RewriteGroup(new_fragments=[fragment(0, name="other")]),
]
REPLACEMENT = Transaction.DataReplacement(
    replacements=[Transaction.DataReplacementGroup(fragment_id=1, new_file=data_file("column", [2]))]
)
FILE = IndexFile(path="index.idx", size_bytes=12)


def paths(*fragments: DataFragment) -> list[str]:
    return [file.path for one in fragments for file in one.files]


@pytest.mark.parametrize(
    ("staged", "added"),
    [
        (transaction(append=Transaction.Append(fragments=[NEW])), ["new.lance"]),
        (transaction(overwrite=Transaction.Overwrite(fragments=[NEW])), ["new.lance"]),
        (
            transaction(update=Transaction.Update(updated_fragments=[OLD], new_fragments=[NEW])),
            ["old.lance", "new.lance"],
        ),
        (transaction(merge=Transaction.Merge(fragments=[OLD, NEW])), ["old.lance", "new.lance"]),
        (transaction(rewrite=Transaction.Rewrite(groups=GROUPS)), ["new.lance", "other.lance"]),
        (transaction(data_replacement=REPLACEMENT), ["column.lance"]),
        (transaction(create_index=Transaction.CreateIndex(new_indices=[index(1)])), []),
        (transaction(), []),
    ],
    ids=lambda one: one.WhichOneof("operation") if isinstance(one, Transaction) else "",
)
def test_its_data_files_are_those_of_its_fragments(staged: Transaction, added: list[str]) -> None:
    found = staged_files(staged)
    assert [file.path for file in found.data_files] == added
    if found.fragments:
        assert paths(*found.fragments) == added


@pytest.mark.parametrize(
    ("staged", "fragments", "added"),
    [
        (transaction(append=Transaction.Append(fragments=[NEW])), ["new.lance"], ["new.lance"]),
        (transaction(delete=Transaction.Delete(updated_fragments=[OLD])), ["old.lance"], []),
        (
            transaction(update=Transaction.Update(updated_fragments=[OLD], new_fragments=[NEW])),
            ["old.lance", "new.lance"],
            ["new.lance"],
        ),
        (transaction(merge=Transaction.Merge(fragments=[OLD, NEW])), [], []),
        (transaction(), [], []),
    ],
    ids=lambda one: one.WhichOneof("operation") if isinstance(one, Transaction) else "",
)
def test_new_are_those_that_the_table_does_not_have_yet(
    staged: Transaction, fragments: list[str], added: list[str]
) -> None:
    found = new_files(staged)
    assert paths(*found.fragments) == fragments
    assert [file.path for file in found.data_files] == added


def test_files_of_indices_lie_in_the_folder_of_each() -> None:
    here, elsewhere = index(1), index(2)
    elsewhere.base_id = 7
    for one in (here, elsewhere):
        one.files.append(FILE)
    created = transaction(create_index=Transaction.CreateIndex(new_indices=[here, elsewhere, index(3)]))
    assert index_files(created) == [
        StagedIndexFile(uuid_of(1).uuid, "index.idx", 12, None),
        StagedIndexFile(uuid_of(2).uuid, "index.idx", 12, 7),
    ]
    rewritten = Transaction.Rewrite.RewrittenIndex(old_id=uuid_of(1), new_id=uuid_of(4), new_index_files=[FILE])
    rewrite = transaction(rewrite=Transaction.Rewrite(rewritten_indices=[rewritten]))
    assert index_files(rewrite) == [StagedIndexFile(uuid_of(4).uuid, "index.idx", 12, None)]
    assert index_files(transaction(append=Transaction.Append(fragments=[NEW]))) == ()
    assert index_files(transaction()) == ()


def test_the_version_below_is_needed_where_a_message_does_not_tell_what_changed() -> None:
    def needs_it(kind: Kind) -> bool:
        staged = transaction()
        getattr(staged, kind).SetInParent()
        return needs_version_below(staged)

    assert set(filter(needs_it, Kind)) == {Kind.MERGE, Kind.PROJECT}
    assert not needs_version_below(transaction())


def test_indices_whose_files_are_not_listed() -> None:
    def listed(index: IndexMetadata) -> IndexMetadata:
        index.files.add(path="page.lance")
        return index

    def in_base(index: IndexMetadata) -> IndexMetadata:
        index.base_id = 1
        return index

    staged = create_index(
        index(1), listed(index(2)), in_base(index(3)), index(4, fragments=()), mem_wal_index(5), index(6, fields=[1])
    )
    assert unlisted_indices(staged) == [uuid_of(1).uuid, uuid_of(6).uuid]
    rewriting = rewrite(0, rewritten=(1, 2))
    rewriting.rewrite.rewritten_indices[0].new_index_files.add(path="page.lance")
    assert unlisted_indices(rewriting) == [uuid_of(102).uuid]
    assert list(unlisted_indices(append())) == []
