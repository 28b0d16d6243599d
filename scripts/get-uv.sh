#!/bin/sh
# Put a uv at .uv/bin/uv: a link to the one on PATH when it is new enough, otherwise one in a virtual environment.
# Needs Python 3.11 or newer and nothing else; installs nothing outside .uv/.
set -eu
cd "$(dirname "$0")/.."

oldest_uv=0.9

fail() {
    printf '\npointsman: %s\n' "$1" >&2
    exit 1
}

# Interpreters by other names are tried because `python3` is 3.9 or 3.10 on many systems that have a newer one too.
python=""
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11 or newer is needed; found $(python3 --version 2>&1 || echo 'no python3').
Install it (Debian and Ubuntu: apt install python3 python3-venv; macOS: brew install python3) and run make again."

rm -rf .uv
if command -v uv >/dev/null 2>&1 && "$python" - "$(uv --version)" "$oldest_uv" <<'PYTHON'
import re, sys
found, oldest = (tuple(map(int, re.findall(r"\d+", text)[:2])) for text in sys.argv[1:])
sys.exit(found < oldest)
PYTHON
then
    mkdir -p .uv/bin
    ln -s "$(command -v uv)" .uv/bin/uv
    exit 0
fi

echo "Getting uv into .uv/ ..."
"$python" -m venv .uv || fail "'$python -m venv' doesn't work here, and uv can't be installed without it.
Debian and Ubuntu: apt install python3-venv. Or install uv yourself, $oldest_uv or newer, and run make again."
.uv/bin/python -m pip install --quiet --disable-pip-version-check "uv>=$oldest_uv" \
    || fail "uv could not be installed from the Python package index; is there a network?"
