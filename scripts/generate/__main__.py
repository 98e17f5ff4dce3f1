"""Write the files that are generated from the code, or with --check report those that are outdated."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from scripts.generate import ROOT

_MODULES = (
    "metrics_table",
    "helm_schema",
    "helm_readme",
    "dashboard",
    "fleet_dashboard",
    "wire_vectors",
    "outcome_tables",
    "settings_reference",
    "cli_reference",
    "json_api",
)
"""Each has `FILE` (what it writes), `SOURCE` (what the content comes from) and `text` (the content)."""


def main() -> int:
    """Return the exit code: 1 if a file is outdated and --check is set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*_MODULES, []], help="default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when a file differs")
    chosen = parser.parse_args()
    outdated = False
    for name in chosen.names or _MODULES:
        module = import_module(f"scripts.generate.{name}")
        file, text = ROOT / module.FILE, module.text()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if chosen.check:
            print(f"{module.FILE} is not what {module.SOURCE} says; run `make docs`")
            outdated = True
        else:
            file.write_text(text, encoding="utf-8")
            print(f"written: {module.FILE}")
    return int(outdated)


if __name__ == "__main__":
    sys.exit(main())
