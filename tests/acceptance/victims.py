"""What a long run does to the processes that it harms."""

from __future__ import annotations

import psutil

from harness.daemon import Daemon


def harm(what: str, victim: Daemon) -> None:
    """Kill (SIGKILL), freeze (SIGSTOP) or stop (SIGTERM) a process: `what` is "kill", "freeze" or "stop"."""
    match what:
        case "kill":
            victim.kill()
        case "freeze":
            try:
                victim.freeze()
            except (AssertionError, psutil.Error):
                if victim.running():  # it has not ended by itself meanwhile
                    raise
        case _:
            victim.stop()


def go_on(victim: Daemon) -> None:
    """Start a process that has ended; wake a process that stands still."""
    if victim.running():
        victim.thaw()
    else:
        victim.start()
