"""Build the documentation site."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import subprocess
import sys
from pathlib import Path

from scripts.programs import ROOT, program, run
from scripts.site.pages import collect

BUILT = ROOT / "build" / "site"
_PORT = 8000


def build(target: Path) -> Path:
    """Build the site below `target`. Returns the folder of its pages. Raises `CalledProcessError` for any warning."""
    collect(target / "pages")
    run(
        program("mkdocs", locked="site"), "build", "--strict", "--quiet", "--config-file", ROOT / "mkdocs.yml",
        "--site-dir", target / "html", environment={"SITE_PAGES": str(target / "pages"), "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    return target / "html"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.site", description=__doc__)
    parser.add_argument("--serve", action="store_true", help=f"then serve it at http://localhost:{_PORT}, until Ctrl-C")
    serve = parser.parse_args().serve
    try:
        folder = build(BUILT)
    except subprocess.CalledProcessError as error:  # what it said is printed already
        print(f"{Path(error.cmd[0]).name} ended with {error.returncode}", file=sys.stderr)
        return 1
    print(f"built: {folder}; python -m scripts.site --serve shows it")
    if serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        with (
            contextlib.suppress(KeyboardInterrupt),
            http.server.ThreadingHTTPServer(("localhost", _PORT), handler) as server,
        ):
            server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
