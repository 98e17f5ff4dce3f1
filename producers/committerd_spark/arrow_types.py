"""Converts Spark types to the Arrow types that `mapInArrow` delivers; time zones are UTC."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from committerd_spark.errors import SchemaMismatch

_SIMPLE: dict[type[spark.DataType], pa.DataType] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.StringType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", "UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.DayTimeIntervalType: pa.duration("us"),
    spark.NullType: pa.null(),
}
if hasattr(spark, "TimeType"):  # Spark 4.1
    _SIMPLE[spark.TimeType] = pa.time64("ns")


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema of a Spark schema. Raises `SchemaMismatch` for types that Arrow does not have.

    All columns are nullable, as in every table that Spark makes.
    """
    return pa.schema([pa.field(field.name, _arrow(field.dataType, field.name)) for field in schema.fields])


def _arrow(kind: spark.DataType, name: str) -> pa.DataType:
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(_arrow(kind.elementType, f"{name}[]"))
    if isinstance(kind, spark.MapType):
        return pa.map_(_arrow(kind.keyType, f"{name}.key"), _arrow(kind.valueType, f"{name}.value"))
    if isinstance(kind, spark.StructType):
        return pa.struct([pa.field(each.name, _arrow(each.dataType, f"{name}.{each.name}")) for each in kind.fields])
    known = next((arrow for known, arrow in _SIMPLE.items() if isinstance(kind, known)), None)
    if known is None:
        raise SchemaMismatch(
            f"column {name!r} is {kind.simpleString()}, which has no form in Arrow: cast it in the DataFrame"
        )
    return known
