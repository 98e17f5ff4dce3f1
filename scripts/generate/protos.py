"""Generate `producers/committerd_common/*_pb2.py` and their stubs from `protos/`; `--check` only compares.

Generated code is checked in, so users need no protoc. Two things are changed on a copy of the input, so that nothing
clashes with other Lance code in the same process. The output is never changed.

- Files move to `committerd_common/`, and so do imports of siblings: descriptors and modules get names of our own.
- Package `lance.x` becomes `committerd.lance.x`: protobuf keeps one global table of message names, and a program may
load its own `lance.table`. The package is not serialized; only type URLs contain it, which
`committerd_common.index_details` writes as Lance does.

The compiler is an old one on purpose. Code of protoc 27 and later requires at import a runtime of its own major version
or the next one; code of older compilers loads in every runtime from 4.x on. `tests/packaging` runs it in the lowest
runtime that the client allows, the latest one of each major version, and the highest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "protos" / "lance", ROOT / "protos" / "committerd")
PACKAGE = "committerd_common"


def stage(sources: list[Path], root: Path) -> list[str]:
    """Copy the sources below `root`, in the form to compile; return paths relative to it."""
    siblings = {source.name for source in sources}
    (root / PACKAGE).mkdir(parents=True)
    for source in sources:
        text = re.sub(
            r'^import "([^"]+)"',
            lambda found: f'import "{PACKAGE}/{found[1]}"' if found[1] in siblings else str(found[0]),
            source.read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
        text = re.sub(r"^package lance\.", "package committerd.lance.", text, flags=re.MULTILINE)
        (root / PACKAGE / source.name).write_text(text, encoding="utf-8")
    return [f"{PACKAGE}/{source.name}" for source in sources]


def generate(target: Path) -> None:
    """Write the generated files into `target`, which exists."""
    sources = sorted(source for folder in SOURCES for source in folder.glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        staged, output = Path(scratch, "staged"), Path(scratch, "output")
        output.mkdir()
        files = stage(sources, staged)
        # The compiler and the plugin for the stubs are programs beside this interpreter.
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
        subprocess.run(
            ["protoc", f"-I{staged}", f"--python_out={output}", f"--mypy_out=quiet:{output}", *files],
            check=True,
            env={**os.environ, "PATH": path},
        )
        for generated in (output / PACKAGE).iterdir():
            (target / generated.name).write_bytes(generated.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    """The generated files in a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2.py*")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when the checked-in code differs")
    check = parser.parse_args().check
    checked_in = ROOT / "producers" / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        expected, found = contents(Path(scratch)), contents(checked_in)
        differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if not check:
            for name in differing:
                if name in expected:
                    (checked_in / name).write_bytes(expected[name])
                else:
                    (checked_in / name).unlink()
    if check and differing:
        print(f"not what protos/ generates: {', '.join(differing)}; run `make protos`")
        return 1
    print(f"{len(expected)} files generated from protos/, {len(differing)} of them differed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
