"""Finds datasets by their topics, and puts them into the file that names the datasets.

The file stays the only place that says which tables a process serves: the commands know the same tables as the
processes, and a broker that shows no topics for a moment takes no table away.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from committerd.errors import SettingsError
from committerd.settings.load import DatasetsFile
from committerd_common.branches import is_branch_queue

_STAGED = ".staged"
_NAME = "{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the file should hold, and how that differs from what it holds."""

    content: str
    added: list[str]
    removed: list[str]
    moved: list[str]
    """Datasets whose tables have another URI than in the file."""

    @property
    def differs(self) -> bool:
        return bool(self.added or self.removed or self.moved)


def names_in(topics: Iterable[str], pattern: re.Pattern[str], *, topic_prefix: str) -> list[str]:
    """The names of the datasets among these topics, in order: of each topic {topic_prefix}NAME.staged that matches.

    The topics of branches are passed over, because a branch is not at the URI that its name would make.
    """
    staged = (one for one in topics if one.startswith(topic_prefix) and one.endswith(_STAGED))
    names = (one[len(topic_prefix) : -len(_STAGED)] for one in staged)
    return sorted(one for one in names if pattern.fullmatch(one) and not is_branch_queue(one))


def found(names: Iterable[str], uri: str, file: DatasetsFile, *, pattern: re.Pattern[str]) -> Found:
    """The file for these datasets, without those that the settings name themselves.

    What the file has stays: entries whose names do not match `pattern`, and the settings of the others but their URI.
    `uri`: of each table; {name} stands for the dataset's name. Raises `SettingsError` if the file can't be read, or if
    a process could not serve these datasets.
    """
    if _NAME not in uri:
        raise SettingsError(f"--uri {uri!r} has no {_NAME}, so all datasets would be one table")
    if file.path.suffix != ".json":
        raise SettingsError(f"daemon.datasets_file {str(file.path)!r}: name a file that ends in .json")
    before = _read(file)
    entries = {name: entry for name, entry in before.items() if not pattern.fullmatch(name)}
    for name in names:
        if name not in file.others:
            entries[name] = {**before.get(name, {}), "uri": uri.replace(_NAME, name)}
    content = json.dumps({"datasets": dict(sorted(entries.items()))}, indent=2) + "\n"
    file.settings_in(content.encode())  # raises
    return Found(
        content=content,
        added=sorted(entries.keys() - before.keys()),
        removed=sorted(before.keys() - entries.keys()),
        moved=sorted(name for name in entries.keys() & before.keys() if entries[name] != before[name]),
    )


def _read(file: DatasetsFile) -> Mapping[str, Mapping[str, object]]:
    """What the file holds by dataset; nothing if there is no file yet."""
    if not file.path.exists():
        return {}
    content = file.read()
    file.settings_in(content)  # raises if it is no such file
    known: Mapping[str, Mapping[str, object]] = json.loads(content)["datasets"]
    return known


def write(file: DatasetsFile, content: str) -> None:
    """Replace the file at once, so that nobody reads half of it. Raises `SettingsError` if that is not possible."""
    path = file.path
    try:
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write(content)
            os.chmod(new, 0o644)  # the processes that read it may be another user's
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        raise SettingsError(f"daemon.datasets_file {str(path)!r}: {error.strerror or error}") from error
