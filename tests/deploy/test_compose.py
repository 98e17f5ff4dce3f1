"""deploy/docker-compose.yml: Docker Compose accepts it, and what it says fits the images, the tests and the daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

import committerd
from committerd.settings.load import load_settings
from harness.s3 import VERSITYGW
from tests.deploy.compose import FILE, Compose, ComposeError, Service
from tests.deploy.image import DOCKERFILE

DEPLOY = FILE.parent
LOCKS = (DEPLOY.parent / "committerd" / "dev" / "resources", DEPLOY.parent / "harness" / "resources" / "jars")
OURS = ("committerd", "producer", "store", "topics")
ONE_SHOTS = {"producer", "store", "topics"}
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"


def pinned(part: str) -> str:
    """The newest version whose jars are locked."""
    locks = [path.stem for folder in LOCKS for path in folder.glob(f"{part}-[0-9]*.lock")]
    return max((one.removeprefix(f"{part}-") for one in locks), key=lambda one: [int(n) for n in one.split(".")])


def checked(service: Service) -> bool:
    """Whether it has a healthcheck of its own, or its image one that is not switched off."""
    own = service.get("healthcheck")
    return bool(own and own.get("test")) or (own is None and service.get("build", {}).get("target") == "committerd")


def test_compose_refuses_what_it_does_not_know(compose: Compose, tmp_path: Path) -> None:
    assert {*OURS, "kafka", "s3", "dynamodb", "prometheus", "grafana"} == set(compose.services)
    worse = tmp_path / FILE.name
    worse.write_text(FILE.read_text(encoding="utf-8").replace("depends_on:", "depend_on:"))
    with pytest.raises(ComposeError, match="depend_on"):
        Compose.loaded(worse)


def test_images_are_pinned_to_what_the_tests_run(compose: Compose) -> None:
    images = {name: service["image"] for name, service in compose.services.items()}
    assert images["kafka"] == f"apache/kafka:{pinned('kafka')}"
    assert images["s3"] == f"versity/versitygw:{VERSITYGW.version}"
    assert images["dynamodb"] == f"amazon/dynamodb-local:{pinned('dynamodb-local')}"
    assert images["committerd"] == images["store"] == images["topics"] == f"committerd:{committerd.__version__}"
    assert images["producer"] == f"committerd-producer:{committerd.__version__}"
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images.values())


def test_what_is_built_and_what_is_mounted_is_there(compose: Compose) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    for name in OURS:
        build = compose.services[name]["build"]
        assert Path(build["context"], build["dockerfile"]) == DOCKERFILE
        assert build["target"] in stages
    mounts = [mount for service in compose.services.values() for mount in service.get("volumes", ())]
    ours = [mount for mount in mounts if mount["type"] == "bind"]
    assert len(ours) == 5
    for mount in ours:
        assert Path(mount["source"]).exists(), mount["source"]
        assert mount["read_only"] is True


def test_ports_are_open_to_this_machine_only(compose: Compose) -> None:
    ports = [port for service in compose.services.values() for port in service.get("ports", ())]
    assert len(ports) == 6
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_our_containers_may_do_no_more_than_the_charts_pods(compose: Compose) -> None:
    for name in OURS:
        service = compose.services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["tmpfs"] == ["/tmp"]


def test_whatever_runs_on_has_a_healthcheck_and_whatever_ends_is_awaited(compose: Compose) -> None:
    for name, service in compose.services.items():
        if name in ONE_SHOTS:
            assert service["restart"] == "no"
            assert service["healthcheck"] == {"disable": True}
        else:
            assert checked(service), name
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert checked(compose.services[other]), f"{name} waits for {other} in vain"
            else:
                assert (how["condition"], other in ONE_SHOTS) == ("service_completed_successfully", True)
    assert set(compose.services["committerd"]["depends_on"]) == {"store", "topics"}


@pytest.mark.parametrize("service", ["committerd", "topics"])
def test_the_daemon_accepts_its_settings(compose: Compose, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in compose.environment(service).items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.dataset.name == "events"
    words = compose.services["producer"]["command"]
    assert f"--dataset={settings.dataset.name}" in words
    assert f"--bootstrap-servers={settings.kafka.bootstrap_servers[0]}" in words
    made = compose.environment("store")
    assert settings.dataset.uri == f"s3+ddb://{made['STORE_BUCKET']}/events.lance?ddbTableName={made['STORE_TABLE']}"
    grace = compose.services["committerd"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= settings.daemon.drain_seconds + 5


def test_keys_and_passwords_are_those_of_a_demo_and_can_be_others(compose: Compose) -> None:
    other = Compose.loaded(DEMO_ACCESS_KEY="mine", DEMO_SECRET_KEY="hidden", GRAFANA_PASSWORD="also")
    for name in OURS:
        if name != "topics":
            assert other.environment(name)["AWS_ACCESS_KEY_ID"] == other.environment("s3")["ROOT_ACCESS_KEY"] == "mine"
            assert other.environment(name)["AWS_SECRET_ACCESS_KEY"] == "hidden"
    assert other.environment("s3")["ROOT_SECRET_KEY"] == "hidden"
    assert other.environment("grafana")["GF_SECURITY_ADMIN_PASSWORD"] == "also"
    assert compose.environment("s3")["ROOT_ACCESS_KEY"].startswith("demo")


def test_prometheus_accepts_its_configuration_and_scrapes_the_members(compose: Compose) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no `promtool`: run scripts/install_deploy_parts.sh")
    done = subprocess.run([promtool, "check", "config", PROMETHEUS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    configuration = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))
    assert configuration["rule_files"] == ["../../helm/committerd/files/alerts.yml", "datasets.yml"]
    (alerts, _) = configuration["rule_files"]
    mounts = {mount["target"]: Path(mount["source"]) for mount in compose.services["prometheus"]["volumes"]}
    inside = Path(os.path.normpath(Path("/etc/prometheus", alerts)))
    assert mounts[str(inside.parent)] / inside.name == (PROMETHEUS.parent / alerts).resolve()
    (job,) = configuration["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert found["names"] == ["committerd"]
    exposed = re.search(r"^EXPOSE (\d+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert exposed
    assert found["port"] == int(exposed[1])


def test_grafana_finds_prometheus_and_the_dashboard(compose: Compose) -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    mounts = {mount["target"]: Path(mount["source"]) for mount in compose.services["grafana"]["volumes"]}
    assert mounts["/etc/grafana/provisioning"] == provisioning
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    address = urlsplit(source["url"])
    (port,) = compose.services["prometheus"]["ports"]
    assert (address.hostname, address.port) == ("prometheus", port["target"])
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "committerd.yml").read_text())["providers"]
    dashboards = mounts[provider["options"]["path"]]
    home = compose.environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (dashboards / Path(home).relative_to(provider["options"]["path"])).is_file()
