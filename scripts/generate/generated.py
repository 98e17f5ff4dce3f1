"""What the scripts that generate a file share: they write it, or with --check report that it is outdated."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def keep(file: Path, text: str, *, check: bool, source: str) -> int:
    """Return the exit code: 1 if `check` is set and the file differs from this text, which comes from `source`."""
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{file.relative_to(ROOT)} is not what {source}; run `make docs`")
        return 1
    file.write_text(text, encoding="utf-8")
    print(f"written: {file.name}")
    return 0


def check_wanted(description: str | None) -> bool:
    """Whether --check is among the arguments; `description` is the script's docstring."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0] if description else None)
    parser.add_argument("--check", action="store_true", help="fail when the file differs")
    return parser.parse_args().check is True
