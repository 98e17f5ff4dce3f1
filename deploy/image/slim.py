"""Take out of an environment what no program of the image uses, and compile the rest; the Dockerfile runs it.

    python3 slim.py /opt/committerd [--keep-arrow-s3]

A pattern that finds nothing is an error, so that the list below stays true when packages change. It needs the standard
library and `strip`.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from py_compile import PycInvalidationMode

UNUSED = {
    "pyarrow": [
        "include", "includes", "src", "*.pxd", "*.pxi", "*.pyx",  # for those who compile against Arrow
        "tests", "_pyarrow_cpp_tests.*",
        "libarrow_flight.*", "libarrow_python_flight.*", "_flight.*", "flight.py",  # a server and its client
    ],
    "numpy": ["_core/include", "_core/lib", "f2py", "random/lib", "random/_examples", "**/tests", "**/*.pyi"],
}  # fmt: skip
"""What goes, as patterns below the folder of a package."""
ARROW_S3 = ["libarrow_s3.*", "_s3fs.*"]
"""Arrow's own client of S3, with which `committerd append` reads files; nothing else does."""
AWS_SERVICES = {"dynamodb", "s3", "signin", "sso", "sso-oidc", "sts"}
"""The services that the stores call, and those that botocore asks for credentials."""


def unused(packages: Path, *, arrow_s3: bool) -> set[Path]:
    """Files and folders that go. Raises `LookupError` for a pattern that finds nothing."""
    found = set[Path]()
    for name, patterns in UNUSED.items():
        for pattern in [*patterns, *(ARROW_S3 if name == "pyarrow" and not arrow_s3 else ())]:
            matches = set((packages / name).glob(pattern))
            if not matches:
                raise LookupError(f"there is no {pattern} in {name} any more: change the list in {Path(__file__).name}")
            found |= matches
    services = packages / "botocore" / "data"
    if services.is_dir():
        names = {path.name: path for path in services.iterdir() if path.is_dir()}
        if missing := AWS_SERVICES - names.keys():
            raise LookupError(f"botocore does not know {', '.join(sorted(missing))}")
        found |= {path for name, path in names.items() if name not in AWS_SERVICES}
    return found


def remove(paths: set[Path]) -> None:
    for path in sorted(paths):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # its folder may have gone before it


def link_copies(packages: Path) -> None:
    """A shared library that a wheel holds under several names, since wheels have no links, is kept once."""
    same = defaultdict[tuple[Path, bytes], list[Path]](list)
    for path in sorted(packages.rglob("*.so*")):
        if not path.is_symlink():
            same[path.parent, hashlib.sha256(path.read_bytes()).digest()].append(path)
    for first, *copies in same.values():
        for copy in copies:
            copy.unlink()
            copy.symlink_to(first.name)


def strip(packages: Path) -> None:
    """Take out symbols that only a debugger reads. Raises `CalledProcessError`.

    Folders `*.libs` stay as they are: their libraries were patched, which `strip` may not understand.
    """
    libraries = [path for path in packages.rglob("*.so*") if not path.is_symlink()]
    mine = [path for path in libraries if not any(folder.name.endswith(".libs") for folder in path.parents)]
    subprocess.run(["strip", "--strip-unneeded", *mine], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", type=Path)
    parser.add_argument("--keep-arrow-s3", action="store_true", help="Arrow's client of S3 stays")
    arguments = parser.parse_args()
    (packages,) = arguments.environment.glob("lib/python3.*/site-packages")
    try:
        remove(unused(packages, arrow_s3=arguments.keep_arrow_s3))
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    link_copies(packages)
    strip(packages)
    # By content, not by time: the same bytes from each build, and a start looks at no source.
    compileall.compile_dir(packages, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
