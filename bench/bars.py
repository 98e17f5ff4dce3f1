"""The targets, and whether the figures reach them. A bar that was not measured, or not reached, is reported as such."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.bench import mode
from bench.burst_side import Kind
from bench.plan import Plan
from bench.results import Results, Side
from bench.scenarios import (
    backlog,
    bursts,
    compaction,
    following,
    fragments,
    idle,
    judging,
    memory,
    mixed,
    no_coalescing,
    s3,
    staging,
    start,
    turns,
    upserts,
    writers,
)
from harness.turns.verdict import ATTEMPTS_P99_MAX_SHARED, WAITED_P99_MAX

Verdict = Literal["met", "NOT MET", "not measured", "FAILED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The result of one bar."""

    scenario: str
    work: str
    bar: str
    measured: str
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        """Return the bar for `results.json.gz`."""
        return asdict(self)


class NotMeasured(Exception):
    """A figure that a bar needs was not measured."""


@dataclass(frozen=True, slots=True)
class _Bar:
    scenario: str
    work: str
    bar: str
    judge: Callable[[_Values, Plan], tuple[str, bool]]
    """Returns the measured figures as text, and whether they reach the bar."""


class _Values:
    """The medians of the measured figures. Raises `NotMeasured` for a missing one."""

    def __init__(self, results: Results, scenario: str) -> None:
        self._results, self._scenario = results, scenario

    def __call__(self, side: Side, case: str, metric: str) -> float:
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


def judge_all(results: Results, plan: Plan) -> list[Judged]:
    """Judge every bar, including those whose scenario was not run."""
    return list(_judge_all(results, plan))


def met(judged: Sequence[Judged]) -> bool:
    """Whether no bar of a scenario that was run is missed."""
    return all(one.verdict in ("met", "not measured") for one in judged)


def _judge_all(results: Results, plan: Plan) -> Iterator[Judged]:
    for one in _BARS:
        verdict: Verdict
        try:
            measured, good = one.judge(_Values(results, one.scenario), plan)
            verdict = "met" if good else "NOT MET"
        except NotMeasured:
            measured, verdict = "", "not measured"
        if one.scenario in results.failures:
            measured, verdict = f"the scenario failed: {results.failures[one.scenario]}", "FAILED"
        yield Judged(scenario=one.scenario, work=one.work, bar=one.bar, measured=measured, verdict=verdict)


def _writers_rate(durable: bool) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, plan: Plan) -> tuple[str, bool]:
        ours, theirs = writers.case(plan.writers_most, durable), writers.case(plan.writers_most)
        return _faster(value, ours, theirs, times=40)

    return judge


def _writers_p99(durable: bool) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, plan: Plan) -> tuple[str, bool]:
        ours = value("committerd", writers.case(plan.writers_most, durable), "p99")
        theirs = value("pylance", writers.case(plan.writers_most), "p99")
        return f"{_ms(ours)} against {_ms(theirs)}: 1/{theirs / ours:.1f}", ours <= theirs / 20

    return judge


def _uncoalesced(durable: bool, times: float) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        return _faster(value, mode(durable), no_coalescing.PYLANCE, times=times)

    return judge


def _faster(value: _Values, ours: str, theirs: str, *, times: float) -> tuple[str, bool]:
    our_rate, their_rate = value("committerd", ours, "rate"), value("pylance", theirs, "rate")
    failed = value.most("committerd", ours, "failed")
    told = f"{our_rate:.0f}/s against {their_rate:.1f}/s: {our_rate / their_rate:.1f}x"
    if failed:
        told += f"; {failed:.0f} of committerd's failed"
    return told, our_rate >= times * their_rate and not failed


def _append_large(value: _Values, _: Plan) -> tuple[str, bool]:
    ours = value("committerd", fragments.case(100_000, "not durable"), "commit")
    theirs = value("pylance", fragments.case(100_000, fragments.WARM), "commit")
    return f"{_ms(ours)} against {_ms(theirs)}: 1/{theirs / ours:.1f}", ours <= theirs / 20


def _append_bytes(value: _Values, _: Plan) -> tuple[str, bool]:
    ours = value("committerd", fragments.case(100_000, "not durable"), "commit")
    raw = value("limit", fragments.case(100_000, "not durable"), "commit")
    return f"{_ms(ours)} against {_ms(raw)}: {ours / raw:.2f}x", ours <= 1.5 * raw


def _append_small(durable: bool) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        ours = value("committerd", fragments.case(1000, mode(durable)), "commit")
        theirs = value("pylance", fragments.case(1000, fragments.WARM), "commit")
        return f"{_ms(ours)} against {_ms(theirs)}: {ours / theirs:.2f}x", ours <= theirs

    return judge


_S3_PUTS = 2.35
"""A record waits for half of one put and for its own, and for its outcome: 150 ms where a put takes 64."""


def _s3(value: _Values, plan: Plan) -> tuple[str, bool]:
    case = s3.case(60)
    rate, p50 = value("committerd", case, "rate"), value("committerd", case, "p50")
    put, failed = value("limit", case, "put"), value.most("committerd", case, "failed")
    told = f"p50 {_ms(p50)}: {p50 / put:.2f} puts; {rate:.0f}/s" + (f"; {failed:.0f} failed" if failed else "")
    in_flight = plan.writers_most * plan.in_flight
    return told, p50 <= _S3_PUTS * put and rate >= in_flight / (_S3_PUTS * put) and not failed


def _idle_local(case: str) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        ours, echo = value("committerd", case, "p50"), value("limit", idle.ECHO, "p50")
        told = f"{_ms(ours)} against {_ms(echo)}: {ours / echo:.2f}x"
        return told, ours <= 1.5 * echo and not value.most("committerd", case, "failed")

    return judge


def _idle(case: str) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        ours = value("committerd", case, "p50")
        hop, write = value("limit", idle.HOP, "p50"), value("limit", idle.write(case), "p50")
        limit = 2 * hop + 1.2 * write
        told = f"{_ms(ours)}; 2 hops of {_ms(hop)} and 1.2 writes of {_ms(write)} are {_ms(limit)}"
        return told, ours <= limit and not value.most("committerd", case, "failed")

    return judge


def _following(value: _Values, _: Plan) -> tuple[str, bool]:
    seconds = value("committerd", following.CASE, "seconds")
    reads = value.most("committerd", following.CASE, "reads")
    return f"{_ms(seconds)}, {reads:.0f} reads", seconds <= 0.020 and reads <= following.DELETED


def _backlog(durable: bool) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        rate, bare = value("committerd", mode(durable), "rate"), value("limit", backlog.bare_case(durable), "rate")
        return f"{rate:.0f}/s against {bare:.0f}/s: {rate / bare:.2f}x", rate >= 0.7 * bare

    return judge


def _judging(operation: str) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        seconds, reads = value("committerd", operation, "seconds"), value.most("committerd", operation, "reads")
        theirs = value("pylance", operation, "seconds")
        told = f"{_ms(seconds)} against {_ms(theirs)}: 1/{theirs / seconds:.0f}; {reads:.0f} reads"
        return told, seconds <= theirs / 20 and reads == 0

    return judge


def _compaction(value: _Values, _: Plan) -> tuple[str, bool]:
    case = compaction.CASE
    most = {metric: value.most("committerd", case, metric) for metric in ("attempts", "failed", "again")}
    rate, theirs = value("committerd", case, "rate"), value("pylance", case, "rate")
    told = (
        f"attempt {most['attempts']:.0f}, {most['again']:.0f} changes again at {rate:.0f}/s; pylance {theirs:.0f}/s, "
        f"{value('pylance', case, 'failed'):.0f} attempts in vain, {value('pylance', case, 'again'):.0f} changes again"
    )
    asked = compaction.DELETES + compaction.UPSERTS
    return told, most["attempts"] == 1 and not most["failed"] and not most["again"] and rate >= 0.9 * asked


def _mixed(ours: str, theirs: str, times: float) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        our_rate, their_rate = value("committerd", ours, "rate"), value("pylance", theirs, "rate")
        told = f"{our_rate:.1f}/s against {their_rate:.1f}/s: {our_rate / their_rate:.2f}x"
        return told, our_rate >= times * their_rate

    return judge


def _burst(kind: Kind, where: str, least: float, cpu: float | None) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        case = bursts.case(kind, where)
        rate, used = value("committerd", case, "rate"), value("committerd", case, "cpu")
        failed = value.most("committerd", case, "failed")
        told = f"{rate:.0f}/s, {_ms(used)} of CPU each" + (f"; {failed:.0f} failed" if failed else "")
        if kind == "upsert" and where == bursts.S3:
            told += f"; pylance {value('pylance', case, 'rate'):.1f}/s"
        return told, rate >= least and (cpu is None or used <= cpu) and not failed

    return judge


def _behind(value: _Values, _: Plan) -> tuple[str, bool]:
    most = value.most("committerd", bursts.BEHIND, "p99")
    return f"{most:.2f} s at most", most <= 1


def _upserts(share: float, times: float) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        case = upserts.case(share)
        ours, theirs = value("committerd", case, "rate"), value("pylance", case, "rate")
        p99, twice = value("committerd", case, "p99"), value.most("committerd", case, "twice")
        told = (
            f"{ours:.1f}/s against {theirs:.1f}/s: {ours / theirs:.2f}x; p99 {p99:.2f} s; {twice:.0f} duplicate keys "
            f"against {value.most('pylance', case, 'twice'):.0f}"
        )
        return told, ours >= times * theirs and p99 <= 1 and not twice

    return judge


def _turns(value: _Values, plan: Plan) -> tuple[str, bool]:
    case = turns.case(False)
    most, p99 = value.most("committerd", case, "attempts_max"), value.most("committerd", case, "p99")
    told, lost = _lost(value, case, plan)
    return f"at most {most:.0f} attempts, p99 {_ms(p99)}{told}", most == 1 and p99 <= WAITED_P99_MAX and not lost


def _turns_shared(value: _Values, plan: Plan) -> tuple[str, bool]:
    case = turns.case(True)
    p99 = value.most("committerd", case, "attempts_p99")
    told, lost = _lost(value, case, plan)
    return f"p99 {p99:.0f} attempts{told}", p99 <= ATTEMPTS_P99_MAX_SHARED and not lost


def _lost(value: _Values, case: str, plan: Plan) -> tuple[str, bool]:
    failed, slow = value.most("committerd", case, "failed"), value("committerd", case, "appends")
    told = f"; {slow:.0f} appends/s" + (f"; {failed:.0f} failed" if failed else "")
    return told, bool(failed) or slow < 0.9 * plan.turns_appends


def _staging(size: int, indexed: bool) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        from bench.staging_side import PAIRS  # imports pylance

        ratios = {}
        for helper, pair in PAIRS.items():
            if indexed or not pair.needs_index:
                case = staging.case(helper, size, indexed)
                ratios[helper] = [value("committerd", case, which) for which in ("ratio", "processor_ratio")]
        worst = sorted(ratios, key=lambda helper: ratios[helper], reverse=True)[:3]
        told = [f"{helper} {ratios[helper][0]:.2f}x (processor {ratios[helper][1]:.2f}x)" for helper in worst]
        return ", ".join(told), ratios[worst[0]][0] <= 1.1

    return judge


def _start(case: str, most: float) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        seconds, peak = value("committerd", case, "seconds"), value.most("committerd", case, "peak")
        return f"{seconds:.2f} s, {peak / 2**20:.0f} MiB", seconds <= most and peak <= 512 * 2**20

    return judge


def _memory(case: str) -> Callable[[_Values, Plan], tuple[str, bool]]:
    def judge(value: _Values, _: Plan) -> tuple[str, bool]:
        ours, theirs = value("committerd", case, "peak"), value("pylance", memory.PROCESS, "peak")
        return f"{ours / 2**20:.0f} MiB against {theirs / 2**20:.0f} MiB: {ours / theirs:.2f}x", ours <= theirs / 2

    return judge


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"


_MOST = "32 producers, 8 in flight each, 20,000 appends through Kafka, local"
_BARS = (
    *(_Bar("writers", f"{_MOST}, {mode(d)}", ">= 40x pylance's 32 writers", _writers_rate(d)) for d in (True, False)),
    *(_Bar("writers", f"the same, {mode(d)}: p99", "<= 1/20 of pylance's p99", _writers_p99(d)) for d in (True, False)),
    _Bar("no_coalescing", "without coalescing, 2,000 appends, durable", ">= 5x", _uncoalesced(True, 5)),
    _Bar("no_coalescing", "without coalescing, 2,000 appends, not durable", ">= 8x", _uncoalesced(False, 8)),
    _Bar("fragments", "append on 100,000 fragments, not durable", "<= 1/20 of pylance warm", _append_large),
    _Bar("fragments", "append on 100,000 fragments, not durable", "<= 1.5x writing the same bytes", _append_bytes),
    *(
        _Bar("fragments", f"append on 1,000 fragments, {mode(d)}", "<= pylance warm", _append_small(d))
        for d in (True, False)
    ),
    _Bar(
        "s3",
        "S3 with 60 ms on every request, 256 in flight, 30 s",
        f"p50 <= {_S3_PUTS} raw puts, >= 256 in that time",
        _s3,
    ),
    _Bar("mixed", "16 writers of everything, local, durable", ">= 3x pylance", _mixed(mode(True), mixed.PYLANCE, 3)),
    _Bar("mixed", f"the same {mixed.S3}", ">= 15x pylance", _mixed(mixed.S3, mixed.S3, 15)),
    *(
        _Bar("bursts", f"300 {kind}s of distinct rows at once, local", ">= 1,000/s, <= 1 ms of CPU each", judge)
        for kind in bursts.KINDS
        for judge in (_burst(kind, bursts.LOCAL, 1000, 0.001),)
    ),
    *(
        _Bar("bursts", f"600 {kind}s of distinct rows, 256 in flight, {bursts.S3}", ">= 300/s", judge)
        for kind in bursts.KINDS
        for judge in (_burst(kind, bursts.S3, 300, None),)
    ),
    _Bar("bursts", bursts.BEHIND, "p99 <= 1 s", _behind),
    *(
        _Bar(
            "upserts",
            f"6 clients, 15 upserts of 20 rows each, {upserts.case(share)}",
            f">= {times:g}x pylance, p99 <= 1 s, no duplicate key",
            _upserts(share, times),
        )
        for share, times in ((0.0, 1), (0.3, 1), (1.0, 0.5))
    ),
    _Bar(
        "turns",
        "100 upserts of new and old keys under 500 appends/s of other keys, with keys",
        f"first attempt, all of them; p99 <= {WAITED_P99_MAX:g} s from staging to outcome",
        _turns,
    ),
    _Bar("turns", "the same with one row shared", f"p99 <= {ATTEMPTS_P99_MAX_SHARED} attempts", _turns_shared),
    *(
        _Bar(
            "staging",
            f"each staging helper, {size} fragments" + (", key indexed" if indexed else ""),
            "<= 1.1x pylance's own call, every one",
            _staging(size, indexed),
        )
        for size in (300, 3000, 30_000)
        for indexed in (False, True)
    ),
    *(
        _Bar(
            "start",
            f"process start to active, 10,000 versions, 10 million records, {case}",
            f"<= {most:g} s, RSS <= 512 MiB",
            _start(case, most),
        )
        for case, most in ((start.LOCAL, 2), (start.S3, 4))
    ),
    *(
        _Bar("idle", f"submit to outcome when idle, {case}", "<= 1.5x an echo through two topics", _idle_local(case))
        for case in (mode(True), mode(False))
    ),
    _Bar("idle", f"submit to outcome when idle, {idle.S3}", "<= 2 Kafka hops + 1.2x the write", _idle(idle.S3)),
    *(
        _Bar(
            "judge",
            f"judge against 1,000 versions: {operation}",
            "<= 1/20 of pylance's commit, no read",
            _judging(operation),
        )
        for operation in judging.OPERATIONS
    ),
    _Bar(
        "compaction",
        f"compaction of 1,000 fragments {compaction.CASE} in them",
        "first attempt, no change executed twice",
        _compaction,
    ),
    _Bar(
        "following",
        f"judge and rebase {following.CASE} of 1,000 fragments",
        f"<= 20 ms, {following.DELETED} reads",
        _following,
    ),
    *(
        _Bar("backlog", f"backlog of 100,000 staged appends, {mode(d)}", ">= 0.7x a bare loop", _backlog(d))
        for d in (True, False)
    ),
    *(
        _Bar("memory", f"peak memory at 100,000 fragments, {case}", "<= 1/2 of pylance's process", _memory(case))
        for case in (memory.PROCESS, memory.DAEMON)
    ),
)
