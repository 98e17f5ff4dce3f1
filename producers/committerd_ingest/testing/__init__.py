"""Tests with pytest that define what a reader promises. Nothing else of committerd_ingest imports this package.

Whoever writes a reader subclasses `ReaderTests` in tests of its own, with a fixture that makes a source.
docs/readers.md has an example.

Importing it without pytest raises `ModuleNotFoundError`, which names the extra.
"""

from __future__ import annotations

from committerd_common.extras import missing

if _error := missing("pytest", of="committerd_ingest.testing", extra="testing", distribution="committerd"):
    raise _error

import pytest

pytest.register_assert_rewrite("committerd_ingest.testing.readers")

from committerd_ingest.testing.readers import SCHEMA, ReaderTests, Supply  # noqa: E402

__all__ = ["SCHEMA", "ReaderTests", "Supply"]
