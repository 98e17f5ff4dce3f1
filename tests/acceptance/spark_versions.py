"""The tests of Spark on several of its versions: the oldest that `foreachBatch` supports, and each one of Spark 4.

uv fetches each PySpark once; the other packages are those of `.venv`. Arguments are versions, and after `--` those of
pytest.

    python -m tests.acceptance.spark_versions                         all versions
    python -m tests.acceptance.spark_versions 3.5.9 -- -k stream      one version, some tests
"""

from __future__ import annotations

import sys

from tests.acceptance.pytest_runs import each_version, installed, pytest_with

VERSIONS = {
    "3.5.9": "py4j==0.10.9.7",
    "4.0.5": "py4j==0.10.9.9",
    "4.1.4": "py4j==0.10.9.9",
    "4.2.1": "py4j==0.10.9.9",
    "4.3.0": "py4j==0.10.9.9",
}
"""The py4j that each wants."""
TESTS = (
    "tests/spark/test_changes.py",
    "tests/spark/test_datasource.py",
    "tests/spark/test_stream.py",
    "tests/spark/test_write.py",
)
"""What runs a session of Spark. The chaos and the cluster run on the version of `.venv`, in `make test`."""
_OLD = ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
"""Spark 3.5 calls functions of Python and pandas that warn."""


def run(version: str, arguments: list[str]) -> bool:
    """Run the tests on this version of Spark."""
    folder = installed(f"pyspark-{version}", [f"pyspark=={version}", VERSIONS[version]], size="430 MB")
    old = version.startswith("3.")
    tests = [one for one in TESTS if not (old and one.endswith("test_datasource.py"))]
    return pytest_with(folder, [*(_OLD if old else []), *tests, *arguments])


if __name__ == "__main__":
    sys.exit(each_version("Spark", sys.argv[1:], list(VERSIONS), run))
