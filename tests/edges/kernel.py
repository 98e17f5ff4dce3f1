"""What a store asks of the kernel: noted, or made to fail."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest


def note_calls(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """What is synced and named from now on, in order, as seen from `root`; temporary files as `*`."""
    calls: list[str] = []
    fsync, link, rename = os.fsync, os.link, os.rename

    def shown(path: str) -> str:
        shorter = os.path.relpath(path, root)
        return re.sub(r"\.tmp-[0-9a-f]{16}$", "*", shorter)

    def sync(descriptor: int) -> None:
        calls.append("sync " + shown(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def name(kind: str) -> object:
        real = link if kind == "link" else rename

        def call(source: str, target: str) -> None:
            calls.append(f"{kind} {shown(source)} {shown(target)}")
            real(source, target)

        return call

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", name("link"))
    monkeypatch.setattr(os, "rename", name("rename"))
    return calls


def failing(code: int) -> object:
    """A call that the kernel refuses with this errno."""

    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call
