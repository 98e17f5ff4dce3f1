"""A store's system calls: recorded, or made to fail."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def note_calls(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Record what is synced, linked, renamed, and dropped from the page cache, in order, relative to `root`; temporary
    files as `*`.
    """
    calls: list[str] = []
    fsync, link, rename, advise = os.fsync, os.link, os.rename, os.posix_fadvise

    def shown(path: str) -> str:
        shorter = os.path.relpath(path, root)
        return re.sub(r"\.tmp-[0-9a-f]{16}$", "*", shorter)

    def opened(descriptor: int) -> str:
        return shown(os.readlink(f"/proc/self/fd/{descriptor}"))

    def sync(descriptor: int) -> None:
        calls.append("sync " + opened(descriptor))
        fsync(descriptor)

    def let_go(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        calls.append("let go " + opened(descriptor))
        advise(descriptor, offset, length, advice)

    def name(kind: str) -> object:
        real: Any = link if kind == "link" else rename

        def call(source: str, target: str) -> None:
            calls.append(f"{kind} {shown(source)} {shown(target)}")
            real(source, target)

        return call

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", name("link"))
    monkeypatch.setattr(os, "rename", name("rename"))
    monkeypatch.setattr(os, "posix_fadvise", let_go)
    return calls


def failing(code: int) -> object:
    """A call that fails with this errno."""

    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def failing_at(name: str, code: int) -> Callable[..., int]:
    """`os.open`, which fails with this errno for files of this name."""
    opened = os.open

    def call(path: str, *flags: Any, **how: Any) -> int:
        if path == name:
            raise OSError(code, os.strerror(code))
        return opened(path, *flags, **how)

    return call
