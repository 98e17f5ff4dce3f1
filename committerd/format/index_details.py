"""The same as `committerd_common.index_details`, under the name that it had."""

from committerd_common.index_details import *  # noqa: F403
