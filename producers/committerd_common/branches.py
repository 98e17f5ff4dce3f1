"""Lance's branches: how they may be called, where they lie, and the name of their queue.

A branch is a folder of its own below the table's root, with its own versions. So for a committer it is a table of its
own, with a queue of its own.
"""

from __future__ import annotations

import re

from committerd_common.uris import canonical_uri

MAIN = "main"
"""The name of the main branch, which lies in the table's root."""
_TREE = "tree"
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


def checked_branch(name: str) -> str:
    """The name of a branch; empty for the main branch, whose name may be given as `main` or as an empty text.

    Raises `ValueError` for a name that Lance does not allow. Lance allows letters and digits of other scripts, and dots
    beside a slash; they are refused here, because the branch's queue is named after it (`branch_queue`).
    """
    if name in ("", MAIN):
        return ""
    if name.startswith("/") or name.endswith("/"):
        raise ValueError(f"branch {name!r} must not begin or end with a slash")
    # Lance: dataset/refs.rs, check_valid_branch
    if "//" in name or ".." in name:
        raise ValueError(f"branch {name!r} must not have two slashes or two dots in a row")
    if name.endswith(".lock"):
        raise ValueError(f"branch {name!r} must not end with .lock")
    if not all(_SEGMENT.fullmatch(one) for one in name.split("/")):
        raise ValueError(
            f"branch {name!r} has other characters than A-Z a-z 0-9 . _ - and /. (Lance allows letters of other "
            "scripts too; Kafka's topics, which are named after the branch, can't have them.)"
        )
    if "/." in name or "./" in name:
        raise ValueError(f"branch {name!r} has a dot beside a slash, so the name of its queue would not be unique")
    return name


def branch_uri(root: str, branch: str) -> str:
    """The URI of the branch's folder. `root`: that of the table; an empty `branch`: the table itself."""
    if not branch:
        return root
    place, query = _split(root)
    return f"{place.rstrip('/')}/{_TREE}/{branch}{query}"


def is_branch_folder(uri: str, branch: str) -> bool:
    """Whether the URI ends as that of the branch's folder does."""
    return _split(canonical_uri(uri))[0].endswith(f"/{_TREE}/{branch}")


def branch_queue(dataset: str, branch: str) -> str:
    """The name of a branch's queue: `events.tree.exp` for the branch `exp` of the dataset `events`.

    A slash in the name of a branch becomes two dots, which no such name has. An empty `branch`: the queue of the
    dataset itself.
    """
    return f"{dataset}.{_TREE}.{branch.replace('/', '..')}" if branch else dataset


def is_branch_queue(queue: str) -> bool:
    """Whether this is the name of a branch's queue."""
    return f".{_TREE}." in queue


def branch_file(branch: str) -> str:
    """The key, in the table's root, of the object in which Lance keeps what it knows of the branch."""
    return f"{BRANCHES}{branch.replace('/', '%2F')}.json"


def branch_folder(branch: str) -> str:
    """The key of the branch's folder in the table's root, with a slash at its end; empty for the main branch."""
    return f"{_TREE}/{branch}/" if branch else ""


BRANCHES = "_refs/branches/"
"""The folder, in the table's root, with an object for each branch."""


def _split(uri: str) -> tuple[str, str]:
    """(the place; the query with its question mark). Only URIs have a query, and those of local files do not."""
    scheme, mark, _ = uri.partition("://")
    if not mark or scheme.lower().startswith("file"):
        return uri, ""
    place, query, options = uri.partition("?")
    return place, query + options
