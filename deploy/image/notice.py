"""Write NOTICE: what an image holds, each with its version, its licence, and where the licence's text is in the image.

    /opt/committerd/bin/python notice.py > /opt/committerd/NOTICE

`--root FOLDER` is where the packages of Debian were unpacked. The standard library is all that it needs.
"""

from __future__ import annotations

import argparse
import email
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

_TEXTS = re.compile(r"(?i)(licen[cs]e|copying|notice|authors)[^/]*$")
_FREE_TEXT = 80
"""Metadata of some packages hold the whole licence in the field for its name."""


def licence(package: Distribution) -> str:
    """As the metadata say it: the expression, the field, or the classifiers."""
    about = package.metadata
    named = next(iter([*about.get_all("License-Expression", []), *about.get_all("License", [])]), "")
    if named and "\n" not in named and len(named) < _FREE_TEXT:
        return named
    classes = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License")]
    return ", ".join(classes) or "see its text"


def texts(package: Distribution) -> list[Path]:
    """The files with the licence's text, and those of what is compiled into the package."""
    files = (Path(str(package.locate_file(file))) for file in package.files or () if _TEXTS.search(str(file)))
    return sorted(file for file in files if file.suffix not in (".py", ".pyc") and file.exists())


def of_python() -> Iterator[str]:
    for package in sorted(distributions(), key=lambda one: one.name.lower()):
        yield f"{package.name} {package.version}: {licence(package)}"
        yield from (f"    {path}" for path in texts(package))


def of_debian(root: Path) -> Iterator[str]:
    for file in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        about = email.message_from_string(file.read_text(encoding="utf-8"))
        yield f"{about['Package']} {about['Version']}"
        yield f"    /usr/share/doc/{about['Package']}/copyright"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("/"))
    root = parser.parse_args().root
    print("committerd is licensed under the Apache License, Version 2.0. This image also holds:\n")
    print("Python packages\n", *of_python(), sep="\n")
    print("\nPackages of Debian\n", *of_debian(root), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
