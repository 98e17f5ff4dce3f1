"""The same as `committerd_common.malformed`, under the name that it had."""

from committerd_common.malformed import *  # noqa: F403
