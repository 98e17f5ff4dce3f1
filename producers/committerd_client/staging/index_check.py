"""Reads an index back before it is committed: on samples, a query through it finds what a scan finds.

The index is read through a copy of the table (`copies`) that has only a few fragments. Those that the index covers anew
come first, and of these the oldest: a fragment that was rewritten in place is where pylance's own updates of an index
go wrong. So the time of a check does not grow with the table.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committerd_client.staging.copies import write_manifest
from committerd_common.index_details import type_name
from committerd_common.messages import Field, IndexMetadata, IndexSection, Manifest

if TYPE_CHECKING:
    import lance

_FRAGMENTS_OF_A_KIND = 6
"""Maximum number of fragments that are covered anew, and of others."""
_ROWS_OF_A_KIND = 250_000
"""They have at most so many rows, unless a single one has more."""
_VALUES_OF_A_FRAGMENT = 3
_VALUES_MAX = 8
_NEIGHBOURS = 10
_EQUAL = frozenset({"BTreeIndexDetails", "BitmapIndexDetails", "ZoneMapIndexDetails", "BloomFilterIndexDetails"})
_WORD = re.compile(r"[^\W_]{3,30}")


def wrong_answer(
    folder: Path,
    manifest: Manifest,
    segments: Sequence[IndexMetadata],
    *,
    anew: Collection[int],
    storage_options: dict[str, str] | None,
) -> str | None:
    """What a query through the index does not find, or finds although a scan does not; None if there is no such thing.

    `folder`: a copy that has the index's files, directly or by its base paths. `manifest`: a version of it; it is
    changed, and written there as the next version. `segments`: all of the index, each with its bitmap of fragments.
    `anew`: ids of fragments that it did not cover before. Returns None too for an index of a kind without a check.

    Raises pylance's errors.
    """
    import lance

    kind = type_name(segments[0])
    chosen = {*_some(manifest, anew, first=True), *_some(manifest, _all(manifest) - set(anew), first=False)}
    fragments = [one for one in manifest.fragments if one.id in chosen]
    del manifest.fragments[:]
    manifest.fragments.extend(fragments)
    manifest.version += 1
    write_manifest(folder, manifest, IndexSection(indices=segments))
    if not chosen or len(segments[0].fields) != 1:
        return None
    column = _path(manifest, segments[0].fields[0])
    opened = lance.dataset(folder, version=manifest.version, storage_options=storage_options)
    samples = _samples(opened, column)
    if kind in _EQUAL or kind in ("LabelListIndexDetails", "NGramIndexDetails"):
        return _filters_differ(opened, list(_filters(kind, column, samples)))
    if kind == "InvertedIndexDetails":
        return _no_document_found(opened, ".".join(_names(manifest, segments[0].fields[0])), samples)
    if kind == "VectorIndexDetails":
        return _no_vector_found(opened, ".".join(_names(manifest, segments[0].fields[0])), samples)
    return None


def _all(manifest: Manifest) -> set[int]:
    return {one.id for one in manifest.fragments}


def _some(manifest: Manifest, ids: Collection[int], *, first: bool) -> Iterator[int]:
    """Some of these fragments: the first ones, or any."""
    rows = {one.id: one.physical_rows for one in manifest.fragments if one.id in ids}
    order = sorted(rows)
    if not first:
        random.Random(manifest.version).shuffle(order)  # a choice of samples
    taken = 0
    for place, id in enumerate(order[:_FRAGMENTS_OF_A_KIND]):
        taken += rows[id]
        if place and taken > _ROWS_OF_A_KIND:
            return
        yield id


def _names(manifest: Manifest, id: int) -> list[str]:
    """The names on the path to a field."""
    fields: dict[int, Field] = {one.id: one for one in manifest.fields}
    names: list[str] = []
    while id in fields:
        names.insert(0, fields[id].name)
        id = fields[id].parent_id
    return names


def _path(manifest: Manifest, id: int) -> str:
    """The path to a field, for Lance's SQL."""
    return ".".join(f"`{one}`" for one in _names(manifest, id))


def _samples(opened: lance.LanceDataset, column: str) -> list[tuple[int, Any]]:
    """Some rows of each fragment: row id and value; no nulls."""
    found: list[tuple[int, Any]] = []
    for fragment in opened.get_fragments():
        scanner = opened.scanner(
            columns={"value": column}, fragments=[fragment], limit=_VALUES_OF_A_FRAGMENT, with_row_id=True
        )
        rows = scanner.to_table()
        found += zip(rows["_rowid"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return [one for one in found if one[1] is not None]


def _filters(kind: str, column: str, samples: Sequence[tuple[int, Any]]) -> Iterator[str]:
    if kind in _EQUAL:
        yield f"{column} IS NULL"
        yield f"{column} IS NOT NULL"
    for _, value in samples:
        if kind == "LabelListIndexDetails":
            literals = [_literal(one) for one in value[:1]]
            yield from (f"array_has({column}, {one})" for one in literals if one is not None)
        elif kind == "NGramIndexDetails":
            word = _WORD.search(value)
            if word is not None:
                yield f"contains({column}, '{word[0]}')"
        elif (literal := _literal(value)) is not None:
            yield f"{column} = {literal}"


def _literal(value: Any) -> str | None:
    """A value in Lance's SQL; None for one that has no simple form there."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return None


def _filters_differ(opened: lance.LanceDataset, filters: Sequence[str]) -> str | None:
    for filter in dict.fromkeys(filters[: 2 + _VALUES_MAX]):
        found, scanned = (
            opened.scanner(columns=[], filter=filter, with_row_id=True, use_scalar_index=by_index).to_table()["_rowid"]
            for by_index in (True, False)
        )
        if sorted(found.to_pylist()) != sorted(scanned.to_pylist()):
            return f"{filter} finds {len(found)} rows through the index, and {len(scanned)} without it"
    return None


def _no_document_found(opened: lance.LanceDataset, column: str, samples: Sequence[tuple[int, Any]]) -> str | None:
    """Whether no sample is found by its longest word; a tokenizer may leave out, or change, some words."""
    words = []
    for id, value in samples[:_VALUES_MAX]:
        found = _WORD.findall(value if isinstance(value, str) else " ".join(map(str, value)))
        if found:
            words.append((id, max(found, key=len)))
    for id, word in words:
        query: Any = {"query": word, "columns": [column]}
        rows = opened.scanner(columns=[], full_text_query=query, with_row_id=True).to_table()
        if id in rows["_rowid"].to_pylist():
            return None
    return f"none of {len(words)} documents is found by its longest word" if len(words) > 1 else None


def _no_vector_found(opened: lance.LanceDataset, column: str, samples: Sequence[tuple[int, Any]]) -> str | None:
    """Whether no sample is among its own neighbours; an index of vectors is approximate, and may miss some."""
    import pyarrow as pa

    vectors = [(id, value) for id, value in samples[:_VALUES_MAX] if isinstance(value[0], float)]
    for id, value in vectors:
        nearest: Any = {"column": column, "q": pa.array(value, pa.float32()), "k": _NEIGHBOURS}
        rows = opened.scanner(columns=[], nearest=nearest, with_row_id=True).to_table()
        if id in rows["_rowid"].to_pylist():
            return None
    return f"none of {len(vectors)} vectors is found among its neighbours" if len(vectors) > 1 else None
