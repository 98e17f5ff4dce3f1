"""The measured figures: every sample of every run, and statistics of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

FORMAT = 1
Side = Literal["committerd", "pylance", "limit"]
"""The measured side; `limit` is the raw operation without either of them."""


@dataclass(slots=True, kw_only=True)
class Series:
    """One figure, measured several times."""

    scenario: str
    case: str
    """What was done, in words: `32 writers, durable`."""
    side: Side
    metric: str
    unit: str
    samples: list[float] = field(default_factory=list)
    """One sample of each run, or of each repetition; none is left out."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(slots=True, kw_only=True)
class Distribution:
    """The latencies of one run, as their percentiles 0, 1, ... 100."""

    scenario: str
    case: str
    side: Side
    count: int
    seconds: list[float]


class Results:
    """Collects the figures; scenarios write, targets and reports read."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self.distributions: list[Distribution] = []
        self.failures: dict[str, str] = {}
        """Scenario -> why it ended early. Its floors are not met."""
        self.seconds: dict[str, float] = {}
        """Scenario -> the seconds that it took."""

    def note(self, scenario: str, case: str, side: Side, **figures: tuple[float, str]) -> None:
        """Add one sample of each figure: name=(value, unit)."""
        for metric, (value, unit) in figures.items():
            key = (scenario, case, side, metric)
            made = Series(scenario=scenario, case=case, side=side, metric=metric, unit=unit)
            self._series.setdefault(key, made).samples.append(float(value))

    def note_latencies(self, scenario: str, case: str, side: Side, seconds: Sequence[float]) -> None:
        """Add the latencies of one run: p50, p99 and max as figures, all of them as a distribution."""
        if not seconds:
            return
        ascending = sorted(seconds)
        self.note(
            scenario,
            case,
            side,
            p50=(percentile(ascending, 50), "s"),
            p99=(percentile(ascending, 99), "s"),
            max=(ascending[-1], "s"),
        )
        shape = [round(percentile(ascending, share), 7) for share in range(101)]
        self.distributions.append(
            Distribution(scenario=scenario, case=case, side=side, count=len(ascending), seconds=shape)
        )

    def value(self, scenario: str, case: str, side: Side, metric: str) -> float | None:
        """The median; None if it was not measured."""
        found = self._series.get((scenario, case, side, metric))
        return found.median if found else None

    def of(self, scenario: str) -> Iterator[Series]:
        """All series of one scenario, in the order in which they were first measured."""
        return (one for one in self._series.values() if one.scenario == scenario)

    def scenarios(self) -> list[str]:
        """The scenarios that were run, in order."""
        return list(self.seconds)

    def as_json(self, facts: Mapping[str, Any], **derived: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return everything for `results.json.gz`."""
        return {
            "format": FORMAT,
            **facts,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "failures": self.failures,
            **{name: list(rows) for name, rows in derived.items()},
            "series": [asdict(one) | {"median": one.median} for one in self._series.values()],
            "distributions": [asdict(one) for one in self.distributions],
        }


def percentile(ascending: Sequence[float], share: int) -> float:
    """The smallest value that this share (in percent) of all values does not exceed; 0 = the minimum."""
    return ascending[max(-(-len(ascending) * share // 100) - 1, 0)]
