"""The content of the dashboard: rows of panels, each with its queries. `dashboard` arranges them.

Every query aggregates over the members of a dataset. Gauges of the table are taken from the active member, because a
former one keeps its last values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CHOSEN = 'namespace=~"$namespace",dataset=~"$dataset"'
"""The metrics of the chosen datasets. `namespace` at All (`.*`) also matches targets without that label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query, and the name of its series."""

    expr: str
    legend: str = "{{dataset}}"
    instant: bool = False
    """Ask for the newest value only, and not for all of the chosen time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    queries: Sequence[Query] = ()
    expr: str = ""
    """The expression of its only query, whose series have the dataset as name; then it has no `queries`."""
    unit: str = "short"
    """The unit, by Grafana's name."""
    description: str = ""
    kind: Literal["lines", "stat", "bars"] = "lines"
    """Lines over time, one number, or a bar for each series."""
    red_from: float | None = None
    """The number from which on a `stat` or a bar is red."""
    red_below: float | None = None
    """The number below which a `stat` is red."""
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading, and the panels below it."""

    title: str
    panels: Sequence[Panel]


def metric(name: str, *matchers: str) -> str:
    """The series of a metric that the variables select."""
    return f"{name}{{{','.join((CHOSEN, *matchers))}}}"


def rate(name: str, *matchers: str, by: str = "") -> str:
    """The rate of a counter per second, by dataset and further labels."""
    return f"sum by (dataset{by and ', '}{by}) (rate({metric(name, *matchers)}[$__rate_interval]))"


def level(name: str) -> str:
    """The largest value of a gauge among the members."""
    return f"max by (dataset) ({metric(name)})"


def total(name: str) -> str:
    """The sum of a gauge over the processes that share the work."""
    return f"sum by (dataset) ({metric(name)})"


def active_level(name: str, *, by: str = "") -> str:
    """The value of a gauge that the active member has, by dataset and a further label."""
    labels, ignored = (f"dataset, {by}", f"ignoring({by}) ") if by else ("dataset", "")
    return f"max by ({labels}) ({metric(name)} and {ignored}{metric('committerd_active')} == 1)"


def quantile(share: float, name: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram, by dataset and further labels."""
    buckets = rate(f"{name}_bucket", *matchers, by=f"{by}{by and ', '}le")
    return f"histogram_quantile({share}, {buckets})"


def quantiles(name: str, *matchers: str) -> list[Query]:
    """Median, 95th and 99th percentile."""
    return [
        Query(expr=quantile(share, name, *matchers), legend=f"{{{{dataset}}}} p{share * 100:.0f}")
        for share in (0.5, 0.95, 0.99)
    ]


def of_members(expr: str) -> str:
    """The series of an expression that are of processes which serve the chosen datasets."""
    return f"{expr} and on (namespace, job, instance) {metric('committerd_active')}"


def of_process(name: str) -> str:
    """The series of a metric that belongs to the process and need not name a dataset."""
    return f'{name}{{namespace=~"$namespace"}}'


def per_process(name: str) -> Query:
    """A metric of the process, for each that serves the chosen datasets."""
    return Query(expr=of_members(of_process(name)), legend="{{instance}}")


def by_label(name: str, label: str, *matchers: str) -> Query:
    """The rate of a counter per second for each value of a label."""
    return Query(expr=rate(name, *matchers, by=label), legend=f"{{{{dataset}}}} {{{{{label}}}}}")


_AGE = metric("", '__name__=~"committerd_oldest_pending_age_seconds|committerd_unread_age_seconds"')
_ANSWERS = "committerd_submit_to_outcome_seconds_count"
_CONFLICTS = 'outcome=~"retryable|incompatible"'
_GROUP = "committerd_commit_transactions"
_FILE_CHANGES = f"sum without (change) (increase({of_process('committerd_datasets_changes_total')}[1h]))"
_PART_FAILURES = f"sum without (part) (increase({of_process('committerd_part_failures_total')}[1h]))"
_FAILED = f"rate({of_process('committerd_store_failed_requests_total')}[$__rate_interval])"

NOW = Row(
    title="Now",
    panels=[
        Panel(
            title="Active members",
            expr=f"sum by (dataset) ({metric('committerd_active')})",
            description="One is right; with none, records wait. The other members stand by.",
            kind="stat",
            red_below=1,
            red_from=2,
        ),
        Panel(
            title="Kafka responds",
            expr=f"max by (dataset) ({metric('committerd_active')} * 0 "
            f"+ on (namespace, job, instance) group_left () {of_process('committerd_kafka_connected')})",
            description="1 while Kafka responds to at least one member.",
            kind="stat",
            red_below=1,
        ),
        Panel(title="Members", expr=f"count by (dataset) ({metric('committerd_active')})", kind="stat"),
        Panel(title="Lag", expr=level("committerd_queue_lag_records"), kind="stat", red_from=1000),
        Panel(
            title="Oldest record without an outcome",
            expr=f"max by (dataset) ({_AGE})",
            unit="s",
            kind="stat",
            red_from=600,
        ),
        Panel(
            title="Share of the topic's retention used",
            expr=f"max by (dataset) ({_AGE}) / min by (dataset) ({metric('committerd_staged_retention_seconds')})",
            unit="percentunit",
            description="Age of the oldest unread record against how long the staged topic keeps it.",
            kind="stat",
            red_from=0.5,
        ),
        Panel(
            title="Refuses to run",
            expr=f"max by (dataset) (max_over_time({metric('committerd_refused_to_run')}[2m]))",
            kind="stat",
            red_from=1,
        ),
        Panel(title="Waits for the table", expr=level("committerd_waiting_for_table"), kind="stat", red_from=1),
        Panel(
            title="Can't be served by its process",
            expr=level("committerd_not_served"),
            kind="stat",
            red_from=1,
            description="Its committer has crashed, or what it needs can't be opened; it is tried again.",
        ),
        Panel(
            title="Started anew after an error, in an hour",
            expr=f"sum by (dataset) (increase({metric('committerd_restarts_total')}[1h]))",
            kind="stat",
            red_from=1,
        ),
        Panel(
            title="Failures of what all datasets share, in an hour",
            expr=f"sum ({of_members(_PART_FAILURES)})",
            kind="stat",
            red_from=1,
            description="Unexpected errors; the part began anew, and the log has the traceback (part.failed).",
        ),
        Panel(
            title="Changes of the datasets file, in an hour",
            expr=f"sum ({of_members(_FILE_CHANGES)})",
            kind="stat",
            description="What daemon.datasets_file has added, removed and changed; contents of it that were refused.",
        ),
        Panel(
            title="Datasets file is wrong",
            expr=f"max ({of_members(of_process('committerd_datasets_file_wrong'))})",
            kind="stat",
            red_from=1,
        ),
        Panel(title="Paused by an operator", expr=level("committerd_paused"), kind="stat", red_from=1),
        Panel(
            title="Held back by an open Kafka transaction",
            expr=level("committerd_held_back_seconds"),
            unit="s",
            description="Nothing that was staged since can be read.",
            kind="stat",
            red_from=60,
        ),
        Panel(title="Wrong settings of topics", expr=level("committerd_topic_problems"), kind="stat", red_from=1),
        Panel(
            title="Since the last commit",
            expr=f"time() - ({level('committerd_last_commit_timestamp_seconds')} > 0)",
            unit="s",
            kind="stat",
        ),
    ],
)

ANSWERS = Row(
    title="Outcomes",
    panels=[
        Panel(
            title="Outcomes by status",
            queries=[by_label("committerd_transactions_total", "outcome")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="Outcomes by operation",
            queries=[by_label("committerd_transactions_total", "operation")],
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="From staging to outcome",
            queries=quantiles("committerd_submit_to_outcome_seconds"),
            unit="s",
            description="From the record's timestamp in Kafka until its outcome was published.",
        ),
        Panel(
            title="Conflict ratio",
            expr=f"{rate(_ANSWERS, _CONFLICTS)} / {rate(_ANSWERS)}",
            unit="percentunit",
            description="Share of the outcomes that are RETRYABLE or INCOMPATIBLE.",
        ),
        Panel(
            title="Conflicts",
            queries=[
                Query(
                    expr=rate("committerd_conflicts_total", by="ours, theirs, verdict"),
                    legend="{{dataset}} {{ours}} over {{theirs}}: {{verdict}}",
                )
            ],
            unit="ops",
        ),
        Panel(title="Rebases", queries=[by_label("committerd_rebases_total", "operation")], unit="ops"),
        Panel(
            title="Rows followed through compactions",
            queries=[by_label("committerd_followed_rows_total", "operation")],
            unit="ops",
        ),
        Panel(title="Dead letters", queries=[by_label("committerd_dead_letters_total", "reason")], unit="ops"),
        Panel(title="Internal errors", queries=[by_label("committerd_internal_errors_total", "stage")], unit="ops"),
        Panel(
            title="Errors of the machine", queries=[by_label("committerd_machine_errors_total", "lacks")], unit="ops"
        ),
        Panel(title="Duplicates", queries=[by_label("committerd_duplicates_total", "reason")], unit="ops"),
        Panel(
            title="Holds",
            queries=[by_label("committerd_holds_total", "ended")],
            unit="ops",
            description="Commits waited for the next try of a transaction that was refused twice.",
        ),
        Panel(
            title="Precedences",
            queries=[by_label("committerd_precedences_total", "ended")],
            unit="ops",
            description="Refused upserts and deletes that went before others of the same rows or keys.",
        ),
        Panel(title="Share of the time spent in holds", expr=rate("committerd_hold_seconds_total"), unit="percentunit"),
    ],
)

COMMITS = Row(
    title="Commits",
    panels=[
        Panel(
            title="Versions",
            queries=[
                Query(expr=rate(_GROUP + "_count"), legend="{{dataset}} of the queue"),
                Query(expr=rate("committerd_refusal_only_versions_total"), legend="{{dataset}} refusals only"),
                Query(expr=rate("committerd_foreign_commits_total"), legend="{{dataset}} foreign"),
            ],
            unit="ops",
        ),
        Panel(
            title="Transactions in a version",
            queries=[
                Query(expr=f"{rate(_GROUP + '_sum')} / {rate(_GROUP + '_count')}", legend="{{dataset}} mean"),
                Query(expr=quantile(0.95, _GROUP), legend="{{dataset}} p95"),
            ],
        ),
        Panel(
            title="Stages of a commit, p95",
            queries=[
                Query(
                    expr=quantile(0.95, "committerd_commit_duration_seconds", by="stage"),
                    legend="{{dataset}} {{stage}}",
                )
            ],
            unit="s",
        ),
        Panel(title="Puts of a manifest", expr=rate("committerd_commit_attempts_total"), unit="ops"),
        Panel(title="Retries", queries=[by_label("committerd_commit_retries_total", "reason")], unit="ops"),
        Panel(
            title="Puts with a lost reply",
            queries=[
                Query(
                    expr=f"sum by (dataset) ({metric('committerd_unknown_outcomes_total')}) - "
                    f"sum by (dataset) ({metric('committerd_unknown_outcomes_settled_total')})",
                    legend="{{dataset}} open",
                ),
                by_label("committerd_unknown_outcomes_settled_total", "result"),
            ],
            description="Those that are open, and how many are resolved each second, by result.",
        ),
    ],
)

QUEUE = Row(
    title="Queue",
    panels=[
        Panel(title="Records held back", expr=level("committerd_held_back_records")),
        Panel(
            title="Records that wait",
            queries=[
                Query(expr=level("committerd_queue_lag_records"), legend="{{dataset}} lag"),
                Query(expr=level("committerd_queue_depth_records"), legend="{{dataset}} fetched"),
            ],
        ),
        Panel(
            title="Records that wait, by producer",
            queries=[
                Query(
                    expr=f"max by (dataset, producer) ({metric('committerd_waiting_records')})",
                    legend="{{dataset}} {{producer}}",
                )
            ],
            description="Of the five with the most, and of all others.",
        ),
        Panel(title="Bytes fetched", expr=level("committerd_queue_depth_bytes"), unit="bytes"),
        Panel(title="Until first judged", queries=quantiles("committerd_queue_wait_seconds"), unit="s"),
        Panel(
            title="Repeated calls to Kafka", queries=[by_label("committerd_queue_retries_total", "call")], unit="ops"
        ),
        Panel(
            title="Outcomes published again",
            expr=rate("committerd_republished_answers_total"),
            unit="ops",
            description="After a start or a takeover.",
        ),
        Panel(
            title="Change events",
            queries=[
                by_label("committerd_change_events_total", "type"),
                Query(
                    expr=level("committerd_change_events_lag_versions"), legend="{{dataset}} versions without an event"
                ),
            ],
            description="Published each second, by type; and versions whose event Kafka has not taken yet.",
        ),
    ],
)

TABLE = Row(
    title="Table",
    panels=[
        Panel(title="Version", expr=level("committerd_table_version")),
        Panel(title="Fragments", expr=active_level("committerd_table_fragments")),
        Panel(
            title="Applications remembered",
            expr=active_level("committerd_app_marks"),
            description="Their last unit of work is in the table's metadata, and so in every commit.",
        ),
        Panel(
            title="Room for applications taken",
            expr=active_level("committerd_app_marks_used_ratio"),
            unit="percentunit",
            description="At 100 %, records of new applications are refused (commit.app_marks_max).",
        ),
        Panel(
            title="Applications forgotten",
            queries=[by_label("committerd_app_marks_dropped_total", "cause")],
            unit="ops",
            description="Unused for 30 days.",
        ),
        Panel(
            title="Manifest",
            expr=active_level("committerd_manifest_bytes"),
            unit="bytes",
            description="Each commit writes all of it.",
        ),
        Panel(
            title="History in memory",
            queries=[
                Query(expr=active_level("committerd_ledger_bytes"), legend="{{dataset}} uuids"),
                Query(expr=active_level("committerd_footprint_bytes"), legend="{{dataset}} footprints"),
                Query(expr=active_level("committerd_deletion_vector_bytes"), legend="{{dataset}} deletion vectors"),
                Query(expr=active_level("committerd_cache_bytes", by="cache"), legend="{{dataset}} {{cache}}"),
            ],
            unit="bytes",
            description="Each has a bound; settings of the group memory set most of them.",
        ),
        Panel(
            title="Versions still to be read after the start",
            expr=active_level("committerd_unread_versions"),
            description="A record waits until the versions above its read version are read.",
        ),
        Panel(
            title="Versions that the ledger has dropped",
            expr=active_level("committerd_ledger_floor_version"),
            description="Up to which version; 0 = none. A record with an older read version may get UNDECIDED.",
        ),
        Panel(
            title="Deletion files needed",
            queries=[by_label("committerd_deletion_vector_lookups_total", "found")],
            unit="ops",
            description="kept: the content was in memory; read: it came from the store.",
        ),
        Panel(
            title="Uuids looked up again",
            queries=[Query(expr=rate("committerd_ledger_lookups_total", by="found"), legend="{{dataset}} {{found}}")],
            unit="ops",
            description="Those that the ledger could not rule out at once.",
        ),
    ],
)

STORE = Row(
    title="Store",
    panels=[
        Panel(
            title="Requests",
            queries=[
                Query(
                    expr=rate("committerd_store_requests_total", by="operation, status"),
                    legend="{{dataset}} {{operation}} {{status}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            title="Time of a request, p95",
            queries=[
                Query(
                    expr=quantile(0.95, "committerd_store_request_duration_seconds", by="operation"),
                    legend="{{dataset}} {{operation}}",
                )
            ],
            unit="s",
        ),
        Panel(
            title="Failed requests",
            queries=[
                Query(
                    expr=f"sum by (service, fault) ({of_members(_FAILED)})",
                    legend="{{service}} {{fault}}",
                )
            ],
            unit="reqps",
            description="To S3 and DynamoDB, including those that were then repeated.",
        ),
        Panel(
            title="Requests to the manifest store",
            queries=[
                Query(
                    expr=rate("committerd_manifest_store_requests_total", by="operation, status"),
                    legend="{{dataset}} {{operation}} {{status}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            title="Time of a request to the manifest store, p95",
            queries=[
                Query(
                    expr=quantile(0.95, "committerd_manifest_store_request_duration_seconds", by="operation"),
                    legend="{{dataset}} {{operation}}",
                )
            ],
            unit="s",
        ),
        Panel(
            title="Manifests put into place",
            queries=[by_label("committerd_external_manifests_total", "event")],
            unit="ops",
            description="Manifests that a writer had left behind, or had not registered.",
        ),
    ],
)

PROCESSES = Row(
    title="Processes",
    panels=[
        Panel(
            title="Memory",
            queries=[
                per_process("process_resident_memory_bytes"),
                Query(
                    expr=f"max ({of_members(of_process('committerd_memory_limit_bytes'))})",
                    legend="limit",
                ),
            ],
            unit="bytes",
        ),
        Panel(
            title="Until certificates and credentials end",
            queries=[
                Query(
                    expr="clamp_min(min by (certificate) ("
                    f"{of_members(of_process('committerd_certificate_expiry_timestamp_seconds'))}) - time(), 0)",
                    legend="{{certificate}}",
                ),
                Query(
                    expr="clamp_min(min by (service) ("
                    f"{of_members(of_process('committerd_credentials_expiry_timestamp_seconds'))}) - time(), 0)",
                    legend="credentials for {{service}}",
                ),
            ],
            unit="s",
            description="0 where no certificate is set, and where no credentials are temporary.",
        ),
        Panel(
            title="CPU",
            queries=[
                Query(
                    expr=of_members(f"rate({of_process('process_cpu_seconds_total')}[$__rate_interval])"),
                    legend="{{instance}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            title="Open files, share of the limit",
            queries=[
                Query(
                    expr=of_members(f"{of_process('process_open_fds')} / {of_process('process_max_fds')}"),
                    legend="{{instance}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            title="Up since",
            queries=[
                Query(
                    expr=of_members(f"(time() - {of_process('process_start_time_seconds')})"),
                    legend="{{instance}}",
                )
            ],
            unit="s",
        ),
        Panel(
            title="committerd",
            queries=[
                Query(
                    expr=f"count by (version, python) ({of_members(of_process('committerd_build_info'))})",
                    legend="{{version}} on Python {{python}}",
                )
            ],
        ),
    ],
)

MAINTENANCE = Row(
    title="Maintenance",
    panels=[
        Panel(
            title="Fragments, small ones, and how many small ones there may be",
            queries=[
                Query(expr=level("committerd_maintenance_fragments"), legend="{{dataset}} fragments"),
                Query(expr=level("committerd_maintenance_small_fragments"), legend="{{dataset}} small"),
                Query(expr=level("committerd_maintenance_fragments_wanted"), legend="{{dataset}} small, at most"),
            ],
            description="As `committerd maintain` last found them; the last is maintain.fragments_max.",
        ),
        Panel(
            title="Rows that an index lacks",
            expr=level("committerd_maintenance_unindexed_rows"),
            description="Of the index that lacks most.",
        ),
        Panel(
            title="Tasks that wait",
            expr=level("committerd_maintenance_waiting_tasks"),
            description="They could be done now, and wait for those of the next commit.",
        ),
        Panel(
            title="Fragments rewritten",
            queries=[by_label("committerd_maintenance_rewritten_fragments_total", "files")],
            unit="ops",
            description="before: those that were replaced; after: those that replaced them.",
        ),
        Panel(
            title="Bytes rewritten",
            queries=[by_label("committerd_maintenance_rewritten_bytes_total", "files")],
            unit="Bps",
        ),
        Panel(title="Versions after the last cleanup", expr=level("committerd_maintenance_versions")),
        Panel(
            title="Oldest version that a waiting record reads",
            queries=[
                Query(expr=level("committerd_maintenance_oldest_read_version"), legend="{{dataset}} at a cleanup"),
                Query(expr=level("committerd_table_version"), legend="{{dataset}} latest version"),
            ],
            description="Cleanup keeps this version and all later ones. A flat line means that a waiting record has an "
            "old read version.",
        ),
        Panel(
            title="Bytes of the table",
            queries=[
                Query(expr=level("committerd_maintenance_stored_bytes"), legend="{{dataset}} all files"),
                Query(expr=level("committerd_maintenance_unneeded_bytes"), legend="{{dataset}} that nothing needs"),
            ],
            unit="bytes",
            description="After the last cleanup.",
        ),
        Panel(
            title="Files deleted", queries=[by_label("committerd_maintenance_removed_files_total", "why")], unit="ops"
        ),
        Panel(title="Bytes deleted", expr=rate("committerd_maintenance_removed_bytes_total"), unit="Bps"),
        Panel(
            title="Time of a step, mean",
            queries=[
                Query(
                    expr=f"{rate('committerd_maintenance_step_seconds_sum', by='step')} / "
                    f"{rate('committerd_maintenance_step_seconds_count', by='step')}",
                    legend="{{dataset}} {{step}}",
                )
            ],
            unit="s",
        ),
        Panel(
            title="Share of the committer's time",
            expr=rate("committerd_maintenance_committer_seconds_total"),
            unit="percentunit",
            description="How much of the time the committer spends on the commits of maintenance "
            "(maintain.committer_share).",
        ),
        Panel(
            title="Steps that failed", queries=[by_label("committerd_maintenance_failures_total", "step")], unit="ops"
        ),
        Panel(
            title="Left alone by maintenance",
            queries=[
                Query(
                    expr=level("committerd_maintenance_passed_over_objects"),
                    legend="{{dataset}} objects that can't be read or deleted",
                ),
                Query(
                    expr=f"max by (dataset, what) ({metric('committerd_maintenance_left_alone')})",
                    legend="{{dataset}} {{what}} that pylance can't rewrite",
                ),
            ],
            description="The log names each.",
        ),
        Panel(
            title="Since a step last succeeded",
            queries=[
                Query(
                    expr="time() - (max by (dataset, step) "
                    f"({metric('committerd_maintenance_succeeded_timestamp_seconds')}) > 0)",
                    legend="{{dataset}} {{step}}",
                )
            ],
            unit="s",
        ),
    ],
)

INGEST = Row(
    title="Ingest",
    panels=[
        Panel(
            title="From record to row",
            queries=quantiles("committerd_ingest_freshness_seconds"),
            unit="s",
            description="From the timestamp of a transaction's oldest record until its row can be read.",
        ),
        Panel(
            title="Records that wait in topics",
            expr=total("committerd_ingest_lag_records"),
            description="Of the partitions that its processes have, those that are stopped among them.",
        ),
        Panel(
            title="Age of the oldest record that waits in a process",
            expr=level("committerd_ingest_lag_seconds"),
            unit="s",
        ),
        Panel(
            title="Records and rows",
            queries=[
                Query(expr=rate("committerd_ingest_records_total"), legend="{{dataset}} records"),
                Query(expr=rate("committerd_ingest_rows_total"), legend="{{dataset}} rows"),
                Query(expr=rate("committerd_ingest_bad_records_total"), legend="{{dataset}} bad records"),
                Query(expr=rate("committerd_ingest_passed_records_total"), legend="{{dataset}} of other routes"),
                Query(expr=rate("committerd_ingest_unmatched_records_total"), legend="{{dataset}} of no route"),
            ],
            unit="ops",
        ),
        Panel(title="Bytes of records", expr=rate("committerd_ingest_bytes_total"), unit="Bps"),
        Panel(title="Transactions of ingest", expr=rate("committerd_ingest_transactions_total"), unit="ops"),
        Panel(
            title="Time to decode and to commit, mean",
            queries=[
                Query(
                    expr=f"{rate('committerd_ingest_step_seconds_sum', by='step')} / "
                    f"{rate('committerd_ingest_step_seconds_count', by='step')}",
                    legend="{{dataset}} {{step}}",
                )
            ],
            unit="s",
        ),
        Panel(
            title="Partitions, and those that are stopped",
            queries=[
                Query(expr=total("committerd_ingest_partitions"), legend="{{dataset}} partitions"),
                Query(expr=total("committerd_ingest_stopped_partitions"), legend="{{dataset}} stopped"),
            ],
            description="The log of the process says why one is stopped.",
        ),
        Panel(
            title="Partitions that began again",
            queries=[by_label("committerd_ingest_begun_again_total", "cause")],
            unit="ops",
        ),
        Panel(
            title="Bytes that wait to be written",
            expr=total("committerd_ingest_waiting_bytes"),
            unit="bytes",
            description="Bounded by ingest.buffer_bytes_max in each process.",
        ),
    ],
)

ROWS = (NOW, ANSWERS, COMMITS, QUEUE, TABLE, MAINTENANCE, INGEST, STORE, PROCESSES)
