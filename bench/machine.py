"""Facts about the machine and the programs that affect the figures. No names of hosts, users or folders."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("pylance", "pyarrow", "protobuf", "kafka-python", "aiobotocore", "anyio")


def facts(folder: Path) -> dict[str, Any]:
    """The facts that a reader of the results needs; `folder` is where the tables are."""
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "file_system": file_system(folder),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "system": {"kernel": f"{platform.system()} {platform.release()}", "python": _python()},
        "versions": {name: importlib.metadata.version(name) for name in (*_PACKAGES, "committerd")},
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def file_system(folder: Path) -> str:
    """The type of the file system of a folder."""
    target = folder.resolve()
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next((mounts[place] for place in (target, *target.parents) if place in mounts), "unknown")


def peak_memory_bytes(pid: int | None = None) -> int:
    """The peak resident memory of a process (Linux: VmHWM, which starts anew with each program)."""
    text = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _python() -> str:
    """Python's version and kind of build. The build changes committerd's rates by a fifth; scripts/setup.sh tells them
    apart in the same way.
    """
    declared = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    kind = "optimised" if declared or sys.base_prefix == "/usr" else "built without optimisation"
    return f"{platform.python_version()} ({kind})"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    """The measured commit, as git names it; with `-dirty` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
