#!/bin/sh
# Name everything that this machine lacks, at once and before any download; then hand over to bootstrap.py.
#
# PYTHON=/path/to/python chooses the interpreter. With KAFKA_BOOTSTRAP_SERVERS set, Java and Maven are not needed.
# Arguments are those of bootstrap.py. Go is not asked for: only tests on S3 need it, and bootstrap.py says so.
set -eu
cd "$(dirname "$0")/.."

missing="" hint=""
lacks() { # what it is, how to get it on Debian, Fedora and macOS
    missing="$missing
  $1
      Debian, Ubuntu:  $2
      Fedora:          $3
      macOS:           $4
"
}

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
[ -n "$python" ] || lacks "${PYTHON:+$PYTHON is not }Python 3.11 or newer, with venv" \
    "sudo apt-get install python3 python3-venv" "sudo dnf install python3.13" "brew install python@3.13"

if [ -z "${KAFKA_BOOTSTRAP_SERVERS:-}" ]; then
    java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    hint="Java and Maven are not needed where KAFKA_BOOTSTRAP_SERVERS=host:port names a Kafka that runs."
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || version=""
    [ "${version:-0}" -ge 17 ] || lacks "Java 17 or newer, for Apache Kafka ($java: ${version:-not found})" \
        "sudo apt-get install openjdk-17-jre-headless" "sudo dnf install java-21-openjdk-headless" \
        "brew install openjdk"
    command -v mvn >/dev/null 2>&1 || lacks "Maven, which downloads Apache Kafka" \
        "sudo apt-get install maven" "sudo dnf install maven" "brew install maven"
fi

if [ -n "$missing" ]; then
    {
        echo "This machine lacks:"
        echo "$missing"
        case $missing in *Java* | *Maven*) echo "$hint" ;; esac
    } >&2
    exit 1
fi
exec "$python" scripts/bootstrap.py "$@"
