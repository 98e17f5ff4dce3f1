"""Floors, which every machine must reach, and aims, whose distance is shown.

A floor that was not measured is not met. An aim decides nothing. `targets` has the bars of the benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.plan import Plan
from bench.results import Results, Side

Verdict = Literal["met", "NOT MET", "not measured", "FAILED"]

REACHED = "reached"
"""The distance of an aim that is reached."""
Measured = tuple[str, Mapping[str, float]]
"""The figures as text, and those that have limits by name."""


class NotMeasured(Exception):
    """A figure that a bar needs was not measured."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of one figure."""

    figure: str
    bound: float
    text: str
    """In words, with the bound."""
    at_most: bool

    def share(self, value: float) -> float:
        """How much of the limit this value reaches; 1 or more: it is reached."""
        good, needed = (self.bound, value) if self.at_most else (value, self.bound)
        return good / needed if needed else math.inf


def least(figure: str, bound: float, text: str) -> Limit:
    """A limit that the figure must not be below. `text`: with a place for the bound, as in `>= {:g}x pylance`."""
    return Limit(figure, bound, text.format(bound), at_most=False)


def most(figure: str, bound: float, text: str) -> Limit:
    """A limit that the figure must not be above; `text` as in `least`."""
    return Limit(figure, bound, text.format(bound), at_most=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of work, with its limits."""

    scenario: str
    work: str
    measure: Callable[[Values, Plan], Measured]
    """Raises `NotMeasured`."""
    floor: Sequence[Limit]
    aim: Sequence[Limit] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The result of one bar."""

    scenario: str
    work: str
    floor: str
    measured: str
    verdict: Verdict
    """Whether the floor is reached."""
    aim: str
    distance: str
    """How much of each limit of the aim is reached."""

    def as_json(self) -> dict[str, Any]:
        """Return the bar for `results.json.gz`."""
        return asdict(self)


class Values:
    """The figures that one scenario measured. Raises `NotMeasured` for a missing one."""

    def __init__(self, results: Results, scenario: str) -> None:
        self._results, self._scenario = results, scenario

    def __call__(self, side: Side, case: str, metric: str) -> float:
        """The median."""
        value = self._results.value(self._scenario, case, side, metric)
        if value is None:
            raise NotMeasured(f"{case}: {metric}")
        return value

    def most(self, side: Side, case: str, metric: str) -> float:
        """The largest sample."""
        samples = [
            one.samples
            for one in self._results.of(self._scenario)
            if (one.side, one.case, one.metric) == (side, case, metric)
        ]
        if not samples:
            raise NotMeasured(f"{case}: {metric}")
        return max(samples[0])


def judge(bars: Iterable[Bar], results: Results, plan: Plan) -> list[Judged]:
    """Judge every bar, including those whose scenario was not run."""
    return [_judged(bar, results, plan) for bar in bars]


def of_a_part(judged: Iterable[Judged], ran: Collection[str]) -> tuple[list[Judged], list[str]]:
    """Return the bars of the scenarios that were run, and the names of the scenarios whose floors were not measured."""
    own, left = list[Judged](), set[str]()
    for one in judged:
        if one.scenario in ran:
            own.append(one)
        else:
            left.add(one.scenario)
    return own, sorted(left)


def met(judged: Iterable[Judged]) -> bool:
    """Whether each floor was measured and is reached."""
    return all(one.verdict == "met" for one in judged)


def _judged(bar: Bar, results: Results, plan: Plan) -> Judged:
    verdict: Verdict = "not measured"
    measured = distance = ""
    if bar.scenario in results.failures:
        measured, verdict = f"the scenario failed: {results.failures[bar.scenario]}", "FAILED"
    else:
        try:
            measured, figures = bar.measure(Values(results, bar.scenario), plan)
        except NotMeasured:
            pass
        else:
            verdict = "met" if all(limit.share(figures[limit.figure]) >= 1 for limit in bar.floor) else "NOT MET"
            distance = ", ".join(_distances(bar.aim, figures))
    floor, aim = (", ".join(limit.text for limit in limits) for limits in (bar.floor, bar.aim))
    return Judged(
        scenario=bar.scenario,
        work=bar.work,
        floor=floor,
        measured=measured,
        verdict=verdict,
        aim=aim,
        distance=distance,
    )


def _distances(aim: Iterable[Limit], figures: Mapping[str, float]) -> Iterator[str]:
    for limit in aim:
        share = limit.share(figures[limit.figure])
        yield REACHED if share >= 1 else f"{math.floor(share * 100)} %"
