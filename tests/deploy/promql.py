"""What an expression of PromQL is made of: the vectors between its comparisons, and the metrics that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import promql_parser
from promql_parser import BinaryExpr, Call, Expr, VectorSelector

from scripts.generate.metrics_table import described

_SETS = {"and", "or", "unless"}
_COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}
_CHILDREN = ("lhs", "rhs", "expr", "param", "vector_selector")
_OF_PROCESSES = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}


def operands(expr: str) -> list[str]:
    """The largest parts of an expression that have a value whenever their metrics are there.

    What may rightly be empty is taken apart: comparisons, `and`, `or` and `unless` into their sides, `absent(x)` into
    x, and whatever is computed from one of these into what that is computed from. Numbers are left out.
    """
    found = [part.prettify() for part in _operands(promql_parser.parse(expr))]
    assert found, expr
    return found


def prettified(expr: str) -> str:
    """The expression in the form that all spellings of it have in common."""
    return promql_parser.parse(expr).prettify()


def metrics(expr: str) -> set[str]:
    """Names of the metrics in an expression; of a regular expression for names all that it lists."""
    found = set()
    for part in _all(promql_parser.parse(expr)):
        if isinstance(part, VectorSelector):
            named = [part.name] if part.name else []
            for matcher in part.matchers.matchers:
                if matcher.name == "__name__":
                    named += matcher.value.split("|")
            assert named, f"a selector of any metric in {expr}"
            found.update(named)
    return found


def known_metrics() -> set[str]:
    """All series names of committers and of maintenance, with those of histograms, and of processes that we use."""
    names = set(_OF_PROCESSES)
    for metric in described():
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names.update(metric.name + suffix for suffix in suffixes)
    return names


def shortened(expr: str) -> str:
    """The same expression in which each duration is a thirtieth, so that a test need not wait.

    A test's Prometheus scrapes every second. That stands for every 30 s, the longest interval that the alerts allow. If
    durations were shorter, what stands for 90 s would hold one sample or two, as it happens, and one gives no rate.
    """
    shorter = {"s": (34, "ms"), "m": (2, "s"), "h": (2, "m"), "d": (48, "m")}

    def changed(found: re.Match[str]) -> str:
        factor, unit = shorter[found[2]]
        return f"{int(found[1]) * factor}{unit}"

    return re.sub(r"\b(\d+)([smhd])\b", changed, expr)


def _operands(part: Expr) -> Iterator[Expr]:
    if not _may_be_empty(part):
        if any(isinstance(one, VectorSelector) for one in _all(part)):
            yield part
        return
    for child in _children(part):
        yield from _operands(child)


def _may_be_empty(part: Expr) -> bool:
    return any(
        (isinstance(one, BinaryExpr) and str(one.op) in _SETS | _COMPARISONS)
        or (isinstance(one, Call) and one.func.name == "absent")
        for one in _all(part)
    )


def _all(part: Expr) -> Iterator[Expr]:
    yield part
    for child in _children(part):
        yield from _all(child)


def _children(part: Expr) -> Iterator[Expr]:
    if isinstance(part, Call):
        yield from part.args
    for name in _CHILDREN:
        child = getattr(part, name, None)
        if child is not None:
            yield child
