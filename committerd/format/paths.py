"""The same as `committerd_common.paths`, under the name that it had."""

from committerd_common.paths import *  # noqa: F403
