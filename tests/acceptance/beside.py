"""Packages beside `.venv`: installed once into a folder of the cache, and put in front of it for one run of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import cache_folder


def installed(name: str, requirements: Sequence[str], *, size: str) -> Path:
    """The folder `name` of the cache, with these requirements of uv. `size`: of the download, to tell."""
    folder = cache_folder() / name
    if not folder.exists():
        print(f"==> {name} into {folder} (about {size} to download, once)", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Made under another name, so that half an installation is never used.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
            environment = os.environ | {"UV_CACHE_DIR": str(cache_folder() / "uv")}
            subprocess.run([*command, "--target", str(made), *requirements], env=environment, check=True)
            made.rename(folder)
    return folder


def pytest_with(folder: Path, arguments: Sequence[str]) -> bool:
    """Run pytest with the packages of the folder; returns whether all tests passed."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", *arguments]
    done = subprocess.run(command, env=os.environ | {"LANCE_LOG": "error", "PYTHONPATH": path}, check=False)
    return done.returncode == 0
