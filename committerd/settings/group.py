"""The common base of the groups of settings."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

MIB = 1024 * 1024


def listed(value: Any) -> Any:
    """A list from a text: `a:9092,b:9092`, the notation of Kafka's own tools, or a JSON list of texts.

    Raises `ValueError` for a text that begins as a JSON list does, and is none.
    """
    if not isinstance(value, str):
        return value
    if not value.strip().startswith("["):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError('begins with [ and is no JSON list of texts: write ["a", "b"], or a,b without brackets')
    return tuple(found)


Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]
"""A list of values; in the environment commas separate them, or it is a JSON list."""


class SettingsGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
