#!/bin/sh
# Write the path of the Python that runs Pointsman to .uv/interpreter: the first on PATH that is new enough, unless
# another one of this machine is faster by a tenth or more. Builds of one version differ by up to 40 %: pyenv's and a
# plain `./configure && make` lack the profile-guided optimization of the distributions' and python.org's, and every
# request pays for it. UV_PYTHON overrides the choice.
set -eu
cd "$(dirname "$0")/.."

python=""
fastest=""
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python \
    /usr/bin/python3 /usr/local/bin/python3 /opt/homebrew/bin/python3; do
    # Prints the path and the microseconds of the fastest of several rounds of what a request does most: calls,
    # attributes, small objects, dictionaries. Nothing is printed by a Python that is too old.
    measured=$("$candidate" -I -S - 2>/dev/null <<'PYTHON'
import os, sys, time
if sys.version_info < (3, 11):
    sys.exit(1)
class Request:
    __slots__ = ("number", "size")
    def __init__(self, number, size):
        self.number, self.size = number, size
    def cost(self, factor, *, base=1):
        return self.number * factor + base
def work():
    known = {}
    for number in range(10000):
        request = Request(number, number + 1)
        known[number % 100] = request.cost(2, base=request.size)
        key = f"{number}:{request.size}"
        known.get(key)
best = 1e9
for _ in range(25):
    began = time.process_time()
    work()
    best = min(best, time.process_time() - began)
print(int(best * 1e6), os.path.realpath(sys.executable))
PYTHON
    ) || continue
    took=${measured%% *}
    path=${measured#* }
    if [ -z "$python" ] || [ $((took * 10)) -le $((fastest * 9)) ]; then
        python=$path
        fastest=$took
    fi
done
[ -n "$python" ] || {
    printf '\npointsman: Python 3.11 or newer is needed; found none.\n' >&2
    exit 1
}
mkdir -p .uv
printf '%s\n' "$python" > .uv/interpreter
