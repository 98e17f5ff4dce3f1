"""The tests of the writers for Ray and Daft, which `.venv` lacks. Arguments are those of pytest.

python -m tests.acceptance.ray_daft -k killed
"""

from __future__ import annotations

import os
import sys

from tests.acceptance.pytest_runs import pytest_beside

_WARNINGS = ["DeprecationWarning", "FutureWarning", "ResourceWarning", "UserWarning"]
"""Ray and Daft themselves warn of these."""


def main(arguments: list[str]) -> int:
    """Run the tests; the exit code is 1 if one failed."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "true"}
    ignored = [word for one in _WARNINGS for word in ("-W", f"ignore::{one}")]
    return pytest_beside("ray-daft", [*ignored, "tests/distributed", *arguments], size="140 MB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
