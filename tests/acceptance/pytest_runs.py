"""Runs tests several times: on other versions of a part, and with packages beside `.venv`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import cache_folder

ROOT = Path(__file__).resolve().parents[2]


def each_version(
    part: str, arguments: list[str], versions: Sequence[str], run: Callable[[str, list[str]], bool]
) -> int:
    """Run tests on each version and print a line for each; returns the exit code, which is 1 if one failed.

    `arguments`: versions, and after `--` those of pytest; without versions, all of `versions`. `run` gets a version and
    pytest's arguments, and returns whether all tests passed.
    """
    os.chdir(ROOT)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    said, failed = [], False
    for version in arguments[:split] or versions:
        print(f"{part} {version}", flush=True)
        started = time.monotonic()
        passed = run(version, arguments[split + 1 :])
        failed |= not passed
        said.append(f"{part} {version}: {'passed' if passed else 'FAILED'} in {time.monotonic() - started:.0f} s")
    print("\n".join(said))
    return int(failed)


def installed(name: str, requirements: Sequence[str], *, size: str) -> Path:
    """The folder `name` of the cache, with these requirements of uv; made once. `size`: of the download, to tell."""
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


def pytest_beside(name: str, arguments: Sequence[str], *, size: str) -> int:
    """Run pytest with what `requirements/NAME.txt` names, beside `.venv`; returns the exit code, 1 if a test failed.

    `size`: as in `installed`.
    """
    os.chdir(ROOT)
    requirements = ROOT / "requirements" / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:8]
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"  # the wheels are of one version of Python
    folder = installed(f"{name}-{python}-{digest}", ["--requirement", str(requirements)], size=size)
    return 0 if pytest_with(folder, arguments) else 1


def pytest_with(folder: Path, arguments: Sequence[str]) -> bool:
    """Run pytest with the packages of the folder; returns whether all tests passed."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", *arguments]
    done = subprocess.run(command, env=os.environ | {"LANCE_LOG": "error", "PYTHONPATH": path}, check=False)
    return done.returncode == 0
