"""The error of a package whose extra is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from committerd_common.extras import install_line, missing


def test_the_first_missing_module_and_its_extra_are_named() -> None:
    error = missing("json", "no_such_module", "nor_this", of="committerd_spark", extra="spark")
    assert error is not None
    assert error.name == "no_such_module"
    assert str(error) == (f"committerd_spark needs no_such_module, which is not installed: {install_line('spark')}")


def test_nothing_is_said_if_all_are_there() -> None:
    assert missing("json", "re", of="committerd_spark", extra="spark") is None


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///a%20clone/producers", "dir_info": {"editable": True}},
            "pip install '/a clone/producers[dev]'",
        ),
        ({"url": "file:///wheels/some.whl", "archive_info": {}}, "pip install 'some-package[dev]'"),
        (None, "pip install 'some-package[dev]'"),
    ],
)
def test_what_was_installed_from_a_folder_is_installed_from_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: object, command: str
) -> None:
    about = tmp_path / "some_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1\n")
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_line("dev", distribution="some-package") == command


def test_what_is_not_installed_is_installed_by_its_name() -> None:
    assert install_line("dev", distribution="no-such-package") == "pip install 'no-such-package[dev]'"
