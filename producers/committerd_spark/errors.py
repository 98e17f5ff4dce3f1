"""The errors of a write from Spark, under their names of `committerd_spark`; see `committerd_batch.errors`."""

from __future__ import annotations

from committerd_batch.errors import (
    AppIdInUse,
    AppIdMissing,
    BatchWriteError,
    ConnectUnsupported,
    InvalidKeys,
    PackageMissing,
    SchemaMismatch,
    SecondWrite,
    TableChanged,
    TableMissing,
)

SparkWriteError = BatchWriteError
"""Base of the errors that are found before anything is staged."""

__all__ = [
    "AppIdInUse",
    "AppIdMissing",
    "ConnectUnsupported",
    "InvalidKeys",
    "PackageMissing",
    "SchemaMismatch",
    "SecondWrite",
    "SparkWriteError",
    "TableChanged",
    "TableMissing",
]
