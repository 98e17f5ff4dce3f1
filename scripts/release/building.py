"""What dist/ holds: both distributions, the chart, bills of materials, and their sums; the same bytes each time.

Sources are the files that git tracks, as the working tree has them. What has a time gets that of the last commit, or of
SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.helm import HELM
from scripts.programs import ROOT, program, run, uv

LOCKED = "release"
"""The programs that a release needs, by version and hash: `requirements/release.txt`."""
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
IMAGES = {
    "committerd": ["committerd.txt"],
    "committerd-maintain": ["committerd.txt", "producer.txt", "ingest.txt"],
    "committerd-producer": ["producer.txt"],
}
"""The lock files of each image."""
SUMS = "SHA256SUMS"


def epoch() -> int:
    """Seconds since 1970 that files in a release have as their time."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "log", "-1", "--format=%ct"))


def build(target: Path) -> list[Path]:
    """Build everything into `target`, which is made anew. Returns the files, without their sums."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with sources() as tree:
        distributions(tree, target)
        chart(tree, target)
        bills(tree, target)
    files = sorted(target.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (target / SUMS).write_text("".join(lines), encoding="utf-8")
    return files


@contextmanager
def sources() -> Iterator[Path]:
    """A copy of what git tracks. What lies about in the working tree besides gets into no release."""
    with tempfile.TemporaryDirectory(prefix="committerd-release-") as folder:
        for name in filter(None, run("git", "ls-files", "-z").split("\0")):
            if (ROOT / name).is_file():
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy)
        yield Path(folder)


def distributions(tree: Path, target: Path) -> None:
    """The source archives of committerd and committerd-client, and the wheels that they make."""
    for folder in (tree / "producers", tree):
        uv(
            "build", "--quiet", "--build-constraint", CONSTRAINTS, "--out-dir", target, folder,
            environment={"SOURCE_DATE_EPOCH": str(epoch())},
        )  # fmt: skip
    (target / ".gitignore").unlink(missing_ok=True)


def chart(tree: Path, target: Path) -> None:
    """The chart as helm packages it, with the times of the release instead of those of this hour."""
    with tempfile.TemporaryDirectory(prefix="committerd-chart-") as scratch:
        run(HELM.built(), "package", tree / "helm" / "committerd", "--destination", scratch)
        (made,) = Path(scratch).glob("*.tgz")
        (target / made.name).write_bytes(with_fixed_times(made.read_bytes(), epoch()))


def with_fixed_times(packed: bytes, seconds: int) -> bytes:
    """A tar.gz with the same files in the order of their names, all of that time, owned by nobody."""
    written = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(packed)) as source,
        gzip.GzipFile(fileobj=written, mode="wb", mtime=seconds, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(source, key=lambda one: one.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mode, plain.mtime = member.size, 0o644, seconds
            archive.addfile(plain, source.extractfile(member))
    return written.getvalue()


def bills(tree: Path, target: Path) -> None:
    """What each image holds of Python, as CycloneDX, with the hashes that were locked."""
    locks = tree / "deploy" / "requirements"
    for image, names in IMAGES.items():
        with tempfile.TemporaryDirectory(prefix="committerd-bill-") as scratch:
            together = Path(scratch, "requirements.txt")
            entries = {entry for name in names for entry in _entries((locks / name).read_text(encoding="utf-8"))}
            together.write_text("".join(sorted(entries)), encoding="utf-8")
            run(
                program("cyclonedx-py", locked=LOCKED), "requirements",
                "--output-reproducible", "--output-format", "JSON",
                "--pyproject", tree / "pyproject.toml", "--output-file", target / f"{image}-image.cdx.json", together,
            )  # fmt: skip


def _entries(text: str) -> list[str]:
    """The packages of a lock file, each with its hashes."""
    return re.findall(r"^[^\s#].*\n(?: .*\n)*", text, re.MULTILINE)
