"""`make bench` runs, its results can be read, and no bar is hidden."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import bars, plan, report
from bench.results import Results, percentile

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
@pytest.mark.pylance
def test_a_quick_run_writes_results_report_and_plot(tmp_path: Path) -> None:
    done = run("--quick", "--only", "judge", "fragments", "--out", str(tmp_path / "out"), "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(gzip.decompress((tmp_path / "out" / "results.json.gz").read_bytes()))
    assert results["quick"] is True
    assert results["failures"] == {}
    assert results["bars"] == []
    assert set(results["seconds"]) == {"judge", "fragments"}
    assert results["machine"]["cores"] >= 1
    series = {(one["case"], one["side"], one["metric"]): one for one in results["series"]}
    for size in (100, 1000):
        commits = [
            series[f"{size} fragments, {what}", side, "commit"]
            for side, what in (
                ("pylance", "warm handle"),
                ("pylance", "by URI"),
                ("committerd", "durable"),
                ("committerd", "not durable"),
                ("limit", "durable"),
                ("limit", "not durable"),
            )
        ]
        assert all(len(one["samples"]) == 5 and min(one["samples"]) > 0 for one in commits)
    assert {series[name, "committerd", "reads"]["median"] for name in ("append", "delete", "update")} == {0}
    ratios = [one["pylance"] / one["committerd"] for one in results["comparisons"]]
    assert len(ratios) == 8
    assert ratios == pytest.approx([one["times"] for one in results["comparisons"]])
    assert "A quick run" in (tmp_path / "out" / "results.md").read_text()
    assert "<svg" in (tmp_path / "out" / "fragments.svg").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # tables and files are gone


def test_a_quick_run_never_goes_where_published_figures_are() -> None:
    done = run("--quick", "--out", "docs/bench")
    assert done.returncode == 2
    assert "give another folder than docs/bench" in done.stderr


def verdicts(results: Results) -> dict[str, str]:
    return {f"{one.work}: {one.bar}": one.verdict for one in bars.judge_all(results, plan.full(None))}


def of_backlog(rate: float) -> Results:
    results = Results()
    results.note("backlog", "a bare loop, durable", "limit", rate=(10_000, "transactions/s"))
    results.note("backlog", "durable", "committerd", rate=(rate, "transactions/s"))
    return results


BACKLOG = "backlog of 100,000 staged appends, durable: >= 0.7x a bare loop"


def test_a_bar_is_met_or_it_is_said_that_it_is_not() -> None:
    assert verdicts(of_backlog(7000))[BACKLOG] == "met"
    assert verdicts(of_backlog(6999))[BACKLOG] == "NOT MET"
    assert not bars.met(bars.judge_all(of_backlog(6999), plan.full(None)))


def test_a_bar_that_was_not_measured_stays_in_the_table() -> None:
    found = verdicts(Results())
    assert set(found.values()) == {"not measured"}
    table = report.bars_table(bars.judge_all(Results(), plan.full(None)))
    assert len(table) == len(found) + 2
    assert all("**not measured**" in line for line in table[2:])


def test_bars_of_a_scenario_that_failed_are_failed_whatever_it_had_measured() -> None:
    results = of_backlog(10_000)
    results.failures["backlog"] = "WrongTable: 1 of the files were committed and are missing"
    judged = bars.judge_all(results, plan.full(None))
    assert {one.verdict for one in judged if one.scenario == "backlog"} == {"FAILED"}
    assert "are missing" in "\n".join(report.bars_table(judged))
    assert not bars.met(judged)


def test_commits_that_fail_are_not_made_up_for_by_a_rate() -> None:
    results = Results()
    for side, case, rate in (("pylance", "racing writers", 10.0), ("committerd", "durable", 1000.0)):
        results.note("no_coalescing", case, side, rate=(rate, "commits/s"))  # type: ignore[arg-type]
    results.note("no_coalescing", "durable", "committerd", failed=(0, "commits"))
    name = "without coalescing, 2,000 appends, durable: >= 5x"
    assert verdicts(results)[name] == "met"
    results.note("no_coalescing", "durable", "committerd", failed=(1, "commits"))
    assert verdicts(results)[name] == "NOT MET"


def test_the_percentile_is_the_least_value_that_so_many_do_not_exceed() -> None:
    values = [float(number) for number in range(1, 201)]
    assert [percentile(values, share) for share in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert percentile([7.0], 99) == 7
