"""Group `dataset`: which table the committer serves."""

from __future__ import annotations

from pydantic import Field, field_validator

from committerd.settings.group import Listed, SettingsGroup
from committerd_common.branches import branch_queue, branch_uri, checked_branch

_CONTAINER_BEFORE_AT = frozenset({"abfs", "abfss", "az", "azure", "wasb", "wasbs"})
"""Schemes of Azure, whose URIs have a container, and not a user, before the @."""


def checked_uri(uri: str) -> str:
    """The URI, if it is valid. Raises `ValueError`, whose message never contains a possible password."""
    if not uri.strip():
        raise ValueError("the URI is empty")
    if uri != uri.strip():
        raise ValueError("a URI must not begin or end with a space")
    scheme, _, rest = uri.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    if user and (":" in user or scheme not in _CONTAINER_BEFORE_AT):
        raise ValueError(
            "a URI must not contain a user or password (before the @): set s3.access_key_id and s3.secret_access_key, "
            "or use the usual chain of AWS credentials"
        )
    return uri


class DatasetSettings(SettingsGroup):
    """Which table this committer serves."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="Name of the dataset in topics and metrics: the staged topic is {kafka.topic_prefix}{name}.staged.",
    )
    uri: str = Field(
        min_length=1,
        description="URI of the table: a path, a file:// URI, s3://bucket/path or "
        "s3+ddb://bucket/path?ddbTableName=TABLE, az://container/path, "
        "abfss://container@account.dfs.core.windows.net/path or gs://bucket/path. "
        "The table need not exist yet; a staged create makes it.",
    )
    branch: str = Field(
        default="",
        description="A branch of the table, which is served as a table of its own, with a queue of its own: its topics "
        "and group are named {name}.tree.{branch}, with .. for each slash. Default: the main branch.",
    )
    aliases: Listed = Field(
        default=(),
        description="Other URIs that producers may use for this table in the header `dataset`; any other URI is "
        "INVALID.",
    )

    @field_validator("uri")
    @classmethod
    def _uri(cls, value: str) -> str:
        return checked_uri(value)

    @field_validator("branch")
    @classmethod
    def _branch(cls, value: str) -> str:
        return checked_branch(value)

    @field_validator("aliases")
    @classmethod
    def _aliases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_uri(one) for one in value)

    @property
    def queue(self) -> str:
        """The name of the queue, in topics, group and metrics: that of the dataset, or of its branch."""
        return branch_queue(self.name, self.branch)

    @property
    def place(self) -> str:
        """The URI of what is served: of the table's root, or of the branch's folder."""
        return branch_uri(self.uri, self.branch)

    @property
    def place_aliases(self) -> tuple[str, ...]:
        """The other URIs of what is served."""
        return tuple(branch_uri(one, self.branch) for one in self.aliases)
