"""Keeps a table fit for reading: which fragments to rewrite and which indices to extend.

`table` describes one version of a table, `plan` decides what to do about it, and neither reads data.
`committerd_client.compacting` does the work through the queue: on one machine for `committerd.commands.maintain`, on
executors for `committerd_spark.maintenance`.
"""

from __future__ import annotations
