"""Hypothesis strategies for the messages of a manifest object."""

from __future__ import annotations

from hypothesis import strategies as st

from committerd_common.messages import (
    UUID,
    DataFile,
    DataFragment,
    DeletionFile,
    IndexMetadata,
    Manifest,
    Transaction,
)

u64 = st.integers(0, 2**64 - 1)
texts = st.text(max_size=8)
string_maps = st.dictionaries(texts, texts, max_size=3)

data_files = st.builds(
    DataFile,
    path=texts,
    fields=st.lists(st.integers(-2, 9), max_size=3),
    file_size_bytes=u64,
    base_id=st.none() | st.integers(0, 9),
)
fragments = st.builds(
    DataFragment,
    id=st.integers(0, 2**32 - 2),
    files=st.lists(data_files, max_size=2),
    physical_rows=u64,
    inline_row_ids=st.none() | st.binary(max_size=9),
    deletion_file=st.none() | st.builds(DeletionFile, id=u64, num_deleted_rows=u64),
)
indices = st.builds(
    IndexMetadata,
    uuid=st.builds(UUID, uuid=st.binary(min_size=16, max_size=16)),
    name=texts,
    fragment_bitmap=st.binary(max_size=9),
    index_version=st.none() | st.integers(0, 9),
)
manifests = st.builds(
    Manifest,
    version=st.integers(1, 2**63 - 1),
    fragments=st.lists(fragments, max_size=3),
    config=string_maps,
    table_metadata=string_maps,
    max_fragment_id=st.none() | st.integers(0, 2**32 - 2),
    # Of the layout that a manifest had when it was read, which is not the one it gets.
    index_section=st.none() | u64,
    transaction_section=st.none() | u64,
    transaction_section_v14=st.none() | u64,
)
transactions = st.builds(
    Transaction,
    uuid=st.uuids().map(str),
    read_version=u64,
    transaction_properties=string_maps,
    append=st.builds(Transaction.Append, fragments=st.lists(fragments, max_size=2)),
)
