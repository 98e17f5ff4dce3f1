"""What Lance writes of a branch: `_refs/branches/NAME.json`, and a folder of its own below the table's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from uuid import UUID, uuid5

from committerd.branches.refusal import PromotionRefused
from committerd.errors import CorruptTable
from committerd_common.branches import branch_file, branch_uri, checked_branch
from committerd_common.uris import canonical_uri

_OWN = UUID("5b0f6b5c-7f0e-5b43-9a37-3f2d3f6f6b11")
"""The namespace of the uuids of promotions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch of a table."""

    name: str
    parent: str | None
    """The branch that it left; None = the main branch."""
    start: int
    """The version at which it left its parent. Its own first version has the same number."""
    identity: str
    """Tells it from an earlier branch of the same name, in hexadecimal digits."""

    def promotion(self, version: int) -> str:
        """The uuid of the transaction that brings this branch up to this version to main: the same in each attempt."""
        return str(uuid5(_OWN, f"{self.identity}/{version}"))

    def indices(self, version: int) -> str:
        """The uuid of the transaction that brings the indices of this version of the branch to main."""
        return str(uuid5(_OWN, f"{self.identity}/{version}/indices"))


def reference_key(name: str) -> str:
    """The key of the object that describes a branch.

    Raises `PromotionRefused` (`no_such_branch`) for main, and for a name that no branch can have.
    """
    try:
        checked = checked_branch(name)
    except ValueError as error:
        raise PromotionRefused(str(error), code="no_such_branch") from error
    if not checked:
        raise PromotionRefused("main can't be promoted into itself: name a branch", code="no_such_branch")
    return branch_file(checked)


def parse_reference(name: str, body: bytes) -> Branch:
    """The branch that this object describes. Raises `CorruptTable` (`branch_reference`)."""
    try:
        said = json.loads(body)
        parent = said.get("parentBranch")
        mapping = (said.get("identifier") or {}).get("version_mapping") or []
        # A branch made by an old Lance has no identifier: then the time of its creation tells it from others.
        identity = UUID(mapping[-1][1]).hex if mapping else f"{int(said['createAt']):032x}"
        return Branch(
            name=name,
            parent=None if parent in (None, "main") else str(parent),
            start=int(said["parentVersion"]),
            identity=identity,
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptTable(
            f"{reference_key(name)} is not what Lance writes: {error!r}", code="branch_reference"
        ) from error


def base_path_of(table: str, name: str) -> str:
    """The folder of a branch as a base path, where readers find its data files without a manifest store."""
    return plain_uri(branch_uri(table, name))


def plain_uri(uri: str) -> str:
    """The URI of the objects of a table, without its manifest store."""
    return canonical_uri(uri).partition("?")[0].replace("s3+ddb://", "s3://", 1)
