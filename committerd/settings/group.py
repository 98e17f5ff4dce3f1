"""The common base of the groups of settings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

MIB = 1024 * 1024


def comma_separated(value: Any) -> Any:
    """Split `a:9092,b:9092`, the notation of Kafka's own tools, into a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(comma_separated)]
"""A list of values; commas separate them in the environment."""


class SettingsGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
