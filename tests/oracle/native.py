"""One change made by pylance: the transaction that it staged, and what it then did by itself.

pylance makes a change on a table whose newer versions are hidden. When it is about to put the next version, they
appear: it loses that race, judges and rebases its own change over them with all that it knows in memory, and commits it
or gives up. The transaction that it staged before the race is what a producer would send: we then commit the same
bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance

from committerd.lance.format.manifest_file import decode
from tests.conformance.facts import manifests

HINT = "latest_version_hint.json"

Lock = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A table as a change finds it."""

    uri: str
    dataset: Any
    lock: Lock
    """To be given to pylance wherever a handle other than `dataset` commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """The results of a change."""

    staged: list[bytes]
    """Transactions in the order of their first attempts; a compaction has two."""
    verdicts: list[str]
    """The verdict on each: committed, retryable, incompatible or error."""
    error: str


def change(root: Path, read_version: int, target: Path, apply: Callable[[Opened], None]) -> Native:
    """Make a change in the table in `root`, planned at `read_version`, over all that was committed since.

    `apply` may be called twice, and must do the same both times. `root` changes as pylance leaves it; `target` becomes
    the table as it was before, with the staged files.
    """
    versions = manifests(root)
    newer = [path for version, path in versions.items() if version > read_version]
    quiet = link_tree(root, root.with_name(f"{root.name}-quiet"))
    link_tree(root, target)
    staged, error = _run(root, target, newer, apply)
    committed = _uuids(root, max(versions))
    verdicts = ["committed" if uuid in committed else verdict_of(error) for uuid in staged]
    if error and verdicts and all(verdict == "committed" for verdict in verdicts):
        # The second of two was refused before it was staged, because nothing was hidden any more.
        for path in newer:
            (quiet / path.relative_to(root)).unlink()
        alone, _ = _run(quiet, target, [], apply)
        for uuid, body in list(alone.items())[len(staged) :]:
            staged[uuid] = body
            verdicts.append(verdict_of(error))
    return Native(staged=list(staged.values()), verdicts=verdicts, error=error)


def _run(root: Path, target: Path, newer: list[Path], apply: Callable[[Opened], None]) -> tuple[dict[str, bytes], str]:
    """Return what was staged first under each uuid, and the error that pylance raised."""
    hidden, known = _hide(root, newer), _files(root)
    staged: dict[str, bytes] = {}

    @contextmanager
    def lock(_: int) -> Iterator[None]:
        for path in (root / "_transactions").iterdir():
            if _relative(path, root) not in known:
                staged.setdefault(path.stem.split("-", 1)[1], path.read_bytes())
        _copy_staged(root, target, known)
        _show(root, hidden)
        yield

    told = ""
    try:
        apply(Opened(uri=str(root), dataset=lance.dataset(str(root), commit_lock=lock), lock=lock))
    except BaseException as error:
        # pylance's panics are not derived from Exception.
        if isinstance(error, (KeyboardInterrupt, SystemExit, AssertionError)):
            raise
        told = f"{type(error).__name__}: {error}"
    _show(root, hidden)
    return staged, told


def verdict_of(error: str) -> str:
    """What pylance's error means for the transaction."""
    if "Retryable commit conflict" in error or "Too many concurrent writers" in error:
        return "retryable"
    if "Incompatible transaction" in error:
        return "incompatible"
    return "error"


def link_tree(source: Path, target: Path) -> Path:
    """A copy that shares its files: writers replace files, and never change one."""
    return Path(shutil.copytree(source, target, copy_function=os.link))


def _hide(root: Path, paths: list[Path]) -> list[Path]:
    # Beside the table, not in it: pylance lists everything in `_versions`.
    aside = root.with_name(f"{root.name}-hidden")
    aside.mkdir()
    (root / "_versions" / HINT).unlink(missing_ok=True)
    return [path.rename(aside / path.name) for path in paths]


def _show(root: Path, hidden: list[Path]) -> None:
    while hidden:
        path = hidden.pop()
        path.rename(root / "_versions" / path.name)


def _copy_staged(root: Path, target: Path, known: set[str]) -> None:
    for relative in _files(root) - known:
        to = target / relative
        if relative.startswith(("_versions/", "_transactions/")) or to.exists():
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(root / relative, to)


def _files(root: Path) -> set[str]:
    return {_relative(path, root) for path in root.rglob("*") if path.is_file()}


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _uuids(root: Path, above: int) -> set[str]:
    """Uuids of the transactions in the versions above `above`."""
    found = set()
    for version, path in manifests(root).items():
        if version > above:
            transaction = decode(path.read_bytes()).transaction
            assert transaction is not None
            found.add(transaction.uuid)
    return found
