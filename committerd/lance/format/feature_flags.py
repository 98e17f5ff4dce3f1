"""The bits of a manifest's two feature flag words, and how committerd treats each.

Lance computes both words anew from a table's content at every commit, and so does committerd. A bit that is set without
its feature locks readers out; a bit that is missing lets them misread the table.
"""

from __future__ import annotations

from enum import IntEnum


class FeatureFlag(IntEnum):
    """Lance: feature_flags.rs; from 64 on as pylance 14.0.2 understands them.

    It is not an `IntFlag`, because the complement of an `IntFlag` has only the bits that are named here: a mask made of
    it would hide the unknown bits.
    """

    DELETION_FILES = 1
    """Both words. Some fragment has a deletion file."""
    STABLE_ROW_IDS = 2
    """Both words. All fragments have row ids; a table without fragments keeps the bit."""
    V2_FORMAT = 4
    """Deprecated, never set."""
    TABLE_CONFIG = 8
    """Writers only. `config` is not empty."""
    BASE_PATHS = 16
    """Both words. `base_paths` is not empty."""
    NO_TRANSACTION_FILE = 32
    """Writers only. A choice of the writer that made this version, not inherited."""
    DATA_OVERLAYS = 64
    COVERED_INDICES = 128
    """Both words. Some index has covering fields. Lance 11.0.0 reads such a table, 10.0.0 does not."""
    MIXED_FILE_VERSIONS = 256
    """Both words or neither. The table has, or once had, files of several 2.x versions; the bit stays set. Lance 12.0.0
    reads such a table, 11.0.0 does not.
    """
    FRAGMENT_REUSE_WITH_STABLE_ROW_IDS = 512
    TAGGED_FRAGMENT_REUSE = 1024
    SPILLED_ROW_LINEAGE = 2048
    """Both words. Some row ids or row versions lie in data files, and not in the manifest."""
    FRAGMENT_TREE = 4096
    INDEPENDENT_COVERING_FIELDS = 8192
    MANAGED_BLOBS = 16384
    """Both words or neither; the bit stays set. Values of blobs lie in files of their own, which data files share."""
    FIELD_IDS_NEVER_REUSED = 32768
    ZONE_WRITE_SEEDS = 65536
    OBJECT_METADATA = 131072


RECOMPUTED = (
    FeatureFlag.DELETION_FILES
    | FeatureFlag.STABLE_ROW_IDS
    | FeatureFlag.V2_FORMAT
    | FeatureFlag.TABLE_CONFIG
    | FeatureFlag.BASE_PATHS
    | FeatureFlag.NO_TRANSACTION_FILE
    | FeatureFlag.COVERED_INDICES
)
"""The bits that the next version has, or lacks, by its own content."""

CARRIED = FeatureFlag.MIXED_FILE_VERSIONS
"""The bits that the next version inherits in both words, whatever its content."""

SUPPORTED = RECOMPUTED | CARRIED

LACKING = {
    FeatureFlag.DATA_OVERLAYS: "some values lie in overlay files, which Lance 14 itself reads only if an environment "
    "variable allows it",
    FeatureFlag.SPILLED_ROW_LINEAGE: "only columns of data files say which ids and versions rows have, and committerd "
    "does not read columns",
    FeatureFlag.MANAGED_BLOBS: "only columns of data files say which blobs the table needs, and committerd does not "
    "read columns",
}
"""What committerd lacks to support a bit, for those that tables may have."""


def bits(word: int) -> list[int]:
    """The values of the bits that are set, ascending."""
    return [1 << bit for bit in range(word.bit_length()) if word >> bit & 1]
