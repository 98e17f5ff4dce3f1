"""Why a branch can't be promoted."""

from __future__ import annotations

from committerd.errors import CommitterError


class PromotionRefused(CommitterError):
    """The branch can't be promoted as it is. Nothing of it was committed. The code is the cause."""

    code = "promotion_refused"


class PromotionConflict(PromotionRefused):
    """The main branch has changed what the branch changed too, or depends on."""

    code = "promotion_conflict"

    def __init__(
        self,
        message: str,
        *,
        branch_version: int = 0,
        branch_operation: str = "",
        version: int = 0,
        operation: str = "",
        rule: str = "",
    ) -> None:
        super().__init__(message, code=type(self).code)
        self.branch_version = branch_version
        """The version of the branch whose transaction conflicts; 0 = not known."""
        self.branch_operation = branch_operation
        self.version = version
        """The version of main that it conflicts with; 0 = not known."""
        self.operation = operation
        self.rule = rule
