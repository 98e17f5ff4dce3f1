"""helm, which packages the chart, and installs it in tests."""

from harness.golang import GoProgram

HELM = GoProgram(name="helm", version="v3.22.0", package="helm.sh/helm/v3/cmd/helm", binary="helm")
