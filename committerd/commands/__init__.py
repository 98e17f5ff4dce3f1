"""The commands, one module each. Only they combine the settings, the stores, Kafka and the committer."""

from __future__ import annotations
