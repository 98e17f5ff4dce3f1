"""What a transaction brings into the table, gathered for the rules that look at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from committerd.format.messages import DataFile, DataFragment, Transaction


class Brought(NamedTuple):
    """What a transaction brings."""

    fragments: Sequence[DataFragment]
    """Those that the next version would have as they stand here, but for their ids."""
    files: Sequence[DataFile]
    """Their data files, and those of a DataReplacement."""


def brought(transaction: Transaction) -> Brought:
    """Fragments and data files of a transaction."""
    fragments = _fragments(transaction)
    if transaction.HasField("data_replacement"):
        return Brought(fragments, [group.new_file for group in transaction.data_replacement.replacements])
    return Brought(fragments, [file for fragment in fragments for file in fragment.files])


def _fragments(transaction: Transaction) -> Sequence[DataFragment]:
    match transaction.WhichOneof("operation"):
        case "append":
            return transaction.append.fragments
        case "overwrite":
            return transaction.overwrite.fragments
        case "delete":
            return transaction.delete.updated_fragments
        case "update":
            return [*transaction.update.updated_fragments, *transaction.update.new_fragments]
        case "merge":
            return transaction.merge.fragments
        case "rewrite":
            return [fragment for group in transaction.rewrite.groups for fragment in group.new_fragments]
        case _:
            return ()
