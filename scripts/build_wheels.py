"""Build the wheels of a release into a folder: one of every member that users get, and `pointsman`, which needs the
command and with it all services, in the same version.

Members are built from copies in which their metadata is complete: bounds of other projects come from the root's
`constraint-dependencies`, and members need each other in the same version. Two builds of one commit are the same bytes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
NOT_SHIPPED: Final = ("pointsman-testing",)
_EPOCH: Final = "315532800"
"""1980-01-01, the first day that a zip file can name."""
_UMBRELLA: Final = """\
[project]
name = "pointsman"
version = "{version}"
description = "An event-driven gateway for LLM inference: decides which model and which engine serves each request."
readme = "README.md"
requires-python = "{python}"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["pointsman-cli=={version}"]

[project.optional-dependencies]
onnx = ["pointsman-guard[onnx]=={version}", "pointsman-semantic-cache[onnx]=={version}"]

[project.scripts]
pointsman = "pointsman_cli.__main__:main"

[build-system]
requires = ["uv_build>=0.13,<0.14"]
build-backend = "uv_build"

[tool.uv.build-backend]
module-name = "pointsman"
module-root = ""
"""


def main() -> int:
    """Build; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go; emptied before")
    out: Path = parser.parse_args().out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = str(root["project"]["version"])
    bounds = {_name(each): each for each in root["tool"]["uv"]["constraint-dependencies"]}
    members = [
        file.parent
        for pattern in root["tool"]["uv"]["workspace"]["members"]
        for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for member in members:
            project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
            if project["name"] in NOT_SHIPPED:
                continue
            if project["version"] != version:
                sys.stderr.write(f"{member}: version {project['version']}, and the workspace has {version}\n")
                return 1
            _build(_copied(member, work, bounds, version), out)
        _build(_umbrella(work, version, root["project"]["requires-python"]), out)
    wheels = sorted(out.glob("*.whl"))
    sys.stdout.write(f"{len(wheels)} wheels of version {version} in {out}\n")
    return 0


def _copied(member: Path, work: Path, bounds: dict[str, str], version: str) -> Path:
    """The member with what a wheel needs: the package, its README, the licence and complete metadata."""
    document: dict[str, Any] = tomllib.loads((member / "pyproject.toml").read_text())
    module = document["tool"]["uv"]["build-backend"]["module-name"]
    copy = work / str(document["project"]["name"])
    shutil.copytree(member / module, copy / module, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(member / "README.md", copy)
    shutil.copy(ROOT / "LICENSE", copy)
    text = (member / "pyproject.toml").read_text()
    text = re.sub(r'(?<!name = )"([a-z0-9-]+)(\[[a-z0-9,-]+\])?"', lambda found: _bounded(found, bounds, version), text)
    text = text.replace(
        'classifiers = ["Private :: Do Not Upload"]', 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]'
    )
    text = text.replace("requires-python", 'readme = "README.md"\nrequires-python', 1)
    (copy / "pyproject.toml").write_text(text)
    return copy


def _bounded(found: "re.Match[str]", bounds: dict[str, str], version: str) -> str:
    name, extras = found[1], found[2] or ""
    if name.startswith("pointsman-"):
        return f'"{name}{extras}=={version}"'
    bound = bounds.get(name)
    return found[0] if bound is None else f'"{name}{extras}{bound.removeprefix(name)}"'


def _umbrella(work: Path, version: str, python: str) -> Path:
    folder = work / "pointsman"
    (folder / "pointsman").mkdir(parents=True)
    (folder / "pointsman" / "__init__.py").write_text(
        f'"""Pointsman, all of it in one version. The command is `pointsman`."""\n\n__version__ = "{version}"\n'
    )
    shutil.copy(ROOT / "README.md", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "pyproject.toml").write_text(_UMBRELLA.format(version=version, python=python))
    return folder


def _build(folder: Path, out: Path) -> None:
    uv = str(ROOT / ".uv" / "bin" / "uv")
    env = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    subprocess.run(
        [uv, "build", "--quiet", "--wheel", "--no-config", "--out-dir", str(out), str(folder)], check=True, env=env
    )
    for stray in out.glob(".gitignore"):
        stray.unlink()


def _name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    raise SystemExit(main())
