"""The same as `committerd_common.unknown_fields`, under the name that it had."""

from committerd_common.unknown_fields import *  # noqa: F403
