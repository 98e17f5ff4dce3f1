"""The same as `committerd_common.messages`, under the name that it had."""

from committerd_common.messages import *  # noqa: F403
