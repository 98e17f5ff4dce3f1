"""Completion by bash, zsh and fish: what click needs to make it, and what it offers."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

_SCRIPT = Path(sysconfig.get_path("scripts"), "committerd")


def _completed(shell: str, *words: str) -> list[str]:
    """What the shell offers for the last word."""
    typed = "committerd " + " ".join(words)
    current = words[-1] if shell == "fish" else str(len(words))
    environment = os.environ | {
        "_COMMITTERD_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": current,
    }
    done = subprocess.run([_SCRIPT], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    if shell == "zsh":  # type, word and help, a line each
        return lines[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_completes_commands_options_and_choices(shell: str) -> None:
    assert _completed(shell, "expl") == ["explain"]
    assert _completed(shell, "p") == ["promote", "probe", "pause", "position"]
    assert _completed(shell, "dead", "re") == ["replay"]
    assert _completed(shell, "tail", "--si") == ["--since"]
    assert "--producer" in _completed(shell, "tail", "--p")
    assert _completed(shell, "tail", "--status", "retr") == ["retryable"]


@pytest.mark.parametrize(("shell", "names"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --")])
def test_the_script_of_each_shell(shell: str, names: str) -> None:
    environment = os.environ | {"_COMMITTERD_COMPLETE": f"{shell}_source"}
    script = subprocess.run([_SCRIPT], env=environment, capture_output=True, text=True, check=True).stdout
    assert names in script
    assert f"{shell}_complete" in script
