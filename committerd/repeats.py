"""The same as `committerd_common.repeats`, under the name that it had."""

from committerd_common.repeats import *  # noqa: F403
