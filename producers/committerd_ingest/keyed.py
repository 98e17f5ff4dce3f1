"""Records that change rows by their keys: which rows they put into the table, and which they take out.

The changes of a batch are one table with all columns of the table, `OP` and `ORDER`, as the code takes it that the
writers for Spark, Ray and Daft share (`committerd_batch`, mode `cdc`): the latest change of a key wins.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from committerd_batch.target import Mode, SchemaMode
from committerd_client.casting import nulls
from committerd_ingest.avro import AvroPart, AvroRows
from committerd_ingest.debezium import Effect, effect, members, payload
from committerd_ingest.decoding import (
    BadRecord,
    Decoded,
    Decoder,
    Format,
    RecordColumns,
    WrongColumns,
    described,
    no_object,
    schema_ids,
)
from committerd_ingest.records import Partition, Record, Records
from committerd_ingest.settings import Pipeline
from committerd_ingest.wire_format import Schema, Schemas, UnusableSchema, read

OP, ORDER = "__committerd_op", "__committerd_offset"
"""Columns that no table has: whether a row is put in (`upsert`) or taken out (`delete`), and its record's offset."""


class KeyedDecoder:
    """Decodes the records of one partition for one schema of the table."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        mode: Mode,
        keys: Sequence[str],
        format: Format,
        key_format: Format,
        columns: RecordColumns,
        topic: str,
        partition: int,
        merge: bool = False,
    ) -> None:
        """`mode`: upsert, delete or cdc. `keys`: the columns by which rows are found. The others are as of a `Decoder`.

        Raises `WrongColumns`.
        """
        taken = sorted({OP, ORDER}.intersection(schema.names))
        if taken:
            raise WrongColumns(f"the table has columns {taken}, names that upserts and deletes use themselves")
        lacks = [name for name in keys if name not in schema.names]
        if lacks:
            raise WrongColumns(f"the table has no columns {lacks}, which are ingest.keys; it has {schema.names}")
        if key_format == "raw" and len(keys) > 1:
            raise WrongColumns(f"a key that is taken as it is fills one column, and ingest.keys has {list(keys)}")
        self._schema, self._mode, self._one = schema, mode, keys[0] if len(keys) == 1 else ""
        self._key_format: Format = key_format
        order = pa.field(ORDER, pa.int64())
        of_keys = pa.schema([*(schema.field(name).with_nullable(False) for name in keys), order])
        given = pa.schema([*(one.with_nullable(one.nullable and one.name not in keys) for one in schema), order])
        self._rows = Decoder(
            given,
            format=format,
            columns=columns,
            value_column="",
            topic=topic,
            partition=partition,
            merge=merge,
            offset_too=ORDER,
        )
        self._keys = Decoder(
            of_keys,
            format=key_format,
            columns=RecordColumns(),
            value_column=keys[0],
            topic=topic,
            partition=partition,
            offset_too=ORDER,
        )

    def new_columns(self, records: Sequence[Record], schemas: Schemas) -> pa.Schema | None:
        """As of a `Decoder`."""
        if self._mode is Mode.DELETE:
            return None
        found = self._rows.new_columns([one for one in records if one.value is not None], self._of_rows(schemas))
        kept = [] if found is None else [one for one in found if one.name not in (OP, ORDER)]
        return pa.schema(kept) if kept else None

    def decode(self, records: Sequence[Record], schemas: Schemas | None = None) -> Decoded:
        """The changes, and the records that make none. A record without a value takes a row out."""
        put: list[Record] = []
        taken: list[Record] = []
        bad: list[BadRecord] = []
        for record in records:
            try:
                done, row = self._effect(record, schemas)
            except Exception as error:  # noqa: BLE001  # the libraries raise errors of any class for bytes that are none
                bad.append(BadRecord(record, described(error)))
                continue
            if done == "put":
                put.append(row)
            elif done == "take":
                if record.key is None:
                    bad.append(BadRecord(record, "the record has no key, which would name the row to take out"))
                else:
                    taken.append(self._key(record, record.key))
        rows = self._rows.decode(put, None if schemas is None else self._of_rows(schemas))
        keys = self._keys.decode(taken, schemas if self._key_format in ("avro", "protobuf") else None)
        given = {one.offset: one for one in records}
        bad += [BadRecord(given[one.record.offset], one.reason, one.stops) for one in rows.bad]
        bad += [BadRecord(given[one.record.offset], f"the key: {one.reason}", one.stops) for one in keys.bad]
        made = [marked(rows.rows, "upsert", self._schema), marked(keys.rows, "delete", self._schema)]
        return Decoded(pa.concat_tables(made), sorted(bad, key=lambda one: one.record.offset))

    def _effect(self, record: Record, schemas: Schemas | None) -> tuple[Effect, Record]:
        """What a record does, and the record whose value is the row. Raises errors of any class if it is bad."""
        value = record.value
        if self._mode is Mode.DELETE or value is None:
            return "take", record
        if self._mode is Mode.UPSERT:
            return "put", record
        if schemas is not None:
            _, envelope = read(value, schemas)
            return effect(envelope.keys(), envelope.get("op"), has_row=envelope.get("after") is not None), record
        reason = no_object(value)
        if reason is not None:
            raise ValueError(reason)
        found = members(payload(value.decode()))
        row = found.get("after", "null")
        op = json.loads(found["op"]) if "op" in found else None
        return effect(found.keys(), op, has_row=row != "null"), replace(record, value=row.encode())

    def _of_rows(self, schemas: Schemas) -> Schemas:
        """The schemas of the rows: with cdc, those of what is in `after`."""
        if self._mode is not Mode.CDC:
            return schemas
        found: dict[int, Schema | UnusableSchema] = {}
        for number, schema in schemas.items():
            try:
                found[number] = schema if isinstance(schema, UnusableSchema) else row_schema(schema)
            except UnusableSchema as error:
                found[number] = error
        return found

    def _key(self, record: Record, key: bytes) -> Record:
        """The record that has the key as its value."""
        if self._mode is Mode.CDC and self._key_format == "json":
            with contextlib.suppress(ValueError, RecursionError):  # the decoder says what is wrong with it
                key = payload(key.decode()).encode()
        if self._key_format == "json" and self._one and not key.lstrip().startswith(b"{"):
            key = b'{"%s":%s}' % (self._one.encode(), key)
        return Record(record.offset, record.timestamp_ms, None, key, [])


def row_schema(envelope: Schema) -> Schema:
    """The schema of the rows in envelopes of this schema. Raises `UnusableSchema` if it is that of none."""
    if not isinstance(envelope, AvroRows):
        raise UnusableSchema("it is no schema of Avro")
    return AvroPart(envelope, "after")


def marked(rows: pa.Table, op: str, schema: pa.Schema) -> pa.Table:
    """The rows, which have `ORDER`, with all columns of the table, nullable, and `OP`."""
    columns = [
        rows[one.name] if one.name in rows.column_names else pa.chunked_array([nulls(rows.num_rows, one.type)])
        for one in schema
    ]
    fields = [one.with_nullable(True) for one in schema]
    return pa.Table.from_arrays(
        [*columns, rows[ORDER], pa.repeat(op, rows.num_rows)],
        schema=pa.schema([*fields, pa.field(ORDER, pa.int64()), pa.field(OP, pa.string())]),
    )


def decoder_of(pipeline: Pipeline, schema: pa.Schema, partition: Partition) -> Decoder | KeyedDecoder:
    """The decoder of a partition's records for this schema of the table. Raises `WrongColumns`."""
    merge = pipeline.schema_mode is SchemaMode.MERGE
    if pipeline.mode is Mode.APPEND:
        return Decoder(
            schema,
            format=pipeline.format,
            columns=pipeline.columns,
            value_column=pipeline.value_column,
            topic=partition.topic,
            partition=partition.number,
            merge=merge,
        )
    return KeyedDecoder(
        schema,
        mode=pipeline.mode,
        keys=pipeline.keys,
        format=pipeline.format,
        key_format=pipeline.key_format,
        columns=pipeline.columns,
        topic=partition.topic,
        partition=partition.number,
        merge=merge,
    )


def ids_of(pipeline: Pipeline, records: Sequence[Record]) -> set[int]:
    """The ids of the schemas with which these records are read."""
    found = schema_ids(Records.of(records).values) if pipeline.mode is not Mode.DELETE else set[int]()
    if pipeline.mode is not Mode.APPEND and pipeline.key_format in ("avro", "protobuf"):
        every = pipeline.mode is not Mode.UPSERT  # the envelope says whether the key is read
        found |= schema_ids(one.key for one in records if every or one.value is None)
    return found
