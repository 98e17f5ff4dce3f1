#!/bin/sh
# Choose a Python, or say how to get one, before any download; then hand over to bootstrap.py.
#
# PYTHON=/path/to/python chooses the interpreter. Arguments are those of bootstrap.py. Java and Go are not asked for: the
# Java that runs Apache Kafka is a Python package, and of the tests only those of Spark need another one, and those on S3
# need Go. bootstrap.py says so.
set -eu
cd "$(dirname "$0")/.."

# Is it new enough, and was it built with profile-guided optimisation? Without, committerd is a fifth slower. What
# distributions install in /usr has it, and not all say so in CONFIG_ARGS; what version managers compile often has not.
judge() { # 0: yes; 3: usable, not optimised; anything else: not usable
    "$1" -c '
import sys, sysconfig, venv, ensurepip
optimised = sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
sys.exit(1 if sys.version_info < (3, 11) else 0 if optimised else 3)' >/dev/null 2>&1
}

choose() { # The first on the PATH that is optimised, or the first usable one.
    usable=""
    IFS=:
    for name in python3 python3.13 python3.12 python3.11; do
        for folder in $PATH; do
            [ -x "$folder/$name" ] || continue
            verdict=0
            judge "$folder/$name" || verdict=$?
            case $verdict in
            0) echo "$folder/$name" && return ;;
            3) usable=${usable:-$folder/$name} ;;
            esac
        done
    done
    echo "$usable"
}

if [ -z "${PYTHON:-}" ]; then
    python=$(choose)
else
    python=$PYTHON
    judge "$python" || [ $? -eq 3 ] || python=""
fi
if [ -z "$python" ]; then
    cat >&2 <<END
This machine lacks:

  ${PYTHON:+$PYTHON is not }Python 3.11 or newer, with venv
      Debian, Ubuntu:  sudo apt-get install python3 python3-venv
      Fedora:          sudo dnf install python3.13
      macOS:           brew install python@3.13
END
    exit 1
fi
exec "$python" scripts/bootstrap.py "$@"
