"""The Prometheus metrics: name, unit, labels, and a sentence of documentation for each.

Names and labels are a public interface; `docs/metrics.md` is generated from this module. Each metric of a committer has
the label `dataset` (`dataset.queue` of the settings); what belongs to the process has not. The values of any other
label are a closed set, and any other value becomes `other`. So requests can't increase the number of time series: a
label never holds a uuid, a path or text from a record. The only label with text from records is `producer` of
`committerd_waiting_records`, which has at most six series at a time.

A series begins with its first event. It exists before that (`zeros`) only where the first event must be an increase,
for an alert or because events are few, or where an alert compares with it.

The registry is an argument: two processes, or two tests, share nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from committerd import __version__
from committerd.errors import CorruptTable, UnsupportedTable
from committerd.machine import SHORTAGES
from committerd.parts import PARTS
from committerd.queue.outcomes import Status
from committerd.queue.race import Race
from committerd.reasons import INVALID_REASONS, REFUSAL_CAUSES, UNSUPPORTED_REASONS
from committerd_common.messages import Transaction

DATASET = "dataset"
OTHER = "other"

OPERATIONS = tuple(field.name for field in Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields)
REBASED_OFTEN = ("delete", "update", "rewrite")
OUTCOMES = tuple(status.value.lower() for status in Status)
VERDICTS = ("rebasable", "retryable", "incompatible")
STAGES = ("judge", "build", "put", "publish")
INTERNAL_STAGES = ("decode", "judge", "build", "create", "start")
DUPLICATE_REASONS = ("uuid_seen", "app_version_seen")
RETRY_REASONS = (
    Race.FOREIGN.value,
    Race.OTHER_COMMITTER.value,
    "unknown",
    "store_unavailable",
    "queue_unavailable",
    "machine_unavailable",
)
STARTED_AGAIN = "started_again"
RESTART_CAUSES = ("crash", "settings", "queue_unavailable", "store_unavailable", "machine_unavailable")
DATASETS_CHANGES = ("added", "removed", "changed", "refused")
LEDGER_FINDINGS = ("committed", "refused", "unknown", "new")
DELETION_VECTOR_FINDINGS = ("kept", "read")
CACHES = ("manifests", "outcomes", "reuse")
SETTLEMENTS = ("created", *(race.value for race in Race), STARTED_AGAIN)
QUEUE_CALLS = ("publish", "dead_letter", "acknowledge", "events")
EVENT_TYPES = ("committed", "missed", "replaced")
HOLD_ENDINGS = ("arrived", "expired")
UNUSED = "unused"
STORE_OPERATIONS = (
    "get",
    "get_range",
    "get_tail",
    "head",
    "list",
    "put",
    "put_if_absent",
    "copy",
    "delete",
)
STORE_STATUSES = ("ok", "absent", "exists", "unavailable", "unknown", "failed", "cancelled")
STORE_SERVICES = ("s3", "dynamodb", "azure", "gcs")
CERTIFICATES = (
    "azure_authorities", "gcs_authorities", "http_server", "kafka_authorities", "kafka_client", "oauth_authorities",
    "s3_authorities",
)  # fmt: skip
MANIFEST_STORE_OPERATIONS = ("get", "latest", "put_if_absent", "replace", "delete")
MANIFEST_EVENTS = ("deferred", "repaired", "registered")
STORE_FAULTS = ("throttled", "timeout", "connection", "server_error", "truncated", "refused")
DEAD_LETTER_REASONS = tuple(dict.fromkeys((*INVALID_REASONS, *UNSUPPORTED_REASONS)))
CAUSES = (*REFUSAL_CAUSES, UnsupportedTable.code, CorruptTable.code)

MAINTENANCE_STEPS = ("rewrite", "index", "cleanup")
MAINTENANCE_FAILURES = (*MAINTENANCE_STEPS, "open")
MAINTENANCE_FILES = ("before", "after")
MAINTENANCE_LEFT_ALONE = ("fragments", "indices")
MAINTENANCE_REASONS = ("manifest", "version", "unnamed", "temporary")
MAINTENANCE_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Buckets up to the length of a task of several gigabytes."""

INGEST_STEPS = ("decode", "commit")
INGEST_CAUSES = ("mark_moved", "failed")

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Buckets from the duration of a local put up to a caller's timeout."""
TRANSACTIONS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)

_M = TypeVar("_M", Counter, Gauge, Histogram)
_BoundT = TypeVar("_BoundT", "LabelledCounter", "LabelledGauge", "LabelledHistogram", "NamingGauge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The documentation of one metric."""

    name: str
    kind: str
    """Counter, gauge or histogram."""
    unit: str
    labels: Mapping[str, Sequence[str]]
    """By label, its values; `other` is always one more."""
    meaning: str


class _LabelledMetric(Generic[_M]):
    """A metric of one dataset, or of the process, with labels that each have a closed set of values."""

    def __init__(
        self,
        metric: _M,
        unregistered: Callable[[], _M],
        labels: Mapping[str, Sequence[str]],
        *,
        zeros: Sequence[str],
        dataset: str | None,
    ) -> None:
        self._metric: _M = metric
        self._unregistered: Callable[[], _M] = unregistered
        self._bound = () if dataset is None else (dataset,)
        self._values = {label: frozenset(values) for label, values in labels.items()}
        self._children: dict[tuple[tuple[str, str], ...], _M] = {}
        """By label values; holds at most one entry per combination of known values and `other`."""
        self._forgotten = False
        if not labels:
            self._child({})
        for label in labels:
            for value in zeros:  # so that a rate is 0 instead of missing until the first event
                self._child({label: value})

    def forget(self) -> None:
        """Remove the dataset's series. What is counted afterwards shows nowhere; a second call does nothing."""
        if self._forgotten:
            return
        self._forgotten = True
        for key in self._children:
            self._metric.remove(*self._bound, *(value for _, value in key))

    def _child(self, given: Mapping[str, str]) -> _M:
        key = tuple(given.items())
        known = self._children.get(key)
        if known is not None:
            return known
        if given.keys() != self._values.keys():
            raise ValueError(f"labels are {sorted(self._values)}, not {sorted(given)}")
        closed = tuple(
            (label, given[label] if given[label] in values else OTHER) for label, values in self._values.items()
        )
        if closed not in self._children:
            self._children[closed] = self._made([value for _, value in closed])
        return self._children[closed]

    def _made(self, values: Sequence[str]) -> _M:
        names = (*self._bound, *values)
        # The registry may have a series of the same names by now: this process may serve the dataset again.
        metric = self._unregistered() if self._forgotten else self._metric
        child: _M = metric.labels(*names) if names else metric
        return child


class LabelledCounter(_LabelledMetric[Counter]):
    """A counter."""

    def add(self, amount: float = 1, /, **labels: str) -> None:
        self._child(labels).inc(amount)


class LabelledGauge(_LabelledMetric[Gauge]):
    """A gauge."""

    def set(self, value: float, /, **labels: str) -> None:
        self._child(labels).set(value)

    def track(self, value: Callable[[], float], /, **labels: str) -> None:
        """Call `value` at each scrape, so that the metric is current even while the process is idle."""
        self._child(labels).set_function(value)


class LabelledHistogram(_LabelledMetric[Histogram]):
    """A histogram."""

    def observe(self, value: float, /, **labels: str) -> None:
        self._child(labels).observe(value)

    @contextmanager
    def timed(self, **labels: str) -> Iterator[None]:
        """Observe the duration of the block in seconds, on the event loop's clock, even when it raises."""
        start = anyio.current_time()
        try:
            yield
        finally:
            self._child(labels).observe(anyio.current_time() - start)


class NamingGauge:
    """A gauge of one dataset that says at each scrape which values its only label has."""

    def __init__(self, gauges: _NamingGauges, dataset: str) -> None:
        self._gauges, self._dataset = gauges, dataset
        self._look: Callable[[], Mapping[str, float]] | None = None

    def track(self, look: Callable[[], Mapping[str, float]], /) -> None:
        """Call `look` at each scrape: it returns the values of the series, by label. Only a few may be there."""
        self._look = self._gauges.looks[self._dataset] = look

    def forget(self) -> None:
        """Remove the dataset's series, unless the process serves the dataset again by now."""
        if self._look is not None and self._gauges.looks.get(self._dataset) is self._look:
            del self._gauges.looks[self._dataset]


class _NamingGauges(Collector):
    """A metric of type `NamingGauge`, of all datasets."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str]) -> None:
        self._named = name, meaning, labels
        self.looks: dict[str, Callable[[], Mapping[str, float]]] = {}
        """By dataset."""

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The series of a scrape."""
        name, meaning, labels = self._named
        family = GaugeMetricFamily(name, meaning, labels=labels)
        for dataset, look in self.looks.items():
            for value, number in look().items():
                family.add_metric([dataset, value], number)
        yield family


class _Registered:
    """The metrics that a registry has, each registered once; those of a dataset have the label `dataset`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._metrics: dict[str, Any] = {}

    def metric(
        self, kind: Callable[..., _M], name: str, meaning: str, labels: Sequence[str], **options: Any
    ) -> tuple[_M, Callable[[], _M]]:
        """The metric of this name, and what makes the same metric for no registry. Registers it at its first use."""
        if name not in self._metrics:
            self._metrics[name] = kind(name, meaning, labels, registry=self._registry, **options)
        found: _M = self._metrics[name]
        return found, partial(kind, name, meaning, labels, registry=None, **options)

    def naming(self, name: str, meaning: str, labels: Sequence[str]) -> _NamingGauges:
        """The metric of this name whose series are named at each scrape. Registers it at its first use."""
        if name not in self._metrics:
            self._metrics[name] = _NamingGauges(name, meaning, labels)
            self._registry.register(self._metrics[name])
        found: _NamingGauges = self._metrics[name]
        return found


class _Catalogue:
    """Binds metrics to a dataset, or to the process if `dataset` is None, and collects their descriptions."""

    def __init__(self, registered: _Registered, dataset: str | None) -> None:
        self._registered = registered
        self._dataset = dataset
        self.descriptions: list[Description] = []
        self.bound: list[LabelledCounter | LabelledGauge | LabelledHistogram | NamingGauge] = []

    def counter(
        self, name: str, meaning: str, *, zeros: Sequence[str] = (), **labels: Sequence[str]
    ) -> LabelledCounter:
        """A counter. `zeros`: the values of its only label that have a series before their first event."""
        names = self._described(name, "counter", meaning, labels)
        metrics = self._registered.metric(Counter, name, meaning, names)
        return self._kept(LabelledCounter(*metrics, labels, zeros=zeros, dataset=self._dataset))

    def gauge(self, name: str, meaning: str, *, zeros: Sequence[str] = (), **labels: Sequence[str]) -> LabelledGauge:
        """A gauge; `zeros` as of `counter`."""
        names = self._described(name, "gauge", meaning, labels)
        metrics = self._registered.metric(Gauge, name, meaning, names)
        return self._kept(LabelledGauge(*metrics, labels, zeros=zeros, dataset=self._dataset))

    def naming_gauge(self, name: str, meaning: str, **label: Sequence[str]) -> NamingGauge:
        """A gauge of a dataset. `label`: an example of its values."""
        names = self._described(name, "gauge", meaning, label)
        return self._kept(NamingGauge(self._registered.naming(name, meaning, names), self._dataset or ""))

    def histogram(
        self,
        name: str,
        meaning: str,
        buckets: Iterable[float] = SECONDS,
        *,
        zeros: Sequence[str] = (),
        **labels: Sequence[str],
    ) -> LabelledHistogram:
        """A histogram; `zeros` as of `counter`."""
        names = self._described(name, "histogram", meaning, labels)
        metrics = self._registered.metric(Histogram, name, meaning, names, buckets=tuple(map(float, buckets)))
        return self._kept(LabelledHistogram(*metrics, labels, zeros=zeros, dataset=self._dataset))

    def _kept(self, bound: _BoundT) -> _BoundT:
        self.bound.append(bound)
        return bound

    def _described(self, name: str, kind: str, meaning: str, labels: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Describe a metric; returns the names of its labels."""
        last = name.removesuffix("_total").rsplit("_", 1)[-1]
        unit = last if last in ("seconds", "bytes") else ""
        if self._dataset is not None:
            labels = {DATASET: (self._dataset,), **labels}
        self.descriptions.append(Description(name=name, kind=kind, unit=unit, labels=labels, meaning=meaning))
        return tuple(labels)


class Metrics:
    """The metrics of one process that commits: its own (also `process_*`), and those of each of its datasets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registered = _Registered(registry)
        self.process = ProcessTelemetry(_Catalogue(self._registered, None))
        ProcessCollector(registry=registry)

    def of(self, dataset: str) -> Telemetry:
        """The metrics of one dataset (`dataset.queue` of the settings). `Telemetry.forget` ends them."""
        return Telemetry(_Catalogue(self._registered, dataset), self.process)


class MaintenanceMetrics:
    """The metrics of a process of `committerd maintain`: its own (`process_*`), and those of each of its datasets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registered = _Registered(registry)
        ProcessCollector(registry=registry)

    def of(self, dataset: str) -> MaintenanceTelemetry:
        """The metrics of one dataset (`dataset.queue` of the settings). `MaintenanceTelemetry.forget` ends them."""
        return MaintenanceTelemetry(_Catalogue(self._registered, dataset))


class _OfDataset:
    """The metrics of one dataset."""

    def __init__(self, catalogue: _Catalogue) -> None:
        self.descriptions: Sequence[Description] = tuple(catalogue.descriptions)
        self._bound = tuple(catalogue.bound)

    def forget(self) -> None:
        """Remove the dataset's series: this process serves it no more. What is counted afterwards shows nowhere."""
        for metric in self._bound:
            metric.forget()


class MaintenanceTelemetry(_OfDataset):
    """The metrics of `committerd maintain` for one dataset; `MaintenanceMetrics.of` makes them."""

    def __init__(self, metrics: _Catalogue) -> None:
        self.rewritten_bytes = metrics.counter(
            "committerd_maintenance_rewritten_bytes_total",
            "Bytes of data files that tasks have read (`before`) and written (`after`).",
            files=MAINTENANCE_FILES,
            zeros=MAINTENANCE_FILES,
        )
        self.rewritten_fragments = metrics.counter(
            "committerd_maintenance_rewritten_fragments_total",
            "Fragments that were replaced (`before`) and fragments that replaced them (`after`).",
            files=MAINTENANCE_FILES,
            zeros=MAINTENANCE_FILES,
        )
        self.removed_files = metrics.counter(
            "committerd_maintenance_removed_files_total",
            "Files that were deleted, by reason: the `manifest` of a version, files that only such a `version` named, "
            "files `unnamed` by any version or waiting record, and `temporary` files.",
            why=MAINTENANCE_REASONS,
            zeros=MAINTENANCE_REASONS,
        )
        self.removed_bytes = metrics.counter(
            "committerd_maintenance_removed_bytes_total", "Bytes of the files that were deleted."
        )
        self.seconds = metrics.histogram(
            "committerd_maintenance_step_seconds",
            "Time of one step: rewriting the fragments of one commit, optimizing indices, one cleanup.",
            MAINTENANCE_SECONDS,
            step=MAINTENANCE_STEPS,
        )
        self.committer_seconds = metrics.counter(
            "committerd_maintenance_committer_seconds_total",
            "Time that the committer has spent on the commits of maintenance (maintain.committer_share).",
        )
        self.failures = metrics.counter(
            "committerd_maintenance_failures_total",
            "Steps that failed; they are tried again. `open`: the table or its topics could not be opened, in a "
            "process with many tables.",
            step=MAINTENANCE_FAILURES,
            zeros=MAINTENANCE_FAILURES,
        )
        self.succeeded = metrics.gauge(
            "committerd_maintenance_succeeded_timestamp_seconds",
            "When a step last succeeded, whether or not there was something to do (Unix time).",
            step=MAINTENANCE_STEPS,
            zeros=MAINTENANCE_STEPS,
        )
        self.fragments = metrics.gauge("committerd_maintenance_fragments", "Fragments of the table.")
        self.small_fragments = metrics.gauge(
            "committerd_maintenance_small_fragments",
            "Fragments that are small (maintain.rows_per_fragment, maintain.bytes_per_fragment).",
        )
        self.fragments_wanted = metrics.gauge(
            "committerd_maintenance_fragments_wanted",
            "Small fragments that the table may have (maintain.fragments_max).",
        )
        self.unindexed_rows = metrics.gauge(
            "committerd_maintenance_unindexed_rows",
            "Rows that an index does not cover; of the index that lacks the most rows.",
        )
        self.waiting_tasks = metrics.gauge(
            "committerd_maintenance_waiting_tasks", "Tasks that could be done now, beyond those of the next commit."
        )
        self.versions = metrics.gauge(
            "committerd_maintenance_versions", "Versions of the table after the last cleanup."
        )
        self.stored = metrics.gauge(
            "committerd_maintenance_stored_bytes", "Size of all files of the table after the last cleanup."
        )
        self.unneeded = metrics.gauge(
            "committerd_maintenance_unneeded_bytes",
            "Size of the files that no version and no waiting record names, after the last cleanup.",
        )
        self.passed_over = metrics.gauge(
            "committerd_maintenance_passed_over_objects",
            "Objects that the last cleanup could not read or delete, and left alone; its log names them.",
        )
        self.left_alone = metrics.gauge(
            "committerd_maintenance_left_alone",
            "Fragments and indices that pylance can't rewrite, and that are left alone until they are tried again; the "
            "log and `committerd status` name them.",
            what=MAINTENANCE_LEFT_ALONE,
            zeros=MAINTENANCE_LEFT_ALONE,
        )
        self.oldest_read_version = metrics.gauge(
            "committerd_maintenance_oldest_read_version",
            "Lowest read version of the records that were waiting at the last cleanup. Cleanup keeps that version and "
            "all later ones. The latest version if no record waited.",
        )
        super().__init__(metrics)


class IngestMetrics:
    """The metrics of a process of `committerd ingest`: its own (`process_*`), and those of its dataset."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registered = _Registered(registry)
        ProcessCollector(registry=registry)

    def of(self, dataset: str) -> IngestTelemetry:
        """The metrics of one dataset (`dataset.queue` of the settings)."""
        return IngestTelemetry(_Catalogue(self._registered, dataset))


class IngestTelemetry(_OfDataset):
    """The metrics of `committerd ingest`; `IngestMetrics.of` makes them."""

    def __init__(self, metrics: _Catalogue) -> None:
        self.records = metrics.counter(
            "committerd_ingest_records_total", "Records that are settled: in the table, or bad."
        )
        self.rows = metrics.counter("committerd_ingest_rows_total", "Rows that are in the table.")
        self.bytes = metrics.counter(
            "committerd_ingest_bytes_total", "Bytes of keys and values of the settled records."
        )
        self.bad_records = metrics.counter(
            "committerd_ingest_bad_records_total",
            "Records that made no row and were passed over (ingest.on_error = dead-letter or skip).",
        )
        self.passed = metrics.counter(
            "committerd_ingest_passed_records_total",
            "With ingest.routes: records of the topics that are of other routes, or of none; again, if read again "
            "(ingest.mark_seconds).",
        )
        self.unmatched = metrics.counter(
            "committerd_ingest_unmatched_records_total",
            "Records that no route takes, and that were passed over (ingest.unmatched = skip); counted for the first "
            "route that reads their topic.",
        )
        self.transactions = metrics.counter("committerd_ingest_transactions_total", "Transactions that were committed.")
        self.begun_again = metrics.counter(
            "committerd_ingest_begun_again_total",
            "How often a partition began again at the table's mark: because the mark was elsewhere (`mark_moved`), or "
            "because something failed.",
            cause=INGEST_CAUSES,
            zeros=INGEST_CAUSES,
        )
        self.seconds = metrics.histogram(
            "committerd_ingest_step_seconds",
            "Time of one step of a transaction: making rows of records (`decode`), writing them and waiting for the "
            "outcome (`commit`).",
            SECONDS,
            step=INGEST_STEPS,
        )
        self.freshness = metrics.histogram(
            "committerd_ingest_freshness_seconds",
            "From the timestamp of the oldest record of a transaction until its row can be read.",
            SECONDS,
        )
        self.partitions = metrics.gauge("committerd_ingest_partitions", "Partitions that this process is assigned.")
        self.stopped = metrics.gauge(
            "committerd_ingest_stopped_partitions",
            "Of these, the partitions that wait for an operator; the log says why.",
        )
        self.waiting_bytes = metrics.gauge(
            "committerd_ingest_waiting_bytes",
            "Bytes of records that wait or are being written (ingest.buffer_bytes_max).",
        )
        self.lag = metrics.gauge(
            "committerd_ingest_lag_records", "Records of these partitions that are not in the table yet."
        )
        self.lag_seconds = metrics.gauge(
            "committerd_ingest_lag_seconds",
            "Age of the oldest record that waits in this process or has stopped its partition; 0 if there is none.",
        )
        super().__init__(metrics)


class ProcessTelemetry:
    """What belongs to a process that commits, however many datasets it serves."""

    def __init__(self, metrics: _Catalogue) -> None:
        self.build_info = metrics.gauge(
            "committerd_build_info",
            "Always 1; the labels say which committerd and Python this is.",
            version=(__version__,),
            python=(platform.python_version(),),
        )
        self.memory_limit = metrics.gauge(
            "committerd_memory_limit_bytes", "Memory that the container may take; 0 = no limit, or not known."
        )
        self.certificate_expiry = metrics.gauge(
            "committerd_certificate_expiry_timestamp_seconds",
            "Unix time at which a certificate that the settings name expires: that of Kafka's authorities, of the "
            "client that logs in to Kafka with it, of the authorities of a store or of the OAuth server, of the HTTP "
            "server. 0 = none is set, or its file can't be read.",
            certificate=CERTIFICATES,
            zeros=CERTIFICATES,
        )
        self.kafka_connected = metrics.gauge(
            "committerd_kafka_connected",
            "1 while the broker that leads the staged topic responds to this member, 0 when it has not responded "
            "for 20 s.",
        )
        self.datasets_file_wrong = metrics.gauge(
            "committerd_datasets_file_wrong",
            "1 while daemon.datasets_file can't be read or applied, so that the datasets stay as they were; the log "
            "and /readyz say why.",
        )
        self.part_failures = metrics.counter(
            "committerd_part_failures_total",
            "Unexpected errors in what all datasets of the process share, by part; the part began anew, and the log "
            "has the traceback (`part.failed`).",
            part=PARTS,
            zeros=PARTS,
        )
        self.datasets_changes = metrics.counter(
            "committerd_datasets_changes_total",
            "Datasets that daemon.datasets_file has added, removed or changed while the process ran, and contents of "
            "the file that were refused.",
            change=DATASETS_CHANGES,
            zeros=DATASETS_CHANGES,
        )
        self.credentials_expiry = metrics.gauge(
            "committerd_credentials_expiry_timestamp_seconds",
            "Unix time at which the temporary credentials that the AWS chain has fetched for S3 or DynamoDB expire; "
            "the chain renews them 10 to 15 minutes before. 0 = they are not temporary.",
            service=STORE_SERVICES,
            zeros=STORE_SERVICES,
        )
        self.store_failed_requests = metrics.counter(
            "committerd_store_failed_requests_total",
            "HTTP requests to S3, DynamoDB or a cloud's store that failed, including those that were then repeated: "
            "`throttled` is 429 or 503 (SlowDown), `server_error` any other 5xx, `truncated` a reply that ended early, "
            "`refused` a failure that repeating can't cure. A reply that an object is absent or a key is taken is no "
            "failure.",
            service=STORE_SERVICES,
            fault=STORE_FAULTS,
        )
        self.descriptions: Sequence[Description] = tuple(metrics.descriptions)
        self.build_info.set(1, version=__version__, python=platform.python_version())


class Telemetry(_OfDataset):
    """The metrics of one committer; `Metrics.of` makes them."""

    def __init__(self, metrics: _Catalogue, process: ProcessTelemetry) -> None:
        self.process = process
        self._outcomes(metrics)
        self._commits(metrics)
        self._queue(metrics)
        self._state(metrics)
        self._store(metrics)
        super().__init__(metrics)

    def _outcomes(self, metrics: _Catalogue) -> None:
        self.transactions = metrics.counter(
            "committerd_transactions_total",
            "Staged records that have an outcome, by operation of the transaction and status of the outcome.",
            operation=OPERATIONS,
            outcome=OUTCOMES,
        )
        self.duplicates = metrics.counter(
            "committerd_duplicates_total",
            "Records that got DUPLICATE, by what the committer recognised.",
            reason=DUPLICATE_REASONS,
            zeros=DUPLICATE_REASONS,
        )
        self.dead_letters = metrics.counter(
            "committerd_dead_letters_total",
            "Records written to the dead letter topic, by reason.",
            reason=DEAD_LETTER_REASONS,
            zeros=("app_marks_full",),
        )
        self.internal_errors = metrics.counter(
            "committerd_internal_errors_total",
            "Records that were refused because committerd itself failed on them, by stage of the work.",
            stage=INTERNAL_STAGES,
            zeros=INTERNAL_STAGES,
        )
        self.machine_errors = metrics.counter(
            "committerd_machine_errors_total",
            "Errors of the process or its machine, by what is lacking. They belong to no record, and records wait.",
            lacks=SHORTAGES,
            zeros=SHORTAGES,
        )
        self.republished_outcomes = metrics.counter(
            "committerd_republished_answers_total",
            "Outcomes published again from the table, after a start or a takeover.",
        )
        self.submit_to_outcome = metrics.histogram(
            "committerd_submit_to_outcome_seconds",
            "From the record's timestamp in Kafka until its outcome was published, by status.",
            outcome=OUTCOMES,
            zeros=(Status.COMMITTED.value.lower(), Status.UNDECIDED.value.lower()),
        )

    def _commits(self, metrics: _Catalogue) -> None:
        self.conflicts = metrics.counter(
            "committerd_conflicts_total",
            "Verdicts other than compatible, by the operation being committed (`ours`) and the operation that was "
            "committed since its read version (`theirs`).",
            ours=OPERATIONS,
            theirs=OPERATIONS,
            verdict=VERDICTS,
        )
        self.rebases = metrics.counter(
            "committerd_rebases_total",
            "Transactions changed so that they apply on top of what was committed since their read version.",
            operation=OPERATIONS,
            zeros=REBASED_OFTEN,
        )
        self.followed_rows = metrics.counter(
            "committerd_followed_rows_total",
            "Rows that were followed to where a Rewrite moved them, so that a Delete or an Update passed the Rewrite, "
            "or the Rewrite passed it.",
            operation=OPERATIONS,
            zeros=REBASED_OFTEN,
        )
        self.commit_attempts = metrics.counter(
            "committerd_commit_attempts_total", "Puts of a manifest, first tries and retries."
        )
        self.commit_retries = metrics.counter(
            "committerd_commit_retries_total",
            "Commits tried again, by reason: a foreign writer or another committer took the "
            "version, the reply to the put was lost, or the store or Kafka was unavailable.",
            reason=RETRY_REASONS,
            zeros=RETRY_REASONS,
        )
        self.commit_duration = metrics.histogram(
            "committerd_commit_duration_seconds",
            "Time of one commit, by stage.",
            stage=STAGES,
        )
        self.commit_transactions = metrics.histogram(
            "committerd_commit_transactions",
            "Transactions in one committed version.",
            buckets=TRANSACTIONS,
        )
        self.unknown_outcomes = metrics.counter(
            "committerd_unknown_outcomes_total", "Puts of a manifest whose reply was lost."
        )
        self.unknown_outcomes_settled = metrics.counter(
            "committerd_unknown_outcomes_settled_total",
            "Puts with a lost reply whose result is known by now: a later try created the version; the version that "
            "was there was ours, another committer's or foreign; or the committer read table and queue anew.",
            result=SETTLEMENTS,
            zeros=SETTLEMENTS,
        )
        self.foreign_commits = metrics.counter(
            "committerd_foreign_commits_total",
            "Versions that writers other than committerd made.",
        )
        self.refusal_only_versions = metrics.counter(
            "committerd_refusal_only_versions_total",
            "Versions that contain no transaction, only the position after refused records.",
        )

    def _queue(self, metrics: _Catalogue) -> None:
        self.queue_wait = metrics.histogram(
            "committerd_queue_wait_seconds",
            "From the record's timestamp in Kafka until it was first judged.",
        )
        self.queue_depth_records = metrics.gauge(
            "committerd_queue_depth_records", "Records that are held in memory and not yet settled."
        )
        self.queue_depth_bytes = metrics.gauge(
            "committerd_queue_depth_bytes", "Memory of the values, keys and headers of these records."
        )
        self.waiting_records = metrics.naming_gauge(
            "committerd_waiting_records",
            "Records without an outcome that this member has read, by producer (header `producer`, else `app-id X`, "
            "else `no producer`). Named are at most five, those with the most, and only with 100 records or more; "
            "`other` is the rest. No series while nothing waits.",
            producer=("NAME",),
        )
        self.queue_lag_records = metrics.gauge(
            "committerd_queue_lag_records",
            "Offsets from the position to the end of the topic; 0 while another member holds the partition.",
        )
        self.oldest_pending_age = metrics.gauge(
            "committerd_oldest_pending_age_seconds",
            "Age of the oldest record without an outcome; 0 when there is none.",
        )
        self.unread_age = metrics.gauge(
            "committerd_unread_age_seconds",
            "Age of the oldest record that is not acknowledged; 0 when there is none. The member that holds the "
            "partition looks it up every 30 s, even while it waits or refuses to run.",
        )
        self.staged_retention = metrics.gauge(
            "committerd_staged_retention_seconds",
            "How long the staged topic keeps a record; +Inf if it keeps them for ever, or while that is unknown.",
        )
        self.held_back_records = metrics.gauge(
            "committerd_held_back_records",
            "Records that can't be read because they follow the start of an open Kafka transaction. "
            "The member that holds the partition looks this up every 10 s.",
        )
        self.held_back_seconds = metrics.gauge(
            "committerd_held_back_seconds", "Age of the first record that is held back; 0 when there is none."
        )
        self.topic_problems = metrics.gauge(
            "committerd_topic_problems",
            "Wrong settings of the dataset's topics; the log names them. The committer checks them every "
            "kafka.topics_recheck_seconds.",
        )
        self.queue_retries = metrics.counter(
            "committerd_queue_retries_total",
            "Calls to Kafka that failed and were tried again.",
            call=QUEUE_CALLS,
            zeros=QUEUE_CALLS,
        )
        self.change_events = metrics.counter(
            "committerd_change_events_total",
            "Change events that were published (kafka.change_events), by type: a version was `committed`, versions "
            "were `missed`, the table was `replaced`.",
            type=EVENT_TYPES,
        )
        self.change_events_lag = metrics.gauge(
            "committerd_change_events_lag_versions",
            "Versions that have no published change event yet; at least 1 while the events topic can't be read, and 0 "
            "while this member is not active or publishes none.",
        )
        self.holds = metrics.counter(
            "committerd_holds_total",
            "Holds, in which commits waited for re-executions: these arrived, or the time was up.",
            ended=HOLD_ENDINGS,
            zeros=HOLD_ENDINGS,
        )
        self.hold_seconds = metrics.counter("committerd_hold_seconds_total", "Time that commits spent in holds.")
        self.precedences = metrics.counter(
            "committerd_precedences_total",
            "Reservations of rows and keys for refused transactions, by how they ended: the re-execution was committed "
            "or refused, or did not arrive in time.",
            ended=HOLD_ENDINGS,
            zeros=HOLD_ENDINGS,
        )

    def _state(self, metrics: _Catalogue) -> None:
        self.active = metrics.gauge(
            "committerd_active",
            "1 while this member commits, or would if the queue were not paused; 0 while it stands by.",
        )
        self.paused = metrics.gauge(
            "committerd_paused",
            "1 while this member is active and settles nothing, because an operator has paused the queue "
            "(`committerd pause`).",
        )
        self.not_served = metrics.gauge(
            "committerd_not_served",
            "1 while this process can't serve the dataset, because its committer has crashed, or what it needs can't "
            "be opened; it tries again after up to a minute. /readyz and the log say why.",
        )
        self.restarts = metrics.counter(
            "committerd_restarts_total",
            "How often the dataset's committer ended with an error and was started anew in this process: by a `crash`, "
            "or because what it needs could not be opened.",
            cause=RESTART_CAUSES,
            zeros=RESTART_CAUSES[:1],
        )
        self.waiting_for_table = metrics.gauge(
            "committerd_waiting_for_table", "1 while records wait because there is no table yet."
        )
        self.refused_to_run = metrics.gauge(
            "committerd_refused_to_run",
            "1 while table and topic contradict each other and an operator is needed, by cause.",
            cause=CAUSES,
            zeros=(OTHER,),
        )
        self.last_commit_timestamp = metrics.gauge(
            "committerd_last_commit_timestamp_seconds",
            "Unix time of the last version that this member committed.",
        )
        self.app_marks = metrics.gauge(
            "committerd_app_marks", "Applications whose last unit of work the latest version records."
        )
        self.app_marks_used_ratio = metrics.gauge(
            "committerd_app_marks_used_ratio",
            "Share of the space for application marks (commit.app_marks_max) that is taken. At 1, records of new "
            "applications are refused (`app_marks_full`).",
        )
        self.app_marks_dropped = metrics.counter(
            "committerd_app_marks_dropped_total",
            "Application marks dropped because they were `unused` for 30 days.",
            cause=(UNUSED,),
            zeros=(UNUSED,),
        )
        self.table_version = metrics.gauge("committerd_table_version", "Latest version known.")
        self.table_fragments = metrics.gauge("committerd_table_fragments", "Fragments in that version.")
        self.manifest_bytes = metrics.gauge("committerd_manifest_bytes", "Size of the manifest of that version.")
        self.ledger_bytes = metrics.gauge(
            "committerd_ledger_bytes", "Memory of the uuids of the readable history; memory.ledger_bytes is the bound."
        )
        self.ledger_floor_version = metrics.gauge(
            "committerd_ledger_floor_version",
            "The ledger has dropped the uuids of this version and all below it for lack of memory; 0 = it has dropped "
            "none.",
        )
        self.unread_versions = metrics.gauge(
            "committerd_unread_versions",
            "Older versions that the committer still has to read after its start. A record waits until the versions "
            "above its read version are read; a record with read version 0 waits for all.",
        )
        self.footprint_bytes = metrics.gauge(
            "committerd_footprint_bytes",
            "Memory of the footprints of committed versions; memory.footprint_bytes is the bound. The committer reads "
            "a dropped footprint again when it needs it.",
        )
        self.deletion_vector_bytes = metrics.gauge(
            "committerd_deletion_vector_bytes",
            "Memory of the cached content of deletion files; memory.deletion_vector_bytes is the bound.",
        )
        self.deletion_vector_lookups = metrics.counter(
            "committerd_deletion_vector_lookups_total",
            "How often the content of a deletion file was needed: `kept` if it was in memory, `read` if it came from "
            "the store.",
            found=DELETION_VECTOR_FINDINGS,
            zeros=DELETION_VECTOR_FINDINGS,
        )
        self.cache_bytes = metrics.gauge(
            "committerd_cache_bytes",
            "Memory of the other caches of the table, which have fixed bounds: `manifests` (64 MiB, and the newest "
            "manifest), `outcomes` of versions (8 MiB), content of fragment `reuse` indices (32 MiB).",
            cache=CACHES,
        )
        self.ledger_lookups = metrics.counter(
            "committerd_ledger_lookups_total",
            "Uuids that the ledger had to look up, by result: `committed` or `refused` before, `new`, or `unknown` "
            "because the version was dropped or can't be read.",
            found=LEDGER_FINDINGS,
            zeros=LEDGER_FINDINGS,
        )

    def _store(self, metrics: _Catalogue) -> None:
        self.store_requests = metrics.counter(
            "committerd_store_requests_total",
            "Requests to the object store, by operation and status. `absent` and `exists` are not failures; `unknown` "
            "is a write whose reply was lost.",
            operation=STORE_OPERATIONS,
            status=STORE_STATUSES,
        )
        self.store_request_duration = metrics.histogram(
            "committerd_store_request_duration_seconds",
            "Time of one request to the object store, with its retries.",
            operation=STORE_OPERATIONS,
            status=STORE_STATUSES,
        )
        self.manifest_store_requests = metrics.counter(
            "committerd_manifest_store_requests_total",
            "Requests to the external manifest store, by operation and status as for the object store.",
            operation=MANIFEST_STORE_OPERATIONS,
            status=STORE_STATUSES,
        )
        self.manifest_store_request_duration = metrics.histogram(
            "committerd_manifest_store_request_duration_seconds",
            "Time of one request to the external manifest store, with its retries.",
            operation=MANIFEST_STORE_OPERATIONS,
            status=STORE_STATUSES,
        )
        self.external_manifests = metrics.counter(
            "committerd_external_manifests_total",
            "Unusual events of manifests: `deferred`, our commit is done but its manifest could not be put into "
            "place; `repaired`, we put a manifest into place that its writer had left behind; `registered`, a manifest "
            "of a writer without a manifest store got its entry.",
            event=MANIFEST_EVENTS,
            zeros=MANIFEST_EVENTS,
        )
