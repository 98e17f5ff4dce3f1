"""Draws the figures as SVG for the documents, with matplotlib, which most people who plot in Python know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.bench import mode
from bench.results import Results, Side
from bench.scenarios import fragments, memory, mixed, s3, writers

_COLOURS = {
    "pylance": "#d1495b",
    "pylance, by URI": "#e8a0a9",
    "committerd, durable": "#00507a",
    "committerd, not durable": "#2e9cca",
    "committerd": "#00507a",
    "the bytes alone, durable": "#777777",
    "the bytes alone, not durable": "#aaaaaa",
}
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "committerd",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.facecolor": "white",
}

Points = Sequence[tuple[float, float]]


def draw_all(results: Results, folder: Path) -> list[str]:
    """Draw a plot for each scenario that has figures; return the names of the files."""
    drawn = []
    with mpl.rc_context(_SETTINGS):
        for name, draw in _PLOTS.items():
            figure = draw(results)
            if figure is not None:
                figure.savefig(folder / name, format="svg", metadata={"Date": None})
                drawn.append(name)
    return drawn


def _writers(results: Results) -> Figure | None:
    counts = sorted({int(one.case.split()[0]) for one in results.of(writers.NAME)})

    def points(side: Side, metric: str, durable: bool | None) -> Points:
        return _known((n, results.value(writers.NAME, writers.case(n, durable), side, metric)) for n in counts)

    def lines(axes: Axes, metric: str) -> None:
        _line(axes, "pylance", points("pylance", metric, None))
        for durable in (True, False):
            _line(axes, f"committerd, {mode(durable)}", points("committerd", metric, durable))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xlabel("writers")

    if not counts:
        return None
    figure, (left, right) = _panels(2)
    lines(left, "rate")
    left.set_title("commits a second")
    left.legend(frameon=False)
    lines(right, "p99")
    right.set_title("99th percentile of a commit, seconds")
    return figure


def _latencies(results: Results) -> Figure | None:
    """The latencies of the most contended case: one line for each run."""
    found = [one for one in results.distributions if one.scenario == writers.NAME]
    if not found:
        return None
    most = max(int(one.case.split()[0]) for one in found)
    figure, (axes,) = _panels(1)
    named: set[str] = set()
    for one in found:
        head, _, tail = one.case.partition(", ")
        if int(head.split()[0]) == most:
            label = f"{one.side}, {tail}" if tail else one.side
            axes.plot(one.seconds, range(101), color=_COLOURS[label], label=None if label in named else label)
            named.add(label)
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("% of commits done within")
    axes.set_title(f"{most} writers: how long a commit takes")
    axes.legend(frameon=False)
    return figure


def _fragments(results: Results) -> Figure | None:
    sizes = sorted({int(one.case.split()[0]) for one in results.of(fragments.NAME)})
    if not sizes:
        return None
    figure, (axes,) = _panels(1)
    kinds: list[tuple[str, Side, str]] = [
        ("pylance", "pylance", fragments.WARM),
        ("pylance, by URI", "pylance", fragments.BY_URI),
        ("committerd, durable", "committerd", mode(True)),
        ("committerd, not durable", "committerd", mode(False)),
        ("the bytes alone, durable", "limit", mode(True)),
        ("the bytes alone, not durable", "limit", mode(False)),
    ]
    for label, side, what in kinds:
        values = _known((n, results.value(fragments.NAME, fragments.case(n, what), side, "commit")) for n in sizes)
        _line(axes, label, values)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("fragments in the table")
    axes.set_title("one append, seconds")
    axes.legend(frameon=False)
    return figure


def _s3(results: Results) -> Figure | None:
    cases = list(dict.fromkeys(one.case for one in results.of(s3.NAME) if one.metric == "rate"))
    if not cases:
        return None
    figure, (left, right) = _panels(2)
    for axes, metric, title in ((left, "rate", "commits a second"), (right, "p99", "99th percentile, seconds")):
        groups = [(case, {str(side): results.value(s3.NAME, case, side, metric) for side in _SIDES}) for case in cases]
        _bars(axes, groups)
        axes.set_yscale("log")
        axes.set_title(f"object store: {title}")
    left.legend(frameon=False)
    return figure


def _others(results: Results) -> Figure | None:
    peaks = {
        "pylance": results.value(memory.NAME, memory.PROCESS, "pylance", "peak"),
        "committerd": results.value(memory.NAME, memory.PROCESS, "committerd", "peak"),
    }
    rates = {
        "pylance": results.value(mixed.NAME, mixed.PYLANCE, "pylance", "rate"),
        "committerd": results.value(mixed.NAME, mode(True), "committerd", "rate"),
    }
    if None in peaks.values() or None in rates.values():
        return None
    figure, (left, right) = _panels(2)
    _bars(left, [("", {name: value and value / 2**20 for name, value in peaks.items()})])
    left.set_title("peak memory, many fragments, MiB")
    left.legend(frameon=False)
    _bars(right, [("", rates)])
    right.set_title("mixed operations a second")
    return figure


_SIDES: tuple[Side, ...] = ("pylance", "committerd")
_PLOTS: dict[str, Callable[[Results], Figure | None]] = {
    "writers.svg": _writers,
    "latencies.svg": _latencies,
    "fragments.svg": _fragments,
    "s3.svg": _s3,
    "others.svg": _others,
}


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(4.6 * count, 3.4) if count > 1 else (6.4, 3.8), layout="constrained")
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _known(pairs: Iterable[tuple[float, float | None]]) -> Points:
    return [(x, y) for x, y in pairs if y is not None]


def _line(axes: Axes, label: str, points: Points) -> None:
    if points:
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            marker="o",
            markersize=4,
            color=_COLOURS[label],
            linestyle="--" if label.startswith("the bytes") else "-",
            label=label,
        )


def _bars(axes: Axes, groups: Sequence[tuple[str, dict[str, float | None]]]) -> None:
    """Draw bars side by side in each group, with their values."""
    width = 0.4
    for number, (_, values) in enumerate(groups):
        for place, (name, value) in enumerate(values.items()):
            drawn = axes.bar(
                number + (place - 0.5) * width,
                value or 0,
                width * 0.95,
                color=_COLOURS[name],
                label=name if not number else None,
            )
            axes.bar_label(
                drawn, labels=[f"{value:,.0f}" if value and value >= 100 else f"{value or 0:.3g}"], padding=2
            )
    named = [name for name, _ in groups if name]
    axes.set_xticks(range(len(named)), named)
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.2)
