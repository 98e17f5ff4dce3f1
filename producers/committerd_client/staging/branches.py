"""A dataset that is open at a branch: the helpers work in the branch's folder, as in a table of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from committerd_client.staging.errors import StagingError
from committerd_common.branches import branch_uri, is_branch_folder

if TYPE_CHECKING:
    import lance

    from committerd_common.messages import Manifest

P = ParamSpec("P")
T = TypeVar("T")


class BranchCheckedOut(StagingError):
    """The dataset is open at a branch by way of the table's root, to which helpers would write the files."""

    def __init__(self, dataset: lance.LanceDataset, branch: str) -> None:
        self.place = branch_uri(dataset.uri, branch)
        super().__init__(
            f"the dataset is open at branch {branch!r} by way of the table's root: open the branch's folder, "
            f"lance.dataset({self.place!r})",
            code="branch",
        )


def require_own_folder(dataset: lance.LanceDataset, manifest: Manifest) -> None:
    """Raise `BranchCheckedOut` if the dataset is open at a branch, and not in the branch's folder."""
    if manifest.branch and not is_branch_folder(dataset.uri, manifest.branch):
        raise BranchCheckedOut(dataset, manifest.branch)


def takes_branches(helper: Callable[P, T]) -> Callable[P, T]:
    """A helper that opens the branch's folder if its dataset is open at a branch by way of the table's root.

    pylance's `checkout_version((branch, None))` returns such a dataset. The helper must read the table before it writes
    or consumes anything, because it is called again.
    """

    @wraps(helper)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return helper(*arguments, **named)
        except BranchCheckedOut as found:
            place = found.place

        def moved(one: Any) -> Any:
            return _opened(one, place) if hasattr(one, "_ds") else one

        given: Any = [moved(one) for one in arguments]
        by_name: Any = {name: moved(one) if name == "dataset" else one for name, one in named.items()}
        return helper(*given, **by_name)

    return call


def _opened(dataset: lance.LanceDataset, place: str) -> lance.LanceDataset:
    import lance

    return lance.dataset(place, version=dataset.version, storage_options=dataset.latest_storage_options())
