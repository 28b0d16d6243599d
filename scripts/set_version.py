"""Write the workspace's version, that of the root's pyproject.toml, wherever a file must name it.

`python scripts/set_version.py [VERSION]` sets it first; without one it repeats what the root says.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_OWN: Final = re.compile(r'^version = "[^"]*"$', re.MULTILINE)
_CHART: Final = re.compile(r"^(version|appVersion): .*$", re.MULTILINE)
_VALID: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?")


def main() -> int:
    """Returns the exit code."""
    root = ROOT / "pyproject.toml"
    document = tomllib.loads(root.read_text())
    version = sys.argv[1] if len(sys.argv) > 1 else str(document["project"]["version"])
    if _VALID.fullmatch(version) is None:
        sys.stderr.write(f"{version}: not a version; write e.g. 0.2.0 or 0.2.0rc1\n")
        return 1
    members = [
        file
        for pattern in document["tool"]["uv"]["workspace"]["members"]
        for file in ROOT.glob(f"{pattern}/pyproject.toml")
    ]
    for file in (root, *members):
        file.write_text(_OWN.sub(f'version = "{version}"', file.read_text(), count=1))
    chart = ROOT / "deploy" / "helm" / "pointsman" / "Chart.yaml"
    chart.write_text(_CHART.sub(lambda found: f"{found[1]}: {version}", chart.read_text()))
    sys.stdout.write(f"{version} in {len(members) + 2} files; now run: .uv/bin/uv lock && make generate\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
