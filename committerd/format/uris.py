"""The same as `committerd_common.uris`, under the name that it had."""

from committerd_common.uris import *  # noqa: F403
