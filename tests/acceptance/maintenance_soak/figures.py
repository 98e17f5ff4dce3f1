"""How the table develops beside the targets of maintenance."""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The table at one moment."""

    second: float
    version: int
    fragments: int
    versions: int
    bytes: int
    live_bytes: int
    """Of the data files and indices that the latest version names."""
    new_bytes: int
    """Of the files that were written since versions began that must stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What maintenance aims for."""

    fragments: int
    hour_seconds: float
    """How long versions stay."""
    keep_versions: int
    cleanup_seconds: float

    @property
    def window_seconds(self) -> float:
        """How long a version stays that was replaced: an hour, and until the next cleanup."""
        return self.hour_seconds + self.cleanup_seconds

    def versions(self, samples: Sequence[Sample], at: Sample) -> int:
        """Versions that stay: the newest ones, and those that were the latest in this time."""
        return self.keep_versions + at.version - self._before(samples, at).version

    def bytes(self, samples: Sequence[Sample], at: Sample) -> int:
        """Bytes that these versions need at most: what there was before, and what was written since."""
        return self._before(samples, at).live_bytes + at.new_bytes

    def _before(self, samples: Sequence[Sample], at: Sample) -> Sample:
        """The last sample before this time."""
        place = bisect.bisect_right([one.second for one in samples], at.second - self.window_seconds)
        return samples[max(place - 1, 0)]

    def worst(self, samples: Sequence[Sample], *, after: float) -> dict[str, tuple[float, float]]:
        """The highest ratio of each figure to its target in the samples after second `after`, and the second of it.

        Without such samples all are 0.
        """
        late = [one for one in samples if one.second >= after]
        return {
            "fragments": max(((one.fragments / self.fragments, one.second) for one in late), default=(0, 0)),
            "versions": max(((one.versions / self.versions(samples, one), one.second) for one in late), default=(0, 0)),
            "bytes": max(((one.bytes / self.bytes(samples, one), one.second) for one in late), default=(0, 0)),
        }


def table_of(samples: Sequence[Sample], targets: Targets, *, rows: int = 12) -> list[str]:
    """Fragments, versions and bytes over time, beside their targets."""
    return [beside_targets(samples, one, targets) for one in samples[:: max(len(samples) // rows, 1)]]


def beside_targets(samples: Sequence[Sample], one: Sample, targets: Targets) -> str:
    """One of these samples, for people."""
    return (
        f"{one.second:6.0f} s: {one.fragments:5} fragments ({targets.fragments}), {one.versions:5} versions "
        f"({targets.versions(samples, one)}), {one.bytes / 2**20:8.1f} MiB "
        f"({targets.bytes(samples, one) / 2**20:.1f})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files below a table's folder, as far as nobody deleted them meanwhile."""

    manifests: int = 0
    bytes: int = 0
    new_bytes: int = 0
    """Bytes of the files that were written in the last `window_seconds`."""


def files_of(folder: Path, *, new_seconds: float) -> Files:
    """What is below the folder now."""
    since = time.time() - new_seconds
    manifests = size = new = 0
    folders = [str(folder)]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat()
                    size += found.st_size
                    new += found.st_size * (found.st_mtime >= since)
                    manifests += entry.name.endswith(".manifest")
    return Files(manifests=manifests, bytes=size, new_bytes=new)
