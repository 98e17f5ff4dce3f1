"""Keeps Python's garbage collector away from what lives as long as the process: modules, tests and their parameters.

The collector would look through them again and again, which takes a fifth of the time in which tests are collected, and
a tenth of that of the simulation.
"""

from __future__ import annotations

import gc

import pytest


def pytest_configure() -> None:
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Everything is collected; other plugins run the tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Pytest may run within a process that goes on."""
    gc.unfreeze()
    gc.enable()
