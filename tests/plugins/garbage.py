"""Keeps Python's garbage collector away from what lives as long as the process: modules, tests and their parameters.

The collector would search them again and again. That takes a fifth of the time to collect the tests, and a tenth of the
time of the simulation. It also runs less often than usual, because most garbage of tests has no cycles and goes without
it.
"""

from __future__ import annotations

import gc

import pytest

_THRESHOLDS, _USUAL = (50_000, 20, 50), gc.get_threshold()


def pytest_configure() -> None:
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Called when the tests are collected, before they run; returns None, so that pytest runs them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


def pytest_unconfigure() -> None:
    """Pytest may run within a process that goes on."""
    gc.unfreeze()
    gc.set_threshold(*_USUAL)
    gc.enable()
