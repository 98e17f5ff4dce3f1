"""What the pages tell operators to type: it exists, and a Kubernetes API server obeys it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from committerd.__main__ import cli
from committerd.settings.load import load_settings
from tests.deploy.chart import FOLDER as CHART
from tests.deploy.chart import Chart, environment
from tests.deploy.parts_kubernetes import KubeApiServer

ROOT = CHART.parents[1]
OPERATING = (CHART / "README.md").read_text(encoding="utf-8")
NEEDS_PODS = ("kubectl drain", "kubectl exec", "helm test")
"""Nothing is scheduled in the tests' cluster."""


def block(text: str, language: str = "") -> str:
    """The first one of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def spans(text: str) -> list[str]:
    """What stands in backticks; in a table a bar has a backslash."""
    return [span.replace(r"\|", "|") for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)]


def test_the_values_of_the_page_are_taken_by_chart_and_daemon(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = chart.render(yaml.safe_load(block(OPERATING, "yaml")), release="committerd")
    (deployment,) = rendered.of("Deployment")
    assert deployment["metadata"]["name"] == "committerd-events"
    for name, value in environment(deployment["spec"]["template"]).items():
        monkeypatch.setenv(name, value if isinstance(value, str) else "made-up")
    assert load_settings().kafka.sasl_mechanism == "SCRAM-SHA-512"


def missing(command: str) -> str | None:
    """What of a command of ours there is not: a command or an option."""
    found: click.Command = cli
    for word in shlex.split(command, comments=True)[1:]:
        if isinstance(found, click.Group) and not word.startswith("--"):
            inner = found.get_command(click.Context(found), word)
            if inner is None:
                return word
            found = inner
        elif word.startswith("--") and word != "--help" and not any(word in option.opts for option in found.params):
            return word
    return None


def named(page: Path) -> list[str]:
    """Commands of ours on a page: in backticks, as a line of a block, or behind `kubectl exec ... --` and the like."""
    text = page.read_text(encoding="utf-8")
    found = [span for span in spans(text) if re.match(r"committerd [a-z]", span)]
    found += [match[1] for match in re.finditer(r"(?:--|exec committerd) (committerd [a-z][^`\n]*)", text)]
    for inside in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found += re.findall(r"^(?:\$ )?(committerd [a-z].*)$", inside, re.MULTILINE)
    return found


FOLDERS = ("deploy", "docs", "helm", "producers")
WITH_COMMANDS = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_our_commands_and_their_options_exist(page: Path) -> None:
    commands = named(page)
    assert not {command: missing(command) for command in commands if missing(command) and "..." not in command}


def test_commands_are_found() -> None:
    pages = {str(page.relative_to(ROOT)) for page in WITH_COMMANDS if named(page)}
    assert {
        "README.md",
        "docs/commands.md",
        "docs/operating.md",
        "helm/committerd/README.md",
        "deploy/README.md",
    } <= pages


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    assert missing("committerd position reset") == "reset"
    assert missing("committerd position adopt --force") == "--force"


def test_the_api_server_obeys_what_the_page_says(chart: Chart, cluster: KubeApiServer, tmp_path: Path) -> None:
    """In their order: install, upgrade, go back, rotate, scale."""
    told = block(OPERATING[OPERATING.index("## Install") :]).splitlines()
    told += [
        span for span in spans(OPERATING[OPERATING.index("## Operate") :]) if re.match(r"(kubectl|helm) .*--", span)
    ]
    commands = [command for command in told if not command.startswith(NEEDS_PODS)]
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no `kubectl`: https://kubernetes.io/docs/tasks/tools")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to(chart.helm)
    shutil.copytree(chart.folder, tmp_path / "helm" / "committerd")
    (tmp_path / "values.yaml").write_text(block(OPERATING, "yaml"))
    (tmp_path / "kafka-login.env").write_text("username=one\npassword=two\n")
    outside = {"PATH": f"{tmp_path / 'bin'}:{Path(kubectl).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done: list[str] = []
    for command in commands:
        run = command.replace("/NAME", "/committerd-events")
        if run.startswith("helm"):  # no Pod would become Ready, and no hook run
            run = run.replace(" --wait", "") + " --no-hooks"
        if " rollout status " in run:
            run += " --watch=false"
        answer = subprocess.run(
            run,
            shell=True,
            cwd=tmp_path,
            env=outside | {"KUBECONFIG": str(cluster.kubeconfig())},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert answer.returncode == 0, f"{run}\n{answer.stdout}{answer.stderr}"
        done.append(" ".join(command.split()[:2]))
    assert {
        "helm install",
        "helm upgrade",
        "helm rollback",
        "kubectl create",
        "kubectl rollout",
        "kubectl scale",
    } <= set(done)
    scaled = cluster.ask("GET", "/apis/apps/v1/namespaces/lake/deployments/committerd-events").body
    assert scaled["spec"]["replicas"] == 0
    assert "kubectl.kubernetes.io/restartedAt" in scaled["spec"]["template"]["metadata"]["annotations"]
