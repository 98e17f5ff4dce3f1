"""The tests of the writers for Ray and Daft, which `.venv` lacks. Arguments are those of pytest.

python -m tests.acceptance.ray_daft -k killed
"""

from __future__ import annotations

import hashlib
import os
import sys

from tests.acceptance.pytest_runs import ROOT, installed, pytest_with

_REQUIREMENTS = ROOT / "requirements" / "ray-daft.txt"
_WARNINGS = ["DeprecationWarning", "FutureWarning", "ResourceWarning", "UserWarning"]
"""Ray and Daft themselves warn of these."""


def main(arguments: list[str]) -> int:
    """Run the tests; the exit code is 1 if one failed."""
    os.chdir(ROOT)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "true"}
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:8]
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"  # their wheels are of one version of Python
    folder = installed(f"ray-daft-{python}-{digest}", ["--requirement", str(_REQUIREMENTS)], size="140 MB")
    ignored = [word for one in _WARNINGS for word in ("-W", f"ignore::{one}")]
    return 0 if pytest_with(folder, [*ignored, "tests/distributed", *arguments]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
