"""Values that can't be right are refused by `helm install`, with a sentence that says what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from committerd.settings.dataset import DatasetSettings
from committerd.settings.kafka import KafkaSettings
from tests.deploy.chart import FOLDER, MINIMAL, Chart, merged

DATASET: dict[str, Any] = dict(MINIMAL["datasets"][0])


@pytest.mark.parametrize(
    ("wishes", "named"),
    [
        ({"replica": 2}, "replica"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"settings": {"kafka": {"bootstrap_server": "a:1"}}}, "bootstrap_server"),
        ({"settings": {"kafak": {}}}, "kafak"),
        ({"settings": {"commit": {"group_records_max": 0}}}, "group_records_max"),
        ({"settings": {"commit": {"verify_files": "sometimes"}}}, "verify_files"),
        ({"settings": {"commit": {"allowed_operations": ["appendd"]}}}, "allowed_operations"),
        ({"settings": {"kafka": {"sasl_plain_password": "secret"}}}, "sasl_plain_password"),
        ({"settings": {"s3": {"secret_access_key": "secret"}}}, "secret_access_key"),
        ({"settings": {"dataset": {"name": "x"}}}, "dataset"),
        ({"datasets": [{"name": "events"}]}, "uri"),
        ({"datasets": [{**DATASET, "name": "with space"}]}, "name"),
        ({"datasets": {"events": {"replicas": 2}}}, "uri"),
        ({"datasets": {"with space": {"uri": "s3://lake/events.lance"}}}, "with space"),
        ({"datasets": {"events": {"uri": "s3://lake/events.lance", "setings": {}}}}, "setings"),
        ({"datasets": [{**DATASET, "setings": {}}]}, "setings"),
        ({"datasets": [{**DATASET, "settings": {"http": {"port": 1}}}]}, "http"),
        ({"livenessProbe": {"httpGet": {"path": "/"}}}, "httpGet"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
)
def test_what_the_schema_does_not_know(chart: Chart, wishes: dict[str, Any], named: str) -> None:
    said = chart.refusal(merged(MINIMAL, wishes))
    assert "values don't meet the specifications of the schema" in said
    assert named in said


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"terminationGracePeriodSeconds": 24}, "the grace must be at least 5 seconds longer"),
        ({"settings": {"daemon": {"drain_seconds": 60}}}, "terminationGracePeriodSeconds is 30"),
        (
            {"datasets": [{**DATASET, "settings": {"daemon": {"drain_seconds": 25.5}}}]},
            'dataset "events": terminationGracePeriodSeconds is 30 and settings.daemon.drain_seconds 25.5',
        ),
        ({"startupProbe": {"failureThreshold": 30}}, "raise startupProbe.failureThreshold"),
        ({"settings": {"kafka": {"bootstrap_servers": []}}}, "settings.kafka.bootstrap_servers is missing"),
        ({"settings": {"http": {"port": 0}}}, "settings.http.port is 0"),
        ({"datasets": [DATASET, DATASET]}, 'dataset "events" is in `datasets` twice'),
        ({"datasets": [DATASET, {**DATASET, "branch": "main"}]}, 'dataset "events" is in `datasets` twice'),
        (
            {"datasets": [{**DATASET, "branch": "exp"}, {**DATASET, "name": "other", "branch": "exp"}]},
            'datasets "events.tree.exp" and "other.tree.exp" are one table',
        ),
        (
            {"extraEnv": [{"name": "COMMITTERD_DATASET__BRANCH", "value": "exp"}]},
            'dataset "events": extraEnv sets COMMITTERD_DATASET__BRANCH',
        ),
        ({"datasets": [{**DATASET, "uri": "/data/events.lance"}]}, "mount one with extraVolumes"),
        ({"datasets": [{**DATASET, "uri": "s3://key:hidden@lake/events.lance"}]}, "hold a user or password"),
        ({"datasets": [{**DATASET, "aliases": ["s3a://key:hidden@lake/events.lance"]}]}, "hold a user or password"),
        ({"datasets": [{**DATASET, "uri": "abfss://me:hidden@a.example.com/events.lance"}]}, "hold a user or password"),
        ({"datasets": [{**DATASET, "uri": "abfss://lake@me:hidden@a.example.com/t"}]}, "hold a user or password"),
        ({"settings": {"kafka": {"bootstrap_servers": ["me:hidden@broker:9092"]}}}, "bootstrap_servers holds a user"),
        (
            {"datasets": [DATASET, {"name": "again", "uri": "s3a://lake/events.lance/"}]},
            'datasets "events" and "again" are one table, s3a://lake/events.lance/',
        ),
        (
            {
                "datasets": [
                    {**DATASET, "aliases": ["s3://x/y"]},
                    {"name": "again", "uri": "s3+ddb://x/y?ddbTableName=t"},
                ]
            },
            'datasets "events" and "again" are one table',
        ),
        (
            {"settings": {"kafka": {"heartbeat_interval_ms": 10000}}},
            "heartbeat_interval_ms (10000) must be at most a third",
        ),
        (
            {"settings": {"kafka": {"session_timeout_ms": 1000, "heartbeat_interval_ms": 400}}},
            "settings.kafka.session_timeout_ms (1000)",
        ),
        (
            {"extraEnv": [{"name": "COMMITTERD_DATASET__URI", "value": "s3://lake/other.lance"}]},
            'dataset "events": extraEnv sets COMMITTERD_DATASET__URI',
        ),
        (
            {"datasets": [{**DATASET, "extraEnv": [{"name": "COMMITTERD_DATASET__NAME", "value": "other"}]}]},
            'dataset "events": extraEnv sets COMMITTERD_DATASET__NAME',
        ),
        ({"settings": {"kafka": {"security_protocol": "SASL_SSL"}}}, "SASL_SSL needs settings.kafka.sasl_mechanism"),
        ({"settings": {"kafka": {"sasl_mechanism": "PLAIN"}}}, "sasl_mechanism needs settings.kafka.security_protocol"),
        (
            {"prometheusRule": {"enabled": True, "disabled": ["CommitterdStaled"]}},
            'prometheusRule.disabled names "CommitterdStaled", and there is no such alert',
        ),
    ],
)
def test_what_contradicts_itself(chart: Chart, wishes: dict[str, Any], sentence: str) -> None:
    said = chart.refusal(merged(MINIMAL, wishes))
    assert sentence in said
    assert "hidden" not in said


def test_the_checks_know_the_committers_own_defaults(chart: Chart) -> None:
    """A session time-out that committerd takes without a heartbeat interval, the chart takes too."""
    template = (FOLDER / "templates" / "_settings.tpl").read_text(encoding="utf-8")
    assumed = {name: int(value) for value, name in re.findall(r"default (\d+) \$kafka\.(\w+)", template)}
    assert assumed == {name: KafkaSettings.model_fields[name].default for name in assumed}
    assert set(assumed) == {"session_timeout_ms", "heartbeat_interval_ms"}
    assert chart.render(merged(MINIMAL, {"settings": {"kafka": {"session_timeout_ms": 1000}}})).one("Deployment")


def test_a_grace_that_is_just_long_enough_is_taken(chart: Chart) -> None:
    assert chart.render(merged(MINIMAL, {"terminationGracePeriodSeconds": 25})).one("Deployment")


@pytest.mark.parametrize(
    "uri",
    [
        "s3+ddb://lake/events.lance?ddbTableName=versions",
        "az://lake/events.lance",
        "abfss://lake@account.dfs.core.windows.net/events.lance",
        "gs://lake/events.lance",
    ],
)
def test_a_table_in_a_cloud_needs_no_volume(chart: Chart, uri: str) -> None:
    assert DatasetSettings(name="events", uri=uri).place == uri
    assert chart.render(merged(MINIMAL, {"datasets": [{**DATASET, "uri": uri}]})).one("Deployment")


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"envFrom": [{"secretRef": {"name": "kafka"}}]},
        {"extraEnv": [{"name": "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS", "value": "b:1"}]},
        {"datasets": [{**DATASET, "settings": {"kafka": {"bootstrap_servers": ["b:1"]}}}]},
        {"datasets": [{**DATASET, "envFrom": [{"configMapRef": {"name": "kafka"}}]}]},
    ],
)
def test_brokers_may_be_named_elsewhere(chart: Chart, elsewhere: dict[str, Any]) -> None:
    wishes: dict[str, Any] = {"settings": {"kafka": {"bootstrap_servers": []}}}
    assert chart.render(merged(MINIMAL, wishes, elsewhere)).one("Deployment")


def test_without_datasets_nothing_runs(chart: Chart) -> None:
    rendered = chart.render({})
    assert not list(rendered.pods())
    assert {one["kind"] for one in rendered.objects} == {"Service", "ServiceAccount"}
