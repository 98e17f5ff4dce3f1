"""Programs that a developer's command needs, in an environment of their own that the cache keeps."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness import cache_folder, made_in_cache

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"


def uv(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run uv with the cache of built parts. Raises `CalledProcessError`."""
    return run(
        sys.executable, "-m", "uv", *words,
        environment={
            "UV_CACHE_DIR": str(cache_folder() / "uv"), "UV_PYTHON_DOWNLOADS": "never", **(environment or {})
        },
    )  # fmt: skip


def run(*words: str | Path, environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> str:
    """Run a program, and return what it prints. Raises `CalledProcessError`, after showing what it said."""
    done = subprocess.run(
        words, env=os.environ | dict(environment or {}), cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        done.check_returncode()
    return done.stdout


def program(name: str, *, locked: str) -> Path:
    """A program of `requirements/{locked}.txt`; installs all of the file, once for each state of it."""
    lock = LOCKS / f"{locked}.txt"
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"{locked}-tools-{digest}"
    if not folder.exists():
        with made_in_cache(folder, needed=folder) as made:
            uv("venv", "--quiet", "--relocatable", "--no-project", "--python", sys.executable, made)
            uv(
                "pip", "install", "--quiet", "--require-hashes", "--python", made / "bin" / "python",
                "--requirement", lock,
            )  # fmt: skip
    return folder / "bin" / name
