"""The same as `committerd_common.request`, under the name that it had."""

from committerd_common.request import *  # noqa: F403
