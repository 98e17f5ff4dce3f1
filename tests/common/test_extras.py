"""The error of a package whose extra is not installed."""

from __future__ import annotations

from committerd_common.extras import missing


def test_the_first_missing_module_and_its_extra_are_named() -> None:
    error = missing("json", "no_such_module", "nor_this", of="committerd_spark", extra="spark")
    assert error is not None
    assert error.name == "no_such_module"
    assert str(error) == (
        "committerd_spark needs no_such_module, which is not installed: pip install 'committerd-client[spark]'"
    )


def test_nothing_is_said_if_all_are_there() -> None:
    assert missing("json", "re", of="committerd_spark", extra="spark") is None
