"""The command: run scenarios; write results.json.gz, results.md and plots; print the bars."""

# Worker processes import this module too, so imports that take memory or time are in functions.

from __future__ import annotations

import argparse
import gzip
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bench import plan as plans

if TYPE_CHECKING:
    from bench.bench import Bench

_ROOT = Path(__file__).resolve().parents[1]
_PUBLISHED = _ROOT / "docs" / "bench"
_README = _ROOT / "README.md"
_UNPUBLISHED = _ROOT / ".cache" / "bench"
_NAMES = (
    "writers",
    "no_coalescing",
    "fragments",
    "s3",
    "mixed",
    "bursts",
    "upserts",
    "turns",
    "staging",
    "start",
    "idle",
    "backlog",
    "judge",
    "following",
    "compaction",
    "maintenance",
    "memory",
    "limits",
)


def main() -> int:
    """Return the exit code: 0, or 1 if a scenario failed, or a floor of those that were run was not reached."""
    chosen = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # raises, so that all clean-up runs
    plan = (plans.quick if chosen.quick else plans.full)(chosen.runs)
    names = [name for name in _NAMES if name in chosen.only]

    from bench import bars, comparisons, machine, report, targets
    from bench.bench import Bench

    chosen.out.mkdir(parents=True, exist_ok=True)
    with Bench(plan, chosen.folder, chosen.store) as bench:
        facts = machine.facts(bench.folder) | {"quick": plan.quick, "runs": plan.runs, "store": chosen.store}
        bench.tell(f"about {plans.seconds(plan, names) / 60:.0f} minutes: {', '.join(names)}")
        for name in names:
            _run(bench, name)
        judged = [] if plan.quick or chosen.store != "s3" else bars.judge(targets.BARS, bench.results, plan)
        text = report.markdown(bench.results, judged, facts, plan=plan)
        (chosen.out / "results.md").write_text(text, encoding="utf-8")
        results = bench.results.as_json(
            facts,
            bars=[one.as_json() for one in judged],
            comparisons=[one.as_json() for one in comparisons.compare_all(bench.results, plan)],
        )
        # Without a time, so that the same results give the same bytes.
        (chosen.out / "results.json.gz").write_bytes(gzip.compress(json.dumps(results).encode(), mtime=0))
        if chosen.out.resolve() == _PUBLISHED:
            _README.write_text(report.with_aims(_README.read_text(encoding="utf-8"), judged), encoding="utf-8")
        _draw(bench, chosen.out)
        bench.tell(f"written to {chosen.out}")
    own, left = bars.of_a_part(judged, names)
    print(
        "\n".join(report.bars_table(own) if judged else ["Nothing is judged: a quick run, or a store without floors."])
    )
    if left:
        print(f"A part of the benchmark is no gate: the floors of {', '.join(left)} were not measured.")
    for name, why in bench.results.failures.items():
        print(f"{name} FAILED: {why}")
    return 0 if bars.met(own) and not bench.results.failures else 1


def _run(bench: Bench, name: str) -> None:
    """Run one scenario. If it raises, the error is its result, and the next scenario runs."""
    from bench.scenarios import SCENARIOS

    bench.tell(f"--- {name}")
    began = time.monotonic()
    try:
        SCENARIOS[name](bench)
    except Exception as error:  # noqa: BLE001  # the others are worth as much without it
        lines = str(error).strip().splitlines() or [""]
        bench.results.failures[name] = f"{type(error).__name__}: {lines[-1]}".replace(str(bench.folder), "FOLDER")
        bench.tell(f"{name} FAILED:")
        traceback.print_exception(error)
        bench.drop_workers()
    bench.results.seconds[name] = time.monotonic() - began


def _draw(bench: Bench, out: Path) -> None:
    from bench import plots

    plots.draw_all(bench.results, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="committerd beside pylance, in one run on one machine, store and set of files.",
        epilog="What each scenario times stands at the top of its module in bench/scenarios.",
    )
    option = parser.add_argument
    option("--only", nargs="+", choices=_NAMES, default=_NAMES, metavar="SCENARIO", help=", ".join(_NAMES))
    option(
        "--store",
        choices=("s3", "azure", "gcs"),
        default="s3",
        help="with --only s3: its server; azure is Azurite, gcs is fake-gcs-server. They have no floors",
    )
    option("--quick", action="store_true", help="small sizes, to see that it runs; judges nothing")
    option("--runs", type=_positive, metavar="N", help="runs of each measurement (3); figures are their medians")
    option(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the results go (docs/bench; of a part or a quick run .cache/bench)",
    )
    option("--folder", type=Path, metavar="FOLDER", help="where tables lie meanwhile (the temporary folder)")
    chosen = parser.parse_args()
    if chosen.store != "s3" and list(chosen.only) != ["s3"]:
        parser.error("--store chooses the server of the scenario s3: give --only s3 too")
    if chosen.quick and chosen.out is not None and chosen.out.resolve().is_relative_to(_PUBLISHED):
        parser.error("the figures of --quick mean nothing: give another folder than docs/bench")
    whole = not chosen.quick and set(chosen.only) == set(_NAMES)
    chosen.out = chosen.out or (_PUBLISHED if whole else _UNPUBLISHED)
    return chosen


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
