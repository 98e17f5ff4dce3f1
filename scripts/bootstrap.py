"""Install all that `make demo` and `make test` need: `.venv`, a Python with pylance 4.0.0, Kafka, S3 servers.

It works from an empty clone, twice at the same time, and after an interruption, and downloads only what is missing.
`setup.sh` calls it after checking the machine. It uses the standard library only, because nothing is installed yet.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
CLIENT = "producers"
"""The folder of the client's distribution, on which the committer depends."""
STAMP = ENVIRONMENT / "committerd-setup.json"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
OLD_PYLANCE = ROOT / "requirements" / "pylance-4.txt"


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)


def pip(python: Path, *arguments: str | Path) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "install", *arguments)


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait for other setups. The kernel releases the lock when its holder ends, in whatever way."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another setup that runs")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wanted() -> dict[str, str]:
    """The facts that the environment depends on; if one differs, it is installed again."""
    projects = [tomllib.loads((ROOT / name / "pyproject.toml").read_text(encoding="utf-8")) for name in ("", CLIENT)]
    tables = [one.get(name) for one in projects for name in ("build-system", "project", "dependency-groups")]
    requirements = json.dumps(tables, sort_keys=True) + CONSTRAINTS.read_text(encoding="utf-8")
    return {
        "requirements": hashlib.sha256(requirements.encode()).hexdigest(),
        "python": f"{sys.version} {platform.machine()}",
        "folder": str(ROOT),
    }


def found() -> dict[str, str]:
    """The same facts about the existing environment; None of them if it is unfinished, or was made by hand."""
    try:
        stamp: dict[str, str] = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stamp = {"folder": str(ROOT)}
    return {**stamp, "python": described(PYTHON)}


def described(python: Path) -> str:
    """Version and machine of an interpreter; empty if it does not start or has no pip, as when half installed."""
    script = "import pip, platform, sys; print(sys.version, platform.machine())"
    with contextlib.suppress(OSError):
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.removesuffix("\n")
    return ""


def make_environment() -> None:
    want, have = wanted(), found()
    if want == have:
        return
    say(f"Python packages into {ENVIRONMENT.name} (about 250 MB to download, once; {platform.python_version()})")
    if (have["python"], have.get("folder")) != (want["python"], want["folder"]):
        run(sys.executable, "-m", "venv", "--clear", ENVIRONMENT)
    STAMP.unlink(missing_ok=True)
    # Dependency groups need pip 25.1.
    pip(PYTHON, "--constraint", CONSTRAINTS, "--upgrade", "pip")
    pip(
        PYTHON, "--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS,
        "--group", "dev", "--editable", f"./{CLIENT}", "--editable", ".",
    )  # fmt: skip
    STAMP.write_text(json.dumps(want, indent=1) + "\n", encoding="utf-8")


def cache_folder() -> Path:
    """As in `harness`; this program runs before that can be imported."""
    given = os.environ.get("COMMITTERD_CACHE")
    return Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "committerd").absolute()


def old_pylance() -> Path:
    """The interpreter of the second environment; it may not exist yet."""
    digest = hashlib.sha256(OLD_PYLANCE.read_bytes()).hexdigest()[:8]
    name = f"pylance-4.0.0-py{platform.python_version()}-{platform.machine()}-{digest}"
    return cache_folder() / name / "bin" / "python"


def make_old_pylance() -> None:
    """Install the oldest supported pylance; tests read and write the same tables with it, in separate processes."""
    given = os.environ.get("COMMITTERD_PYLANCE_4")
    if given:
        say(f"pylance 4.0.0 is that of {given}")
        return
    python = old_pylance()
    if described(python):
        return
    say(f"pylance 4.0.0 into {cache_folder()} (about 150 MB to download, once)")
    target = python.parent.parent
    target.parent.mkdir(parents=True, exist_ok=True)
    # Made under another name, so that half an environment is never used.
    with tempfile.TemporaryDirectory(prefix=".pylance-", dir=target.parent) as scratch:
        made = Path(scratch, "environment")
        run(sys.executable, "-m", "venv", made)
        pip(made / "bin" / "python", "--requirement", OLD_PYLANCE)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)


def make_kafka() -> None:
    """Download Kafka's jars, unless those of the wanted version exist."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        return
    if not any(cache_folder().glob("kafka-*")):
        say(f"Apache Kafka into {cache_folder()} (about 45 MB to download, once)")
    command = [str(PYTHON), "-m", "harness.kafka", "--fetch"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def make_stores() -> None:
    """Install S3 servers, DynamoDB Local and toxiproxy. Names any that can't be installed; its tests are skipped."""
    run(PYTHON, "-m", "harness.fetch")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--pylance-4", action="store_true", help="only print the Python that has pylance 4.0.0")
    parser.add_argument("--no-stores", action="store_true", help="without the S3 servers and DynamoDB of the tests")
    chosen = parser.parse_args()
    if chosen.pylance_4:
        print(old_pylance())
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with alone(ROOT / ".cache" / "setup.lock"):
            make_environment()
        with alone(cache_folder() / "setup.lock"):
            make_old_pylance()
            make_kafka()
            if not chosen.no_stores:
                make_stores()
    except subprocess.CalledProcessError as error:
        say(f"Setup failed: {error.cmd[0]} ended with {error.returncode}. Run it again to go on where it stopped")
        return 1
    except KeyboardInterrupt:
        say("Setup interrupted. Run it again to go on where it stopped")
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
