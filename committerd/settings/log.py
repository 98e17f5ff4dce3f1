"""Group `log`: what is logged, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from committerd.settings.group import SettingsGroup


class LogSettings(SettingsGroup):
    """What goes to standard output."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest severity to log.")
    format: Literal["json", "text"] = Field(
        default="json", description="json: one object on each line; text: for a terminal."
    )
    transactions: Literal["refused", "all"] = Field(
        default="refused",
        description="refused: a line for each transaction that was not committed; all: a line for each transaction.",
    )
