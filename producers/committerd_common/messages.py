"""The protobuf messages: the only module from which others import them.

They are the data model: the rules decide on the same objects that are stored. A function that changes a message copies
it first (`CopyFrom`) and leaves its input as it is. Nested messages and enums are attributes of these classes:
`Transaction.Append`, `Transaction.REWRITE_COLUMNS`, `DeletionFile.BITMAP`, `Manifest.WriterVersion`.

Their protobuf names begin with `committerd.` (see `scripts/generate/protos.py`). This matters in one place only: pack
and unpack an index's `Any` with `committerd_common.index_details`, never with `Any.Pack`.
"""

from __future__ import annotations

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from committerd_common.commit_pb2 import (
    COMMITTED,
    DUPLICATE,
    EXPIRED,
    INCOMPATIBLE,
    INVALID,
    RETRYABLE,
    STATUS_UNSPECIFIED,
    UNDECIDED,
    UNSUPPORTED,
    Member,
    Members,
    Outcome,
    Refusal,
    Refusals,
    Status,
)
from committerd_common.file_pb2 import Field, FileDescriptor, Schema
from committerd_common.index_pb2 import (
    BitmapIndexDetails,
    BTreeIndexDetails,
    FragmentReuseIndexDetails,
    IndexCatchupProgress,
    InvertedIndexDetails,
    LabelListIndexDetails,
    MemWalIndexDetails,
    MergedGeneration,
    NGramIndexDetails,
    VectorIndexDetails,
)
from committerd_common.packed_pb2 import (
    FragmentShape,
    PackedFileDescriptor,
    PackedManifest,
    PackedSchema,
    ShapedManifest,
    SizedManifest,
    TransactionLabel,
)
from committerd_common.rowids_pb2 import (
    EncodedU64Array,
    RowDatasetVersionRun,
    RowDatasetVersionSequence,
    RowIdSequence,
    U64Segment,
)
from committerd_common.table_pb2 import (
    UUID,
    BasePath,
    DataFile,
    DataFragment,
    DeletionFile,
    ExternalFile,
    IndexFile,
    IndexMetadata,
    IndexSection,
    Manifest,
)
from committerd_common.transaction_pb2 import Transaction

DECODE_ERRORS = (DecodeError, UnicodeDecodeError)
"""The exceptions that `FromString` raises for bytes that are not such a message. Protobuf in pure Python raises the
second if a string is not UTF-8.
"""

__all__ = [
    "COMMITTED",
    "DECODE_ERRORS",
    "DUPLICATE",
    "EXPIRED",
    "INCOMPATIBLE",
    "INVALID",
    "RETRYABLE",
    "STATUS_UNSPECIFIED",
    "UNDECIDED",
    "UNSUPPORTED",
    "UUID",
    "Any",
    "BTreeIndexDetails",
    "BasePath",
    "BitmapIndexDetails",
    "DataFile",
    "DataFragment",
    "DecodeError",
    "DeletionFile",
    "EncodedU64Array",
    "ExternalFile",
    "Field",
    "FileDescriptor",
    "FragmentReuseIndexDetails",
    "FragmentShape",
    "IndexCatchupProgress",
    "IndexFile",
    "IndexMetadata",
    "IndexSection",
    "InvertedIndexDetails",
    "LabelListIndexDetails",
    "Manifest",
    "MemWalIndexDetails",
    "Member",
    "Members",
    "MergedGeneration",
    "Message",
    "NGramIndexDetails",
    "Outcome",
    "PackedFileDescriptor",
    "PackedManifest",
    "PackedSchema",
    "Refusal",
    "Refusals",
    "RowDatasetVersionRun",
    "RowDatasetVersionSequence",
    "RowIdSequence",
    "Schema",
    "ShapedManifest",
    "SizedManifest",
    "Status",
    "Timestamp",
    "Transaction",
    "TransactionLabel",
    "U64Segment",
    "VectorIndexDetails",
]
