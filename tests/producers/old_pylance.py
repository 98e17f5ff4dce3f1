"""The Python that has the oldest supported pylance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def old_pylance() -> str:
    """The path of its interpreter; skips the test if there is none."""
    named = [sys.executable, str(ROOT / "scripts" / "bootstrap.py"), "--pylance-4"]
    python = os.environ.get("COMMITTERD_PYLANCE_4") or subprocess.check_output(named, text=True).strip()
    if not Path(python).exists():
        pytest.skip("no pylance 4.0.0: `make setup` makes its environment, or name its Python in COMMITTERD_PYLANCE_4")
    return python
