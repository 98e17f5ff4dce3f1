"""The tests of the examples for dlt, Airflow and Dagster, which `.venv` lacks. Arguments are those of pytest.

python -m tests.acceptance.pipelines -k Dlt
"""

from __future__ import annotations

import sys

from tests.acceptance.pytest_runs import pytest_beside


def main(arguments: list[str]) -> int:
    """Run the tests; the exit code is 1 if one failed."""
    return pytest_beside("pipelines", ["tests/pipelines", *arguments], size="70 MB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
