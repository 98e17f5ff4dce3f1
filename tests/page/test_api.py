"""The page and its JSON on a real committer: what it says is true, is as described, and changes nothing."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from committerd.page import site
from committerd_client import staging
from committerd_common.messages import Status
from harness.child import Launch
from harness.daemon import Daemon
from harness.kafka import KafkaBroker, RunningKafka
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

_DESCRIPTION = json.loads((Path(site.__file__).parent / "resources" / "openapi.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def scene(
    kafka: KafkaBroker | RunningKafka, tmp_path_factory: pytest.TempPathFactory, launch: Launch
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("page")
    with Scene(kafka=kafka.bootstrap_servers, name=f"t-{folder.name}", folder=folder, launch=launch) as made:
        made.table.create(10)
        yield made


@pytest.fixture(scope="module")
def daemon(scene: Scene) -> Daemon:
    """A committer that has committed, and refused over a conflict."""
    started = scene.started(**STAYS)
    row = f"id = {scene.table.ids()[0]}"
    first, second = (staging.delete(scene.table.open(), row).transaction for _ in range(2))
    assert scene.ask(first, producer="janitor")[0].status == Status.COMMITTED
    assert scene.ask(second)[0].status == Status.RETRYABLE
    scene.committed(3)
    return started


def _got(daemon: Daemon, path: str) -> Any:
    with urllib.request.urlopen(daemon.url() + path, timeout=60) as response:
        return json.loads(response.read())


def test_it_says_what_the_member_has_done(scene: Scene, daemon: Daemon) -> None:
    until(lambda: _got(daemon, "/api/status")["dataset"]["maintenance"]["problem"] == "")  # the store was read in time
    found = _got(daemon, "/api/status")
    (one,) = found["datasets"]
    assert (one["name"], one["uri"], one["well"], one["state"]) == (scene.name, scene.table.uri, True, "active")
    assert (one["version"], one["position"], one["member"]) == (scene.table.version, 5, "active")
    assert 0 < one["since_ms"] <= time.time() * 1000
    details = found["dataset"]
    assert details["conflicts"] == [{"operation": "delete", "over": "delete", "count": 1}]
    assert sum(minute["committed"] for minute in details["minutes"]) == 4
    assert details["maintenance"] == {"cleanup": None, "left_alone": [], "problem": ""}
    last = _got(daemon, "/api/transactions")["transactions"]
    assert [one["status"] for one in last] == ["COMMITTED"] * 3 + ["RETRYABLE", "COMMITTED"]
    assert last[-1]["producer"] == "janitor"
    assert (last[-2]["reason"], last[-2]["conflicting_version"]) == ("row_conflict", last[-1]["version"])


def test_the_page_runs_nothing_from_elsewhere(daemon: Daemon) -> None:
    with urllib.request.urlopen(daemon.url() + "/", timeout=60) as response:
        policy, body = response.headers["Content-Security-Policy"], response.read().decode()
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy
    assert "http:" not in body
    assert "https:" not in body


def test_reading_alone_is_answered(daemon: Daemon) -> None:
    for path in ("/", "/api/status", "/api/transactions"):
        request = urllib.request.Request(daemon.url() + path, data=b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 405
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(daemon.url() + "/api/status?dataset=none", timeout=60)
    assert missing.value.code == 404


_DESCRIBED = schemathesis.openapi.from_dict(_DESCRIPTION)


@_DESCRIBED.parametrize()
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described_whatever_is_asked(case: schemathesis.Case[Any], daemon: Daemon) -> None:
    case.call_and_validate(base_url=daemon.url())


def test_the_description_is_served(daemon: Daemon) -> None:
    assert _got(daemon, "/api/openapi.json") == _DESCRIPTION


def test_the_token_of_metrics_guards_it(scene: Scene, daemon: Daemon, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    guarded = scene.daemon(**STAYS, HTTP__TOKEN_FILE=str(token))
    guarded.wait_line("http.listening")
    basic = base64.b64encode(b"anybody:open sesame").decode()
    for path in ("/", "/page.js", "/page.css", "/api/status", "/api/transactions", "/api/openapi.json", "/metrics"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(guarded.url() + path, timeout=60)
        assert refused.value.code == 401
        assert 'Basic realm="committerd"' in ", ".join(refused.value.headers.get_all("WWW-Authenticate") or ())
        for credentials in ("Bearer open sesame", f"Basic {basic}"):
            request = urllib.request.Request(guarded.url() + path, headers={"Authorization": credentials})
            with urllib.request.urlopen(request, timeout=60) as response:
                assert response.status == 200
        request = urllib.request.Request(guarded.url() + path, headers={"Authorization": "Basic YTpi"})
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=60)
