#!/usr/bin/env bash
# Fetches the source release of the PyIceberg that is locked, and makes an environment in which its tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$PWD/.cache/pyiceberg-suite
version=$(sed -n 's/^pyiceberg==\([0-9.]*\).*/\1/p' requirements/dev.txt)
[ "$version" = "$(cat "$place/version" 2>/dev/null || true)" ] && exit
rm -rf "$place" && mkdir -p "$place"
echo "setup: fetching the tests of PyIceberg $version" >&2
"${PYTHON:-python3}" -m pip download -q --no-deps --no-binary :all: -d "$place" "pyiceberg==$version"
tar -xzf "$place"/pyiceberg-*.tar.gz -C "$place" --strip-components=1 "pyiceberg-$version/tests" "pyiceberg-$version/pyproject.toml"
.venv/bin/uv venv -q "$place/venv"
# what is locked here, and what the tests need besides: those are not locked, as nothing of ours depends on them
.venv/bin/uv pip install -q --python "$place/venv/bin/python" -r requirements/dev.txt \
  "pyiceberg[sql-sqlite,hive]==$version" "moto[server]" pytest-lazy-fixtures requests-mock
.venv/bin/uv pip install -q --python "$place/venv/bin/python" --no-deps -e .
echo "$version" >"$place/version"
