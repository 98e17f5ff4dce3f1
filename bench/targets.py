"""The bars of the benchmark: a floor for each line of work, and an aim where there is more to reach."""

from __future__ import annotations

from collections.abc import Callable

from bench.bars import Bar, Measured, Values, least, most
from bench.bench import mode
from bench.burst_side import Kind
from bench.plan import Plan
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

Measure = Callable[[Values, Plan], Measured]

_NONE_FAILED = most("failed", 0, "none failed")


def _writers(value: Values, plan: Plan) -> Measured:
    ours, theirs = writers.case(plan.writers_most, True), writers.case(plan.writers_most)
    return _race(value, ours, theirs)


def _s3(value: Values, _: Plan) -> Measured:
    case = s3.case(60)
    told, figures = _race(value, case, case)
    p50, put = value("committerd", case, "p50"), value("limit", case, "put")
    return f"{told}; p50 {_ms(p50)}: {p50 / put:.2f} puts", {**figures, "puts": p50 / put}


def _race(value: Values, ours: str, theirs: str) -> Measured:
    """committerd's writers against pylance's."""
    told, figures = _faster(value, ours, theirs)
    our_p99, their_p99 = value("committerd", ours, "p99"), value("pylance", theirs, "p99")
    told += f"; p99 {_ms(our_p99)} against {_ms(their_p99)}: 1/{their_p99 / our_p99:.1f}"
    return told, {**figures, "p99": our_p99, "p99_share": their_p99 / our_p99}


def _uncoalesced(durable: bool) -> Measure:
    return lambda value, _: _faster(value, mode(durable), no_coalescing.PYLANCE)


def _faster(value: Values, ours: str, theirs: str) -> Measured:
    our_rate, their_rate = value("committerd", ours, "rate"), value("pylance", theirs, "rate")
    failed, times = value.most("committerd", ours, "failed"), our_rate / their_rate
    told = f"{our_rate:,.0f}/s against {their_rate:.1f}/s: {times:.1f}x" + _told_failed(failed)
    return told, {"rate": our_rate, "times": times, "failed": failed}


def _append_large(value: Values, _: Plan) -> Measured:
    ours = value("committerd", fragments.case(100_000, "not durable"), "commit")
    theirs = value("pylance", fragments.case(100_000, fragments.WARM), "commit")
    return f"{_ms(ours)} against {_ms(theirs)}: 1/{theirs / ours:.1f}", {"share": theirs / ours}


def _append_bytes(value: Values, _: Plan) -> Measured:
    ours = value("committerd", fragments.case(100_000, "not durable"), "commit")
    raw = value("limit", fragments.case(100_000, "not durable"), "commit")
    return f"{_ms(ours)} against {_ms(raw)}: {ours / raw:.2f}x", {"times": ours / raw}


def _append_small(durable: bool) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        ours = value("committerd", fragments.case(1000, mode(durable)), "commit")
        theirs = value("pylance", fragments.case(1000, fragments.WARM), "commit")
        return f"{_ms(ours)} against {_ms(theirs)}: {ours / theirs:.2f}x", {"times": ours / theirs}

    return measure


def _mixed(ours: str, theirs: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        our_rate, their_rate = value("committerd", ours, "rate"), value("pylance", theirs, "rate")
        times = our_rate / their_rate
        return f"{our_rate:.1f}/s against {their_rate:.1f}/s: {times:.2f}x", {"times": times}

    return measure


def _burst(kind: Kind, where: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        case = bursts.case(kind, where)
        rate, used = value("committerd", case, "rate"), value("committerd", case, "cpu")
        failed = value.most("committerd", case, "failed")
        told = f"{rate:,.0f}/s, {_ms(used)} of CPU each" + _told_failed(failed)
        if kind == "upsert" and where == bursts.S3:
            told += f"; pylance {value('pylance', case, 'rate'):.1f}/s"
        return told, {"rate": rate, "cpu_ms": used * 1000, "failed": failed}

    return measure


def _behind(value: Values, _: Plan) -> Measured:
    slowest = value.most("committerd", bursts.BEHIND, "p99")
    return f"{slowest:.2f} s at most", {"p99": slowest}


def _upserts(share: float, where: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        case = upserts.case(share, where)
        ours, theirs = value("committerd", case, "rate"), value("pylance", case, "rate")
        p99, twice = value("committerd", case, "p99"), value.most("committerd", case, "twice")
        slowest = value.most("committerd", case, "max")
        told = (
            f"{ours:.1f}/s against {theirs:.1f}/s: {ours / theirs:.2f}x; p99 {p99:.2f} s, slowest {slowest:.2f} s "
            f"against {value.most('pylance', case, 'max'):.2f} s; {twice:.0f} duplicate keys against "
            f"{value.most('pylance', case, 'twice'):.0f}"
        )
        return told, {"times": ours / theirs, "p99": p99, "slowest": slowest, "twice": twice}

    return measure


def _turns(value: Values, plan: Plan) -> Measured:
    case = turns.case(False)
    attempts, p99 = value.most("committerd", case, "attempts_max"), value.most("committerd", case, "p99")
    told, figures = _beside(value, case, plan)
    return f"at most {attempts:.0f} attempts, p99 {_ms(p99)}{told}", {**figures, "attempts": attempts, "p99": p99}


def _turns_shared(value: Values, plan: Plan) -> Measured:
    case = turns.case(True)
    p99 = value.most("committerd", case, "attempts_p99")
    told, figures = _beside(value, case, plan)
    return f"p99 {p99:.0f} attempts{told}", {**figures, "attempts": p99}


def _beside(value: Values, case: str, plan: Plan) -> Measured:
    """What became of the Appends beside the upserts."""
    failed, appends = value.most("committerd", case, "failed"), value("committerd", case, "appends")
    return f"; {appends:.0f} appends/s{_told_failed(failed)}", {
        "failed": failed,
        "appends": appends / plan.turns_appends,
    }


_READS_BACK = "compact_files"
"""The helper that reads back what it wrote, and compares it with what it read: pylance's own call does not."""


def _staging(size: int, indexed: bool) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        from bench.staging_side import PAIRS  # imports pylance

        ratios = {}
        for helper, pair in PAIRS.items():
            if indexed or not pair.needs_index:
                case = staging.case(helper, size, indexed)
                ratios[helper] = [value("committerd", case, which) for which in ("ratio", "processor_ratio")]
        worst = sorted(ratios, key=lambda helper: ratios[helper], reverse=True)[:3]
        told = [f"{helper} {ratios[helper][0]:.2f}x (processor {ratios[helper][1]:.2f}x)" for helper in worst]
        figures = {"read_back": ratios.pop(_READS_BACK)[0], "times": max(times for times, _ in ratios.values())}
        return ", ".join(told), figures

    return measure


def _start(case: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        seconds, mib = value("committerd", case, "seconds"), value.most("committerd", case, "peak") / 2**20
        return f"{seconds:.2f} s, {mib:.0f} MiB", {"seconds": seconds, "mib": mib}

    return measure


def _idle_local(case: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        ours, echo = value("committerd", case, "p50"), value("limit", idle.ECHO, "p50")
        failed = value.most("committerd", case, "failed")
        told = f"{_ms(ours)} against {_ms(echo)}: {ours / echo:.2f}x" + _told_failed(failed)
        return told, {"times": ours / echo, "failed": failed}

    return measure


def _idle_s3(value: Values, _: Plan) -> Measured:
    ours, failed = value("committerd", idle.S3, "p50"), value.most("committerd", idle.S3, "failed")
    hop, put = value("limit", idle.HOP, "p50"), value("limit", idle.write(idle.S3), "p50")
    puts = (ours - 2 * hop) / put
    told = f"{_ms(ours)}: 2 hops of {_ms(hop)} and {puts:.2f} puts of {_ms(put)}" + _told_failed(failed)
    return told, {"puts": puts, "failed": failed}


def _backlog(durable: bool) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        rate, bare = value("committerd", mode(durable), "rate"), value("limit", backlog.bare_case(durable), "rate")
        theirs = value("pylance", backlog.PYLANCE, "rate")
        told = f"{rate:,.0f}/s against {theirs:.1f}/s: {rate / theirs:.1f}x; {rate / bare:.2f}x a bare loop"
        return told, {"times": rate / theirs, "of_bare": rate / bare}

    return measure


def _judging(operation: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        seconds, reads = value("committerd", operation, "seconds"), value.most("committerd", operation, "reads")
        theirs = value("pylance", operation, "seconds")
        told = f"{_ms(seconds)} against {_ms(theirs)}: 1/{theirs / seconds:.0f}; {reads:.0f} reads"
        return told, {"share": theirs / seconds, "reads": reads}

    return measure


def _compaction(value: Values, _: Plan) -> Measured:
    case = compaction.CASE
    figures = {metric: value.most("committerd", case, metric) for metric in ("attempts", "failed", "again")}
    rate, theirs = value("committerd", case, "rate"), value("pylance", case, "rate")
    told = (
        f"attempt {figures['attempts']:.0f}, {figures['again']:.0f} changes again at {rate:.0f}/s; pylance "
        f"{theirs:.0f}/s, {value('pylance', case, 'failed'):.0f} attempts in vain, "
        f"{value('pylance', case, 'again'):.0f} changes again"
    )
    return told, {**figures, "rate": rate / (compaction.DELETES + compaction.UPSERTS)}


def _following(value: Values, _: Plan) -> Measured:
    seconds = value("committerd", following.CASE, "seconds")
    reads = value.most("committerd", following.CASE, "reads")
    return f"{_ms(seconds)}, {reads:.0f} reads", {"ms": seconds * 1000, "reads": reads}


def _memory(case: str) -> Measure:
    def measure(value: Values, _: Plan) -> Measured:
        ours, theirs = value("committerd", case, "peak"), value("pylance", memory.PROCESS, "peak")
        told = f"{ours / 2**20:.0f} MiB against {theirs / 2**20:.0f} MiB: {ours / theirs:.2f}x"
        return told, {"times": ours / theirs}

    return measure


def _told_failed(failed: float) -> str:
    return f"; {failed:.0f} failed" if failed else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


_MODES = (True, False)
_UPSERTS = "6 clients, 15 upserts of 20 rows each"
_NO_DUPLICATE = most("twice", 0, "no duplicate key")
_APPENDS_BESIDE = least("appends", 0.9, ">= {:.0%} of the appends")

BARS = (
    Bar(
        scenario=writers.NAME,
        work="32 writers, 8 in flight each, 20,000 appends through Kafka, local, durable",
        measure=_writers,
        floor=(
            least("times", 30, ">= {:g}x pylance's 32 writers"),
            least("p99_share", 20, "p99 <= 1/{:g} of pylance's"),
            _NONE_FAILED,
        ),
        aim=(least("times", 50, ">= {:g}x pylance's"), least("p99_share", 50, "p99 <= 1/{:g} of pylance's")),
    ),
    *(
        Bar(
            scenario=no_coalescing.NAME,
            work=f"without coalescing, 2,000 appends, {mode(durable)}",
            measure=_uncoalesced(durable),
            # Each version waits for the one before it: nobody races, and nothing is shared.
            floor=(least("times", 1.2, ">= {:g}x pylance's 32 writers"), _NONE_FAILED),
            aim=(least("times", 2, ">= {:g}x pylance's 32 writers"),),
        )
        for durable in _MODES
    ),
    Bar(
        scenario=fragments.NAME,
        work="append on 100,000 fragments, not durable",
        measure=_append_large,
        floor=(least("share", 20, "<= 1/{:g} of pylance warm"),),
    ),
    Bar(
        scenario=fragments.NAME,
        work="append on 100,000 fragments, not durable, beside its bytes",
        measure=_append_bytes,
        floor=(most("times", 1.5, "<= {:g}x writing the same bytes"),),
    ),
    *(
        Bar(
            scenario=fragments.NAME,
            work=f"append on 1,000 fragments, {mode(durable)}",
            measure=_append_small(durable),
            floor=(most("times", 1, "<= {:g}x pylance warm"),),
        )
        for durable in _MODES
    ),
    Bar(
        scenario=s3.NAME,
        work="32 writers in S3 with 60 ms on every request, 256 in flight, 30 s",
        measure=_s3,
        floor=(
            least("times", 250, ">= {:g}x pylance's 32 writers"),
            most("p99", 0.6, "p99 <= {:g} s"),
            _NONE_FAILED,
        ),
        aim=(least("rate", 1700, ">= {:,g}/s"), most("puts", 2.35, "p50 <= {:g} raw puts")),
    ),
    *(
        Bar(
            scenario=mixed.NAME,
            work=f"16 writers of everything, {where}",
            measure=measure,
            floor=(least("times", floor, ">= {:g}x pylance's"),),
            aim=(least("times", aim, ">= {:g}x pylance's"),),
        )
        for where, measure, floor, aim in (
            ("local, durable", _mixed(mode(True), mixed.PYLANCE), 2.5, 5),
            (mixed.S3, _mixed(mixed.S3, mixed.S3), 12, 30),
        )
    ),
    *(
        Bar(
            scenario=bursts.NAME,
            work=f"300 {kind}s of distinct rows at once, local",
            measure=_burst(kind, bursts.LOCAL),
            floor=(least("rate", 800, ">= {:g}/s"), most("cpu_ms", 1.3, "<= {:g} ms of CPU each"), _NONE_FAILED),
            aim=(least("rate", 2000, ">= {:,g}/s"), most("cpu_ms", 0.5, "<= {:g} ms of CPU each")),
        )
        for kind in bursts.KINDS
    ),
    *(
        Bar(
            scenario=bursts.NAME,
            work=f"600 {kind}s of distinct rows, 256 in flight, {bursts.S3}",
            measure=_burst(kind, bursts.S3),
            floor=(least("rate", 300, ">= {:g}/s"), _NONE_FAILED),
        )
        for kind in bursts.KINDS
    ),
    Bar(scenario=bursts.NAME, work=bursts.BEHIND, measure=_behind, floor=(most("p99", 1, "<= {:g} s"),)),
    *(
        Bar(
            scenario=upserts.NAME,
            work=f"{_UPSERTS}, {upserts.case(share, upserts.LOCAL)}",
            measure=_upserts(share, upserts.LOCAL),
            floor=(least("times", 0.3, ">= {:g}x pylance's"), most("p99", 1, "p99 <= {:g} s"), _NO_DUPLICATE),
            aim=(least("times", 1, ">= {:g}x pylance's"),),
        )
        for share in upserts.SHARES
    ),
    *(
        Bar(
            scenario=upserts.NAME,
            work=f"{_UPSERTS}, {upserts.case(share, upserts.S3)}",
            measure=_upserts(share, upserts.S3),
            # Clients that share keys take turns: the last of six waits for six executions and commits. Each execution
            # with its commit is nine requests, one after the other.
            floor=(
                least("times", 3 if share else 4, ">= {:g}x pylance's"),
                most("slowest", 5 if share else 1.5, "slowest <= {:g} s"),
                _NO_DUPLICATE,
            ),
            aim=(least("times", 10, ">= {:g}x pylance's"),),
        )
        for share in upserts.SHARES
    ),
    Bar(
        scenario=turns.NAME,
        work="100 upserts of new and old keys under 500 appends/s of other keys, with keys",
        measure=_turns,
        floor=(
            most("attempts", 1, "first attempt, all of them"),
            most("p99", WAITED_P99_MAX, "p99 <= {:g} s from staging to outcome"),
            _APPENDS_BESIDE,
            _NONE_FAILED,
        ),
    ),
    Bar(
        scenario=turns.NAME,
        work="the same with one row shared",
        measure=_turns_shared,
        floor=(most("attempts", ATTEMPTS_P99_MAX_SHARED, "p99 <= {:g} attempts"), _APPENDS_BESIDE, _NONE_FAILED),
    ),
    *(
        Bar(
            scenario=staging.NAME,
            work=f"each staging helper, {size:,} fragments" + (", key indexed" if indexed else ""),
            measure=_staging(size, indexed),
            floor=(
                most("times", 1.25, "<= {:g}x pylance's own call, every one"),
                most("read_back", 2.5, f"{_READS_BACK} <= {{:g}}x"),
            ),
            aim=(most("times", 1.1, "<= {:g}x pylance's own call"),),
        )
        for size in (300, 3000, 30_000)
        for indexed in (False, True)
    ),
    *(
        Bar(
            scenario=start.NAME,
            work=f"process start to active, 10,000 versions, 10 million records, {case}",
            measure=_start(case),
            floor=(most("seconds", seconds, "<= {:g} s"), most("mib", 512, "RSS <= {:g} MiB")),
        )
        for case, seconds in ((start.LOCAL, 2), (start.S3, 4))
    ),
    *(
        Bar(
            scenario=idle.NAME,
            work=f"submit to outcome when idle, local, {mode(durable)}",
            measure=_idle_local(mode(durable)),
            floor=(most("times", 6, "<= {:g}x an echo through two topics"), _NONE_FAILED),
            aim=(most("times", 2.5, "<= {:g}x an echo"),),
        )
        for durable in _MODES
    ),
    Bar(
        scenario=idle.NAME,
        work=f"submit to outcome when idle, {idle.S3}",
        measure=_idle_s3,
        floor=(most("puts", 2.2, "<= 2 Kafka hops and {:g} puts"), _NONE_FAILED),
        aim=(most("puts", 1.2, "<= 2 Kafka hops and {:g} puts"),),
    ),
    *(
        Bar(
            scenario=judging.NAME,
            work=f"judge against 1,000 versions: {operation}",
            measure=_judging(operation),
            floor=(least("share", 20, "<= 1/{:g} of pylance's commit"), most("reads", 0, "no read")),
        )
        for operation in judging.OPERATIONS
    ),
    Bar(
        scenario=compaction.NAME,
        work=f"compaction of 1,000 fragments {compaction.CASE} in them",
        measure=_compaction,
        floor=(
            most("attempts", 1, "first attempt"),
            most("again", 0, "no change executed twice"),
            least("rate", 0.9, ">= {:.0%} of the changes"),
            _NONE_FAILED,
        ),
    ),
    Bar(
        scenario=following.NAME,
        work=f"judge and rebase {following.CASE} of 1,000 fragments",
        measure=_following,
        floor=(most("ms", 20, "<= {:g} ms"), most("reads", following.DELETED, "{:g} reads")),
    ),
    *(
        Bar(
            scenario=backlog.NAME,
            work=f"backlog of 100,000 staged appends, {mode(durable)}",
            measure=_backlog(durable),
            floor=(least("times", 40, ">= {:g}x pylance's 32 writers"),),
            aim=(least("of_bare", 0.3, ">= {:g}x a bare loop"),),
        )
        for durable in _MODES
    ),
    *(
        Bar(
            scenario=memory.NAME,
            work=f"peak memory at 100,000 fragments, {case}",
            measure=_memory(case),
            floor=(most("times", 0.5, "<= {:g}x pylance's process"),),
        )
        for case in (memory.PROCESS, memory.DAEMON)
    ),
)
