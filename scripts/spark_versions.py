"""The tests of Spark on several of its versions: the oldest that `foreachBatch` supports, and each one of Spark 4.

uv fetches each PySpark once, into the cache of built parts; the other packages are those of `.venv`. Arguments are
versions, and after `--` those of pytest.

    python -m scripts.spark_versions                         all versions
    python -m scripts.spark_versions 3.5.9 -- -k stream      one version, some tests
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import cache_folder

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
TESTS = (
    "tests/spark/test_changes.py",
    "tests/spark/test_datasource.py",
    "tests/spark/test_stream.py",
    "tests/spark/test_write.py",
)
"""What runs a session of Spark. The chaos and the cluster run on the version of `.venv`, in `make test`."""
_OLD = ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
"""Spark 3.5 calls functions of Python and pandas that warn."""


def main(arguments: list[str]) -> int:
    """Run the tests on each version and print a line for each; the exit code is 1 if one failed."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    versions, chosen = arguments[:split] or list(VERSIONS), arguments[split + 1 :]
    os.chdir(ROOT)
    said, failed = [], False
    for version in versions:
        print(f"Spark {version}", flush=True)
        started = time.monotonic()
        old = version.startswith("3.")
        tests = [one for one in TESTS if not (old and one.endswith("test_datasource.py"))]
        command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", *(_OLD if old else []), *tests, *chosen]
        path = os.pathsep.join(filter(None, [str(_pyspark(version)), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(command, env=os.environ | {"LANCE_LOG": "error", "PYTHONPATH": path}, check=False)
        failed |= done.returncode != 0
        result = "passed" if done.returncode == 0 else "FAILED"
        said.append(f"Spark {version}: {result} in {time.monotonic() - started:.0f} s")
    print("\n".join(said))
    return int(failed)


def _pyspark(version: str) -> Path:
    """The folder that holds this version of PySpark, to be put before the one of `.venv`."""
    folder = cache_folder() / f"pyspark-{version}"
    if not folder.exists():
        print(f"==> PySpark {version} into {folder} (about 430 MB to download, once)", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pyspark-", dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(made)]
            environment = os.environ | {"UV_CACHE_DIR": str(cache_folder() / "uv")}
            subprocess.run([sys.executable, "-m", *command, f"pyspark=={version}"], env=environment, check=True)
            made.rename(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
