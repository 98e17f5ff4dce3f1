"""committerd: queued commits for Lance tables.

Producers stage `lance.table.Transaction` messages in Kafka. One committer per table checks each transaction against the
versions committed since its read version, rebases it, writes the next manifest atomically, and publishes the outcome.

Read in this order: `lance` (Lance's files and rules, pure), `queue` (the queue's rules, pure), `table` (one table over
the store port), `committer` (one queue into one table), `daemon` (the process), `stores` and `kafka` (the adapters).
"""

from __future__ import annotations

__version__ = "0.2.0"
