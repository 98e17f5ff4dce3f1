"""Prometheus starts, scrapes, evaluates, and reports an invalid query; a missing program is named."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import PartMissingError
from harness.prometheus import Prometheus, Target, promtool
from harness.scene import until

RULES = """
groups:
  - name: one
    rules:
      - {alert: Answer, expr: answer == 42, for: 1s, labels: {severity: info}}
      - {alert: NoAnswer, expr: answer != 42}
"""


class Metrics(http.server.BaseHTTPRequestHandler):
    """One metric, always the same."""

    def do_GET(self) -> None:
        body = b"# TYPE answer gauge\nanswer 42\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def served() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_it_scrapes_evaluates_and_keeps_what_it_has_seen_over_a_crash(served: str) -> None:
    prometheus = Prometheus(targets=[Target(served, {"dataset": "events"})], rules=RULES)
    try:
        prometheus.start()
    except PartMissingError as error:
        prometheus.close()
        pytest.skip(str(error))
    with contextlib.closing(prometheus):
        until(lambda: bool(prometheus.alerts("Answer")))
        (series,) = prometheus.query("answer")
        assert (series.labels["dataset"], series.samples[0][1]) == ("events", 42)
        until(lambda: prometheus.alerts("Answer")[0]["state"] == "firing")
        assert prometheus.alerts("NoAnswer") == []
        assert [rule["name"] for rule in prometheus.rules()] == ["Answer", "NoAnswer"]
        with pytest.raises(ValueError, match=r"bad_data: .*parse error"):
            prometheus.query("answer{")
        seen, url = series.samples[0][0], prometheus.url
        prometheus.kill()
        prometheus.start()
        assert prometheus.url == url
        assert prometheus.query_range("answer", start=seen - 5, end=seen)


def test_promtool_says_what_is_wrong_with_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(RULES)
    try:
        assert promtool("check", "rules", file)[0]
    except PartMissingError as error:
        pytest.skip(str(error))
    file.write_text(RULES.replace("42, for", "(42, for"))
    good, said = promtool("check", "rules", file)
    assert not good
    assert "parse" in said


def test_a_missing_program_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PartMissingError, match="no `prometheus`: install Prometheus"), Prometheus(targets=[]):
        pass
    with pytest.raises(PartMissingError, match="no `promtool`: install Prometheus"):
        promtool("check", "rules", tmp_path)
