"""The chart as a release packages it: installed from the package, it makes what it makes from its folder."""

from __future__ import annotations

from pathlib import Path

from scripts.release import building
from tests.deploy.chart import CASES, MINIMAL, Chart
from tests.deploy.parts_kubernetes import BUILDS, KubeApiServer
from tests.deploy.test_chart_on_kubernetes import Namespace

pytestmark = BUILDS


def test_the_package_installs_what_the_folder_does(chart: Chart, cluster: KubeApiServer, tmp_path: Path) -> None:
    with building.sources() as tree:
        building.chart(tree, tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    packaged = Chart(chart.helm, package)
    for values in CASES:
        assert packaged.render(values).objects == chart.render(values).objects
    namespace = Namespace(cluster)
    try:
        assert "logs --follow deployment/committerd-events" in namespace.install(packaged, dict(MINIMAL))
        assert namespace.ask("GET", "Deployment", name="committerd-events").status == 200
    finally:
        cluster.ask("DELETE", f"/api/v1/namespaces/{namespace.name}")
