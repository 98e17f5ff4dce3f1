"""Turns pylance's uncommitted results into transactions, without loss.

    import lance
    from committerd_client import staging

    dataset = lance.dataset(uri)
    await client.commit(staging.merge_insert(dataset, new_rows, on="id"))

A helper drops nothing: it raises `StagingError` for anything that it can't carry over. pylance writes the data,
deletion and index files, with the storage options of the dataset; no helper commits. They work with pylance 4.0.0 to
14.x (extra `lance`).

Pass the result of a helper to `CommitClient.commit` or `submit` as it is. A helper that takes a `dataset` plans against
the version at which the dataset is open: open it again for each execution.
"""

from __future__ import annotations

from importlib.util import find_spec

from committerd_common.extras import install_line

if find_spec("pyroaring") is None:
    raise ModuleNotFoundError(
        f"committerd_client.staging needs pylance and pyroaring: {install_line('lance')}",
        name="pyroaring",
    )

from committerd_client.staging.columns import Alteration, add_columns, alter_columns, drop_columns
from committerd_client.staging.compaction import (
    Compacted,
    compact_files,
    compact_files_again,
    compacted,
    compaction_tasks,
    with_remapped_indices,
)
from committerd_client.staging.config import Replace, update_config
from committerd_client.staging.deletion import delete
from committerd_client.staging.errors import StagingError
from committerd_client.staging.fragments import fragment, lance_schema
from committerd_client.staging.indices import add_index_segments, create_index, drop_index, optimize_indices
from committerd_client.staging.key_cache import KeyCache
from committerd_client.staging.keys import KEYS_MAX, joined_keys, keys_of
from committerd_client.staging.merge import StagedMerge, merge_insert
from committerd_client.staging.operations import data_replacement, reserve_fragments, restore
from committerd_client.staging.rows import append, append_if_exists, create, overwrite
from committerd_client.staging.transactions import new_uuid
from committerd_client.staging.updates import update

__all__ = [
    "KEYS_MAX",
    "Alteration",
    "Compacted",
    "KeyCache",
    "Replace",
    "StagedMerge",
    "StagingError",
    "add_columns",
    "add_index_segments",
    "alter_columns",
    "append",
    "append_if_exists",
    "compact_files",
    "compact_files_again",
    "compacted",
    "compaction_tasks",
    "create",
    "create_index",
    "data_replacement",
    "delete",
    "drop_columns",
    "drop_index",
    "fragment",
    "joined_keys",
    "keys_of",
    "lance_schema",
    "merge_insert",
    "new_uuid",
    "optimize_indices",
    "overwrite",
    "reserve_fragments",
    "restore",
    "update",
    "update_config",
    "with_remapped_indices",
]
