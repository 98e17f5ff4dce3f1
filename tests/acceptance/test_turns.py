"""What `make turns` asks of upserts under Appends."""

from __future__ import annotations

import pytest

from committerd_client import CommitResult, CommitStatus
from harness.turns.load import Load
from harness.turns.upserts_under_appends import Measured
from harness.turns.verdict import verdict


def measured(attempts: list[int], waited: float) -> Measured:
    made = Measured(waited=[waited] * len(attempts))
    for number in attempts:
        result = CommitResult(
            uuid="u", status=CommitStatus.COMMITTED, version=1, offset=0, operation="update", attempts=number
        )
        made.upserts.append((result, waited))
    return made


@pytest.mark.parametrize(
    ("shares_row", "names_keys", "attempts", "waited", "said"),
    [
        (False, True, [1] * 200, 0.5, ""),
        (False, True, [1] * 199 + [2], 0.1, "took 2 attempts"),
        (False, True, [1] * 200, 0.6, "p99 from staging to outcome is 0.60 s"),
        (True, True, [2] * 198 + [3] * 2, 0.6, ""),
        (True, True, [2] * 197 + [3] * 3, 0.1, "at most 2 allowed"),
        (False, False, [3] * 198 + [9] * 2, 9.0, ""),
        (False, False, [3] * 197 + [4] * 3, 0.1, "at most 3 allowed"),
    ],
)
def test_a_requirement_that_is_not_met_is_told(
    shares_row: bool, names_keys: bool, attempts: list[int], waited: float, said: str
) -> None:
    load = Load(upserts=200, upserters=2, appends_per_second=500, names_keys=names_keys, shares_row=shares_row)
    wrong = verdict(load, measured(attempts, waited))
    assert len(wrong) == bool(said)
    assert said in "".join(wrong)
