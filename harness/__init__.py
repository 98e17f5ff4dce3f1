"""The real programs that tests, the demo and the measurements run against, and a dataset with its queue on them.

Each module builds, starts and stops one program: Kafka, an S3 server, DynamoDB Local, toxiproxy, Prometheus, Spark, or
committerd itself as a child process. `scene` combines them into a dataset with its topics, its table and its
committers.

The harness imports neither pytest nor tests nor scripts. If a program is not installed, it raises `PartMissingError`,
which names what to install.
"""

from __future__ import annotations

from committerd.dev.parts import PartFailedError, PartMissingError, cache_folder, made_in_cache

__all__ = ["PartFailedError", "PartMissingError", "cache_folder", "made_in_cache"]
