"""The prefix of the keys in a table that belong to committerd."""

from __future__ import annotations

KEY_PREFIX = "committerd."
