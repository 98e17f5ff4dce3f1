#!/bin/sh
# The system packages with which `make test-deploy` tests everything: etcd below a Kubernetes API server, Prometheus with
# promtool, what builds an image without an engine, and a browser. Installs what is missing, where it may; else says what that is.
#
# With systemd, Debian starts etcd and Prometheus as services too. The tests start their own and don't need those:
# systemctl disable --now etcd prometheus
set -eu

missing=""
needs() { # a program or file, and the Debian package that brings it
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing="$missing $2"
}
needs etcd etcd-server
needs prometheus prometheus
needs openssl openssl
needs buildah buildah
needs chromium chromium
needs debootstrap debootstrap
needs /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "This machine lacks what these Debian packages bring:$missing" >&2
    echo "Install the same from where your system has it; the tests that need what is not there will be skipped." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "This machine lacks packages; run: sudo apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "==> Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
apt-get install --yes -qq --no-install-recommends $missing
