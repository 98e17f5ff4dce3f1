"""The common base of the groups of settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import (
    NoDecode,
)

from committerd.settings.kafka import comma_separated

MIB = 1024 * 1024

Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(comma_separated)]
"""A list of values; commas separate them in the environment."""


class SettingsGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
