"""The results as Markdown: first floors and aims, then every figure, then the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.bars import REACHED, Judged
from bench.comparisons import compare_all
from bench.plan import Plan
from bench.results import Results, Series

_AIMS_BEGIN, _AIMS_END = "<!-- aims, written by make bench -->", "<!-- end of the aims -->"
_SERVERS = {"azure": "Azurite (Azure Blob Storage)", "gcs": "fake-gcs-server (Google Cloud Storage)"}
_QUICK = (
    "**A quick run: the sizes are too small for the figures to mean anything, and nothing is judged.** It shows that "
    "the benchmark runs."
)


def markdown(results: Results, judged: Sequence[Judged], facts: Mapping[str, Any], *, plan: Plan) -> str:
    """Return the whole file."""
    return "\n".join(_lines(results, judged, facts, plan)) + "\n"


def bars_table(judged: Sequence[Judged]) -> list[str]:
    """Return the floors and aims as a table, for readers who look at nothing else."""
    rows = [
        (one.work, one.measured or "-", one.floor, _marked(one.verdict), one.aim or "-", one.distance or "-")
        for one in judged
    ]
    return list(_table(("work", "measured", "floor", "verdict", "aim", "reached of the aim"), rows))


def aims_table(judged: Iterable[Judged]) -> list[str]:
    """Return the aims that are not reached, and how much of each is."""
    left = [one for one in judged if one.aim and set(one.distance.split(", ")) != {REACHED}]
    rows = [(one.work, one.aim, one.distance or "not measured") for one in left]
    return list(_table(("work", "aim", "reached of it"), rows))


def with_aims(page: str, judged: Iterable[Judged]) -> str:
    """Return the page with a new table of aims in place of its present one."""
    head, _, rest = page.partition(_AIMS_BEGIN)
    _, _, tail = rest.partition(_AIMS_END)
    return "\n".join([head + _AIMS_BEGIN, *aims_table(judged), _AIMS_END + tail])


def _marked(verdict: str) -> str:
    return verdict if verdict == "met" else f"**{verdict}**"


def _lines(results: Results, judged: Sequence[Judged], facts: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "Made by `make bench`; `results.json.gz` has every sample. pylance and committerd were measured in one run,"
    yield "on the same machine, store and files. pylance never syncs to disk; committerd's default, *durable*, does."
    if plan.quick:
        yield ""
        yield _QUICK
    elif facts["store"] != "s3":
        yield ""
        yield f"The server of the scenario `s3` was {_SERVERS[facts['store']]}. It has no floors: its figures show the"
        yield "ratio between the two sides, and not what the cloud itself does."
    else:
        yield ""
        yield "## Floors and aims"
        yield ""
        yield "`make bench` fails unless every floor is measured and reached. An aim decides nothing: the last column"
        yield "says how much of it is reached."
        yield ""
        yield from bars_table(judged)
    for name, why in results.failures.items():
        yield ""
        yield f"**Scenario `{name}` failed:** {why}"
    yield from _side_by_side(results, plan)
    for name in results.scenarios():
        series = list(results.of(name))
        if series:
            yield ""
            yield f"## {name}"
            yield ""
            yield from _figures(series)
    yield ""
    yield "## Measured on"
    yield ""
    machine, system = facts["machine"], facts["system"]
    yield f"* {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB of memory"
    yield f"* {machine['file_system']}; {system['kernel']}; Python {system['python']}"
    yield "* " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    yield f"* commit {facts['commit']}, {facts['time']}; load before the run {machine['load_before']}"


def _side_by_side(results: Results, plan: Plan) -> Iterator[str]:
    units = {"rate": "/s", "peak": "bytes", "bytes": "bytes"}
    rows = [
        (
            one.scenario,
            one.work,
            one.metric,
            _shown(one.pylance, units.get(one.metric, "s")),
            _shown(one.committerd, units.get(one.metric, "s")),
            f"{one.times:.3g}x",
        )
        for one in compare_all(results, plan)
    ]
    if rows:
        yield ""
        yield "## Side by side"
        yield ""
        yield "Medians; the last column says how many times better committerd is, below 1x that it is worse."
        yield ""
        yield from _table(("scenario", "committerd's case", "figure", "pylance", "committerd", "times"), rows)


def _figures(series: Iterable[Series]) -> Iterator[str]:
    rows = [
        (one.case, one.side, one.metric, _shown(one.median, one.unit), _range(one), str(len(one.samples)))
        for one in series
    ]
    return _table(("case", "side", "figure", "median", "least to most", "samples"), rows)


def _range(one: Series) -> str:
    return f"{_shown(min(one.samples), one.unit)} to {_shown(max(one.samples), one.unit)}"


def _shown(value: float, unit: str) -> str:
    match unit:
        case "s" if value < 10:
            return f"{value * 1000:.4g} ms"
        case "bytes" if value >= 2**20:
            return f"{value / 2**20:.4g} MiB"
        case _:
            return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(text.replace('|', '/') for text in row)} |"
