"""Keeps a table fit for reading: which fragments to rewrite and which indices to extend, and the work itself.

`table` describes one version of a table, `plan` decides what to do about it, and neither reads data. `work` does it,
through the queue, with pylance. `committerd maintain` and `committerd_spark.maintain` both use these modules.
"""

from __future__ import annotations
