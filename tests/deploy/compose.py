"""deploy/docker-compose.yml as Docker Compose itself reads it: variables filled in, defaults set, paths made absolute.

python -m tests.deploy.compose    print it; needs Go the first time
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness import PartMissingError
from harness.golang import GoProgram

FILE = Path(__file__).resolve().parents[2] / "deploy" / "docker-compose.yml"
COMPOSE = GoProgram("docker-compose", "v5.0.2", "github.com/docker/compose/v5/cmd", "cmd")
"""The newest whose module needs no replacements of others, with which `go install` builds nothing."""

Service = dict[str, Any]


class ComposeError(Exception):
    """What Docker Compose said."""


@dataclass(frozen=True, slots=True)
class Compose:
    """The services, by name."""

    services: Mapping[str, Service]

    @classmethod
    def loaded(cls, file: Path = FILE, **variables: str) -> Self:
        """Raises `ComposeError` where Compose refuses the file, `PartMissingError` without Go to build it."""
        bare = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
        command: list[str | Path] = [COMPOSE.built(), "--file", file, "config", "--format", "json"]
        done = subprocess.run(command, env=bare | variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ComposeError(done.stderr)
        return cls(json.loads(done.stdout)["services"])

    def environment(self, service: str) -> dict[str, str]:
        """Variables of a service, as its container gets them."""
        return {name: str(value) for name, value in self.services[service].get("environment", {}).items()}


def _main() -> None:
    try:
        print(json.dumps(Compose.loaded().services, indent=2))
    except (PartMissingError, ComposeError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
