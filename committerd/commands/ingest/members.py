"""The pipelines that a process of `committerd ingest` runs: one, or one for each route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from committerd.commands.ingest.parts import own_topics, pipeline_of, reader_pipeline_of
from committerd.commands.options import asked_branch, asked_dataset, settings
from committerd.errors import SettingsError
from committerd.settings.ingest import IngestSettings
from committerd.settings.load import ServedDatasets, Settings, load_served
from committerd_ingest.routing import Route, Routing
from committerd_ingest.settings import Pipeline, ReaderPipeline

_WRITES_MAX = 4
"""Transactions that are on their way at once, in all pipelines together, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pipeline of the process."""

    settings: Settings
    """Those of its dataset."""
    pipeline: Pipeline | ReaderPipeline


def members() -> Sequence[Member]:
    """The pipelines of the settings; only that of the dataset that the command line names. Raises `SettingsError`."""
    found = load_served()
    each, shared = _each(found), found.shared.ingest
    if not shared.routes:
        return [Member(settings=one, pipeline=_alone(one)) for one in each.values()]
    written = [topic for one in each.values() for topic in own_topics(one)]
    pipelines = {name: _pipeline(name, one, written, share=len(each)) for name, one in each.items()}
    if shared.route_header or shared.route_column:
        pipelines = _routed(pipelines, each, shared)
    chosen = _chosen(each)
    return [Member(settings=each[name], pipeline=one) for name, one in pipelines.items() if chosen in (None, name)]


def only_settings() -> Settings:
    """Those of the only pipeline, or of the dataset that the command line names. Raises `SettingsError`."""
    each = _each(load_served())
    name = next(iter(each)) if len(each) == 1 else _chosen(each)
    if name is None:
        raise SettingsError(f"ingest.routes has {len(each)} routes, choose one with --dataset NAME: {', '.join(each)}")
    return each[name]


def only_member() -> Member:
    """As `only_settings`, with the pipeline."""
    chosen = only_settings().dataset.queue
    return next(one for one in members() if one.settings.dataset.queue == chosen)


def _each(found: ServedDatasets) -> Mapping[str, Settings]:
    """The settings of each pipeline, by the name of its dataset's queue."""
    shared = found.shared.ingest
    if not shared.routes:
        configured = settings()
        return {configured.dataset.queue: configured}
    if asked_branch() is not None:
        raise SettingsError("--branch and ingest.routes exclude each other: name the branch as a dataset with a route")
    unknown = sorted(shared.routes.keys() - found.datasets.keys())
    if unknown:
        raise SettingsError(
            f"ingest.routes.{unknown[0]}: the settings name no dataset {unknown[0]!r}: add it as "
            f"[datasets.{unknown[0]}] with uri. They name {', '.join(sorted(found.datasets)) or 'none'}"
        )
    return {name: found.datasets[name].model_copy(update={"ingest": shared.route(name)}) for name in shared.routes}


def _chosen(each: Mapping[str, Settings]) -> str | None:
    """The route that the command line names."""
    chosen = asked_dataset()
    if chosen is not None and chosen not in each:
        raise SettingsError(f"--dataset {chosen}: ingest.routes has {', '.join(each)}")
    return chosen


def _alone(configured: Settings) -> Pipeline | ReaderPipeline:
    if configured.ingest.source != "kafka":
        return reader_pipeline_of(configured)
    return pipeline_of(configured, written=own_topics(configured))


def _pipeline(name: str, configured: Settings, written: Sequence[str], *, share: int) -> Pipeline:
    try:
        pipeline = pipeline_of(configured, written=written)
    except SettingsError as error:
        raise SettingsError(f"ingest.routes.{name}: {error}") from error
    return replace(pipeline, route=name, writes_max=max(_WRITES_MAX // share, 1))


def _routed(
    pipelines: Mapping[str, Pipeline], each: Mapping[str, Settings], shared: IngestSettings
) -> dict[str, Pipeline]:
    """The pipelines, each with what it takes from its topics."""
    routes = {
        name: Route(
            topics=one.topics, topic_pattern=one.topic_pattern, values=frozenset(each[name].ingest.route_values)
        )
        for name, one in pipelines.items()
    }
    routing = Routing(
        by="header" if shared.route_header else "field",
        name=shared.route_header or shared.route_column,
        routes=list(routes.values()),
        unmatched_bad=shared.unmatched == "error",
    )
    return {name: replace(one, filter_of=partial(routing.filter_of, routes[name])) for name, one in pipelines.items()}
