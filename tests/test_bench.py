"""`make bench` runs, its results can be read, and no floor is passed over."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import bars, capacity, plan, read_cost, report, targets
from bench.bars import Bar, Judged, Measured, Values, least, most
from bench.results import Results, percentile
from bench.scenarios import SCENARIOS
from harness.s3 import S3Endpoint

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.s3
async def test_the_cost_of_a_read_is_measured_for_each_client(s3: S3Endpoint) -> None:
    found = await read_cost.measure(s3, turns=2, reads=read_cost.AT_ONCE)
    assert len(found) == 10
    assert all(len(taken) == 2 and min(taken) > 0 for taken in found.values())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.pylance
def test_the_tables_of_the_page_on_capacity_are_what_is_measured() -> None:
    lines = list(capacity.measure(capacity.QUICK, list(capacity.PARTS), latency_ms=0))
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8").splitlines()
    headings = [lines[number + 1] for number, line in enumerate(lines) if not line]
    assert len(headings) == len(capacity.PARTS)
    assert set(headings) <= set(page)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]
    assert (len(rows), rows[0][0], rows[2][0], rows[3][:2]) == (4, "1", "100", ["2", "4"])
    # Of a million transactions alone: the manifest and the `.txn` file; the end of the version below, and of the file.
    puts, reads = (int(rows[0][column].replace(",", "")) for column in (3, 4))
    assert puts >= 2_000_000
    assert reads >= 2_000_000


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


def test_another_store_is_for_the_scenario_s3_alone() -> None:
    done = run("--store", "azure")
    assert done.returncode == 2
    assert "give --only s3 too" in done.stderr


PLAN = plan.full(None)


def measure(value: Values, _: plan.Plan) -> Measured:
    rate, failed = value("committerd", "a case", "rate"), value.most("committerd", "a case", "failed")
    return "as it is", {"rate": rate, "failed": failed}


BAR = Bar(
    scenario="work",
    work="some work",
    measure=measure,
    floor=(least("rate", 30, ">= {:g}/s"), most("failed", 0, "none failed")),
    aim=(least("rate", 50, ">= {:g}/s"), most("failed", 2, "<= {:g} failed")),
)


def judged(measured: dict[str, float], bar: Bar = BAR) -> Judged:
    results = Results()
    for metric, value in measured.items():
        results.note("work", "a case", "committerd", **{metric: (value, "")})
    (one,) = bars.judge([bar], results, PLAN)
    return one


@pytest.mark.parametrize(
    ("rate", "failed", "verdict"), [(30, 0, "met"), (29.9, 0, "NOT MET"), (30, 1, "NOT MET"), (0, 0, "NOT MET")]
)
def test_each_limit_of_a_floor_must_be_reached(rate: float, failed: float, verdict: str) -> None:
    one = judged({"rate": rate, "failed": failed})
    assert (one.verdict, one.floor) == (verdict, ">= 30/s, none failed")
    assert bars.met([one]) is (verdict == "met")


@pytest.mark.parametrize("measured", [{}, {"rate": 100.0}, {"failed": 0.0}])
def test_a_floor_that_was_not_measured_is_not_met(measured: dict[str, float]) -> None:
    one = judged(measured)
    assert (one.verdict, one.measured, one.distance) == ("not measured", "", "")
    assert not bars.met([judged({"rate": 30, "failed": 0}), one])
    assert "**not measured**" in report.bars_table([one])[2]


@pytest.mark.parametrize(
    ("rate", "failed", "distance"),
    [(49.99, 0, "99 %, reached"), (30, 4, "60 %, 50 %"), (50, 2, "reached, reached"), (0, 0, "0 %, reached")],
)
def test_an_aim_shows_how_much_of_it_is_reached_and_decides_nothing(rate: float, failed: float, distance: str) -> None:
    one = judged({"rate": rate, "failed": failed})
    assert (one.aim, one.distance) == (">= 50/s, <= 2 failed", distance)
    assert report.aims_table([one])[2:] == (
        [] if distance == "reached, reached" else [f"| some work | >= 50/s, <= 2 failed | {distance} |"]
    )
    assert bars.met([judged({"rate": rate, "failed": failed}, replace(BAR, floor=()))])


def test_bars_of_a_scenario_that_failed_are_failed_whatever_it_had_measured() -> None:
    results = Results()
    results.note("work", "a case", "committerd", rate=(100, ""), failed=(0, ""))
    results.failures["work"] = "WrongTable: 1 of the files were committed and are missing"
    found = bars.judge([BAR], results, PLAN)
    assert [one.verdict for one in found] == ["FAILED"]
    assert "are missing" in report.bars_table(found)[2]
    assert not bars.met(found)


def test_a_part_of_the_benchmark_names_the_floors_that_it_did_not_measure() -> None:
    found = bars.judge([BAR, replace(BAR, scenario="other"), replace(BAR, scenario="another")], Results(), PLAN)
    assert bars.of_a_part(found, ["work", "unjudged"]) == (found[:1], ["another", "other"])
    assert bars.of_a_part(found, ["work", "other", "another"]) == (found, [])


def test_every_bar_stays_in_the_table_and_none_is_met_without_figures() -> None:
    found = bars.judge(targets.BARS, Results(), PLAN)
    assert {one.verdict for one in found} == {"not measured"}
    assert len({one.work for one in found}) == len(found)
    assert {one.scenario for one in found} == SCENARIOS.keys() - {"maintenance", "limits"}


def test_the_published_figures_are_judged_and_the_readme_has_their_aims() -> None:
    published = json.loads(gzip.decompress((ROOT / "docs" / "bench" / "results.json.gz").read_bytes()))
    results = Results()
    for one in published["series"]:
        for sample in one["samples"]:
            results.note(one["scenario"], one["case"], one["side"], **{one["metric"]: (sample, one["unit"])})
    found = bars.judge(targets.BARS, results, PLAN)
    assert len([one for one in found if one.verdict == "met"]) > len(found) / 2
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert report.with_aims(readme, [Judged(**one) for one in published["bars"]]) == readme


def test_the_percentile_is_the_least_value_that_so_many_do_not_exceed() -> None:
    values = [float(number) for number in range(1, 201)]
    assert [percentile(values, share) for share in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert percentile([7.0], 99) == 7
