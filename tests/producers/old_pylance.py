"""The Python that has the oldest supported pylance."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from harness.lance_table import old_python

ROOT = Path(__file__).resolve().parents[2]


def old_pylance() -> str:
    """The path of its interpreter; skips the test if there is none."""
    python = old_python()
    if not Path(python).exists():
        pytest.skip("no pylance 4.0.0: `make setup` makes its environment, or name its Python in COMMITTERD_PYLANCE_4")
    return python


def in_4(program: str) -> str:
    """Run a program with the client of this repository under that pylance; returns its output."""
    # The rest of what the client needs comes from this environment, behind that pylance's own packages.
    paths = f"import sys; sys.path[:0] = [{str(ROOT / 'producers')!r}]; sys.path += [{sysconfig.get_path('platlib')!r}]"
    command = [old_pylance(), "-c", f"{paths}\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
