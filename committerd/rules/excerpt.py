"""What of a version the rules look at, so that of 100,000 fragments only those in question are decoded."""

from __future__ import annotations

from committerd.format.manifest_file import ManifestFile
from committerd.format.messages import Manifest, Transaction


def excerpt(file: ManifestFile, transaction: Transaction) -> Manifest:
    """The version as far as a transaction on it can be judged by: of the fragments those that a Delete or Update names,
    all for a Merge, none for others.
    """
    match transaction.WhichOneof("operation"):
        case "delete":
            delete = transaction.delete
            return file.part([*(one.id for one in delete.updated_fragments), *delete.deleted_fragment_ids])
        case "update":
            update = transaction.update
            return file.part([*(one.id for one in update.updated_fragments), *update.removed_fragment_ids])
        case "merge":
            return file.manifest
        case _:
            return file.outline
