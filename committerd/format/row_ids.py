"""The same as `committerd_common.row_ids`, under the name that it had."""

from committerd_common.row_ids import *  # noqa: F403
