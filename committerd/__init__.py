"""committerd: queued commits for Lance tables.

Producers stage `lance.table.Transaction` messages in Kafka; one committer per table checks each against what was
committed since its read version, rebases it, writes the next manifest atomically and answers.

Read in this order: `lance` (Lance's files and rules, pure), `queue` (the queue's rules, pure), `table` (one table over
the store port), `committer` (one queue into one table), `daemon` (the process), `stores` and `kafka` (the world).
"""

from __future__ import annotations

__version__ = "0.1.0"
