"""The content of the dashboard for a fleet: rows of panels, each with its queries. `fleet_dashboard` arranges them.

Every query gives a number, or at most ten series, however many datasets there are. All that are not drawn over time ask
for the newest value only.
"""

from __future__ import annotations

from typing import Literal

from scripts.generate.dashboard_panels import Panel, Query, Row, of_process

_CHOSEN = 'namespace=~"$namespace"'
_DATASET = "namespace, dataset"
_ANSWERS = "committerd_submit_to_outcome_seconds"
_COMMITS = 'outcome!~"committed|duplicate"'
_CONFLICTS = 'outcome=~"retryable|incompatible"'
_SHOWN_MAX = 10


def metric(name: str, *matchers: str) -> str:
    """The series of a metric in the chosen namespaces."""
    return f"{name}{{{','.join((_CHOSEN, *matchers))}}}"


def level(name: str) -> str:
    """The largest value of a gauge among the members of each dataset."""
    return f"max by ({_DATASET}) ({metric(name)})"


def active_level(name: str) -> str:
    """The value of a gauge that the active member of each dataset has."""
    return f"max by ({_DATASET}) ({metric(name)} and {metric('committerd_active')} == 1)"


def rate(name: str, *matchers: str, over: str = "5m", by: str = _DATASET) -> str:
    """The rate of a counter per second."""
    return f"sum by ({by}) (rate({metric(name, *matchers)}[{over}]))"


def number(
    title: str, expr: str, *, unit: str = "short", red_from: float | None = None, description: str = ""
) -> Panel:
    """One number for all datasets; 0 where there is none."""
    query = Query(expr=f"{expr} or vector(0)", legend="", instant=True)
    return Panel(title=title, queries=[query], unit=unit, kind="stat", red_from=red_from, description=description)


def worst(
    title: str,
    expr: str,
    *,
    legend: str = "{{dataset}}",
    unit: str = "short",
    red_from: float | None = None,
    description: str = "",
    choose: Literal["topk", "bottomk"] = "topk",
) -> Panel:
    """The ten largest values, or the ten smallest."""
    query = Query(expr=f"{choose}({_SHOWN_MAX}, {expr})", legend=legend, instant=True)
    return Panel(title=title, queries=[query], unit=unit, kind="bars", red_from=red_from, description=description)


_AGES = '__name__=~"committerd_oldest_pending_age_seconds|committerd_unread_age_seconds"'
_AGE = f"max by ({_DATASET}) ({metric('', _AGES)})"
_ALERTS = metric("ALERTS", 'alertname=~"Committerd.+"', 'alertstate="firing"')
_REFUSES = f"max by ({_DATASET}) (max_over_time({metric('committerd_refused_to_run')}[2m])) == 1"
_STALLS = (
    f"{_AGE} > 60 unless on ({_DATASET}) (sum by ({_DATASET}) (increase({metric(_ANSWERS + '_count')}[90s])) > 0) "
    f"unless on ({_DATASET}) ({level('committerd_waiting_for_table')} == 1) "
    f"unless on ({_DATASET}) ({level('committerd_paused')} == 1)"
)
_RETENTION = f"{_AGE} / min by ({_DATASET}) ({metric('committerd_staged_retention_seconds')})"
_ACTIVE = f"sum by ({_DATASET}) ({metric('committerd_active')})"

_SUCCEEDED = metric("committerd_maintenance_succeeded_timestamp_seconds")

NOW = Row(
    title="Now",
    panels=[
        number("Datasets", f"count({_ACTIVE})"),
        number("Without an active member", f"count({_ACTIVE} == 0)", red_from=1),
        number("Refuse to run", f"count({_REFUSES})", red_from=1),
        number(
            "Stalled",
            f"count({_STALLS})",
            red_from=1,
            description="A record has waited for a minute, and none got an outcome for one and a half.",
        ),
        number("Largest lag", f"max({metric('committerd_queue_lag_records')})", red_from=1000),
        number("Oldest record without an outcome", f"max({_AGE})", unit="s", red_from=600),
        number("Processes", f"count({metric('committerd_build_info')})"),
        number("Alerts", f"count({_ALERTS})", red_from=1),
    ],
)

WORST = Row(
    title="Queue",
    panels=[
        worst("Lag", f"{level('committerd_queue_lag_records')} > 0", red_from=1000),
        worst("Oldest record without an outcome", f"{_AGE} > 0", unit="s", red_from=600),
        worst("Share of the topic's retention used", f"{_RETENTION} > 0", unit="percentunit", red_from=0.5),
        worst(
            "Records that wait, by producer",
            f"max by ({_DATASET}, producer) ({metric('committerd_waiting_records')})",
            legend="{{dataset}}: {{producer}}",
            description="Who floods a table: producers with at least 100 records without an outcome.",
        ),
        worst("Stalled", f"({_STALLS})", unit="s", red_from=60),
        worst(
            "Refuse to run",
            f"max by ({_DATASET}, cause) (max_over_time({metric('committerd_refused_to_run')}[2m])) == 1",
            legend="{{dataset}}: {{cause}}",
            red_from=1,
        ),
        worst(
            "Held back by an open Kafka transaction",
            f"{level('committerd_held_back_seconds')} > 0",
            unit="s",
            red_from=60,
        ),
        worst("Paused by an operator", f"{level('committerd_paused')} == 1"),
        worst("Wrong settings of topics", f"{level('committerd_topic_problems')} > 0", red_from=1),
        worst(
            "Fewest members",
            f"count by ({_DATASET}) ({metric('committerd_active')})",
            choose="bottomk",
            description="Members that tell of themselves, active or not.",
        ),
        worst(
            "Kafka does not respond",
            f"{of_process('committerd_kafka_connected')} == 0",
            legend="{{dataset}} {{instance}}",
            description="Processes to which Kafka has not responded for 20 s.",
        ),
    ],
)

ANSWERS = Row(
    title="Outcomes",
    panels=[
        Panel(
            title="Outcomes by status",
            queries=[Query(expr=rate("committerd_transactions_total", by="outcome"), legend="{{outcome}}")],
            unit="ops",
            stacked=True,
        ),
        worst("Most outcomes", f"{rate('committerd_transactions_total')} > 0", unit="ops"),
        worst("Most refusals", f"{rate('committerd_transactions_total', _COMMITS, over='15m')} > 0", unit="ops"),
        worst(
            "Conflict ratio",
            f"{rate(f'{_ANSWERS}_count', _CONFLICTS, over='15m')} / {rate(f'{_ANSWERS}_count', over='15m')} > 0",
            unit="percentunit",
            red_from=0.2,
            description="Share of the outcomes of a quarter of an hour that are RETRYABLE or INCOMPATIBLE.",
        ),
        worst(
            "From staging to outcome, p99",
            f"histogram_quantile(0.99, {rate(f'{_ANSWERS}_bucket', over='15m', by=f'{_DATASET}, le')}) > 0",
            unit="s",
            red_from=10,
        ),
        worst(
            "Dead letters in an hour",
            f"sum by ({_DATASET}, reason) (increase({metric('committerd_dead_letters_total')}[1h])) > 0",
            legend="{{dataset}}: {{reason}}",
        ),
        worst(
            "Internal errors in an hour",
            f"sum by ({_DATASET}, stage) (increase({metric('committerd_internal_errors_total')}[1h])) > 0",
            legend="{{dataset}}: {{stage}}",
            red_from=1,
        ),
        worst(
            "Commits tried again",
            f"sum by ({_DATASET}, reason) (rate({metric('committerd_commit_retries_total')}[15m])) > 0",
            legend="{{dataset}}: {{reason}}",
            unit="ops",
        ),
        Panel(
            title="Versions",
            queries=[
                Query(
                    expr=f"sum(rate({metric('committerd_commit_transactions_count')}[$__rate_interval]))", legend="all"
                )
            ],
            unit="ops",
        ),
    ],
)

TABLES = Row(
    title="Tables and maintenance",
    panels=[
        worst("Fragments", active_level("committerd_table_fragments")),
        worst("Manifest", active_level("committerd_manifest_bytes"), unit="bytes", red_from=32 * 1024 * 1024),
        worst(
            "Room for applications taken",
            f"{active_level('committerd_app_marks_used_ratio')} > 0",
            unit="percentunit",
            red_from=0.8,
        ),
        worst(
            "Small fragments, of those that there may be",
            f"{level('committerd_maintenance_small_fragments')} / {level('committerd_maintenance_fragments_wanted')}",
            unit="percentunit",
            red_from=2,
        ),
        worst(
            "Since a step of maintenance succeeded",
            f"time() - (max by ({_DATASET}, step) ({_SUCCEEDED}) > 0)",
            legend="{{dataset}}: {{step}}",
            unit="s",
            red_from=90_000,
        ),
        worst(
            "Left alone by maintenance",
            f"max by ({_DATASET}, what) ({metric('committerd_maintenance_left_alone')}) > 0",
            legend="{{dataset}}: {{what}}",
        ),
        worst("Stored", f"{level('committerd_maintenance_stored_bytes')} > 0", unit="bytes"),
    ],
)

PROCESSES = Row(
    title="Processes and stores",
    panels=[
        worst(
            "Memory, of the limit",
            f"{of_process('process_resident_memory_bytes')} / ({of_process('committerd_memory_limit_bytes')} > 0)",
            legend="{{dataset}} {{instance}}",
            unit="percentunit",
            red_from=0.9,
        ),
        worst(
            "CPU",
            f"rate({of_process('process_cpu_seconds_total')}[5m]) and ignoring (version, python) "
            f"{of_process('committerd_build_info')}",
            legend="{{dataset}} {{instance}}",
            unit="percentunit",
        ),
        worst(
            "Failed requests to a store",
            f"sum by (service, fault) (rate({of_process('committerd_store_failed_requests_total')}[5m])) > 0",
            legend="{{service}}: {{fault}}",
            unit="reqps",
        ),
    ],
)

ROWS = (NOW, WORST, ANSWERS, TABLES, PROCESSES)
