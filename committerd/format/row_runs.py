"""The same as `committerd_common.row_runs`, under the name that it had."""

from committerd_common.row_runs import *  # noqa: F403
