"""What the images install for arm64: the release workflow builds them for both architectures, the other tests
for that of this machine. `make test-arm64` builds and runs them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import cache_folder
from scripts.generate.lock_image import FOLDER, PLATFORMS, PYTHON
from tests.deploy.image import DOCKERFILE, ROOT

pytestmark = pytest.mark.timeout(1800)
"""The first run downloads the wheels, 200 MB."""

FILES = ("committerd.txt", "producer.txt", "ingest.txt")
MACHINES = {"x86_64": 62, "aarch64": 183}
"""The number of an architecture in the head of each library (`e_machine` of ELF)."""


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """All that the images' lock files name, as it is installed on arm64; beside uv's cache, whose files it links."""
    (platform,) = (one for one in PLATFORMS if one.startswith("aarch64"))
    with tempfile.TemporaryDirectory(prefix=".arm64-", dir=cache_folder()) as folder:
        command: list[str | Path] = [
            sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", folder, "--python-version", PYTHON,
            "--python-platform", platform, "--no-deps", "--require-hashes", "--only-binary", ":all:",
            "--no-python-downloads",
        ]  # fmt: skip
        for name in FILES:
            command += ["--requirement", FOLDER / name]
        environment = os.environ | {"UV_CACHE_DIR": str(cache_folder() / "uv")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield Path(folder)


def test_each_library_is_one_of_arm64(installed: Path) -> None:
    libraries = [path for path in installed.rglob("*.so*") if path.is_file() and re.search(r"\.so(\.\d+)*$", path.name)]
    assert len(libraries) > 50
    wrong = {path.relative_to(installed) for path in libraries if machine(path) != MACHINES["aarch64"]}
    assert not wrong
    assert machine(Path(sys.executable).resolve()) == MACHINES[os.uname().machine]


def machine(path: Path) -> int:
    """The architecture of a library or a program."""
    head = path.read_bytes()[:20]
    assert head[:4] == b"\x7fELF", path
    return int.from_bytes(head[18:20], "little")


@pytest.mark.parametrize("arrow_s3", [False, True])
def test_what_the_images_leave_out_is_there(installed: Path, arrow_s3: bool) -> None:
    """`slim.py` fails a build in which one of its patterns finds nothing."""
    assert len(slim().unused(installed, arrow_s3=arrow_s3)) > 100


def slim() -> Any:
    """The module that the Dockerfile runs."""
    spec = spec_from_file_location("slim", ROOT / "deploy" / "image" / "slim.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_has_both_and_no_step_names_one() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    (built,) = (
        step["with"] for step in workflow["jobs"]["images"]["steps"] if "build-push-action" in step.get("uses", "")
    )
    assert built["platforms"] == "linux/amd64,linux/arm64"
    for file in (DOCKERFILE, *sorted((ROOT / "deploy" / "image").iterdir())):
        if file.is_file():
            assert not re.search(r"amd64|x86[-_]64|arm64|aarch64", file.read_text(encoding="utf-8")), file
