"""The branches of a table, as Lance keeps them in its root."""

from __future__ import annotations

from urllib.parse import unquote

from committerd.errors import RefusedToRun
from committerd.stores.port import ObjectStore
from committerd_common.branches import BRANCHES, branch_file, branch_folder
from committerd_common.paths import VERSIONS

_ENDING = ".json"
_SHOWN_MAX = 20


async def branches(root: ObjectStore) -> list[str]:
    """The names of the table's branches, ascending. `root`: the table's root. Raises `StoreUnavailable`."""
    keys = await root.list(BRANCHES)
    return sorted(unquote(key.removeprefix(BRANCHES).removesuffix(_ENDING)) for key in keys if key.endswith(_ENDING))


async def require_branch(root: ObjectStore, branch: str) -> None:
    """Raise `RefusedToRun` (`branch_missing`) if the table has no such branch, or no version of it.

    Costs two requests. Without this check, a create that is staged to the branch would make a table in the branch's
    folder of which Lance knows nothing.
    """
    if await root.head(branch_file(branch)) is not None:
        if await root.list(f"{branch_folder(branch)}{VERSIONS}", limit=1):
            return
        raise RefusedToRun(
            f"{root.uri} has a branch {branch!r}, but no version of it in {branch_folder(branch)}{VERSIONS}: delete "
            "the branch with pylance, and create it again",
            code="branch_missing",
        )
    known = await branches(root)
    shown = ", ".join(map(repr, known[:_SHOWN_MAX])) + (", ..." if len(known) > _SHOWN_MAX else "")
    raise RefusedToRun(
        f"{root.uri} has no branch {branch!r}; it has {shown or 'none'}. Create it with pylance, "
        f"lance.dataset(uri).create_branch({branch!r}), or correct dataset.branch",
        code="branch_missing",
    )
