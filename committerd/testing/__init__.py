"""Tests with pytest that define what a store promises. Nothing of committerd imports this package.

Whoever writes a store subclasses `ObjectStoreTests` (or `ManifestStoreTests`, for an external manifest store) in tests
of its own, with a fixture that opens the store. docs/testing.md has an example.

Importing it without pytest or pytest-asyncio raises `ModuleNotFoundError`, which names the extra.
"""

from __future__ import annotations

from committerd_common.extras import missing

if _error := missing("pytest", "pytest_asyncio", of="committerd.testing", extra="testing", distribution="committerd"):
    raise _error

import pytest

pytest.register_assert_rewrite("committerd.testing.manifest_stores", "committerd.testing.object_stores")

from committerd.testing.manifest_stores import ManifestStoreTests, OpenManifests  # noqa: E402
from committerd.testing.object_stores import ObjectStoreTests, OpenStore  # noqa: E402

__all__ = ["ManifestStoreTests", "ObjectStoreTests", "OpenManifests", "OpenStore"]
