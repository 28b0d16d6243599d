"""Runs deploy/docker/service.Dockerfile without a container engine: the COPY and RUN steps of its build stage, in
a clean folder, and its command.

Not shown here: the base images, the user, and that the image builds. A container engine shows those.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy/docker/service.Dockerfile").read_text()
COMPOSED = [
    service
    for file in ("docker-compose.yml", "docker-compose.bundle.yml")
    for service in yaml.safe_load((ROOT / file).read_text())["services"].values()
]
MEMBERS = sorted({service["build"]["args"]["SERVICE"] for service in COMPOSED if "build" in service})
BUNDLE = "bundle"
UV = shutil.which("uv", path=f"{ROOT / '.uv' / 'bin'}{os.pathsep}{os.environ['PATH']}")

pytestmark = [
    pytest.mark.skipif(UV is None, reason="uv isn't here; `make test` gets one"),
    # Wheels come from uv's cache, or once from the package index.
    pytest.mark.timeout(600),
]


def _build(member: str, folder: Path) -> list[str]:
    """Run the build stage's COPY and RUN steps in `folder`; returns the commands that were run."""
    stage = DOCKERFILE.partition("AS build")[2].partition("\nFROM")[0]
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")},
        "UV_PYTHON_DOWNLOADS": "never",
        "SERVICE": member,
    }
    ran: list[str] = []
    for line in stage.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, target = line.split()[1:]
            for source in sources:
                _copy(ROOT / source, folder / (target if target != "./" else source))
        elif line.startswith("RUN "):
            command = re.sub(r"--mount=\S+ ", "", line.removeprefix("RUN ")).replace("uv sync", f"{UV} sync", 1)
            done = subprocess.run(
                ["sh", "-c", command], check=False, cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            ran.append(command)
    return ran


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copy(source, target)
    else:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("tests", "__pycache__"))


@pytest.mark.parametrize("member", MEMBERS)
def test_the_uv_steps_make_an_environment_with_this_member_alone(member: str, tmp_path: Path) -> None:
    assert len([command for command in _build(member, tmp_path) if f"{UV} sync" in command]) == 2
    binaries = tmp_path / ".venv" / "bin"
    for source in ("contracts", "shared", "services", "tools"):
        shutil.rmtree(tmp_path / source)  # the second stage copies the environment alone
    installed = {path.name.partition("-")[0] for path in tmp_path.glob(".venv/lib/python*/site-packages/*.dist-info")}
    assert {"pytest", "hypothesis", "pointsman_testing", "matplotlib"} & installed == set()
    if member not in ("cli", "simulator"):
        others = {f"pointsman_{path.name.replace('-', '_')}" for path in (ROOT / "services").iterdir()}
        assert installed & others == (others if member == BUNDLE else {f"pointsman_{member.replace('-', '_')}"})
    # As the image runs it. Settings that a service refuses end it before it connects to anything.
    command = json.loads(DOCKERFILE.rpartition("\nCMD ")[2])
    if member == BUNDLE:
        [command] = [service["command"] for service in COMPOSED if service.get("image") == f"pointsman/{BUNDLE}"]
    answer = subprocess.run(
        command,
        env={
            "PATH": f"{binaries}:/usr/bin:/bin",
            "SERVICE": member,
            "POINTSMAN_NATS_URL": "nats://elsewhere.example:4222",
            "POINTSMAN_ENGINE_URL": "http://127.0.0.1:8000",
            "POINTSMAN_POOL": "pool",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if member in ("cli", "simulator"):
        name = "pointsman" if member == "cli" else "pointsman-simulator"
        assert f"usage: {name}" in (answer.stdout + answer.stderr).lower()
    else:
        assert answer.returncode == 78, answer.stderr
        assert "elsewhere.example is not this host and no credentials are set" in answer.stderr


def test_a_build_without_a_service_says_so(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no SERVICE: build with --build-arg SERVICE=scheduler"):
        _build("", tmp_path)


def test_the_user_of_the_image_has_a_home() -> None:
    assert re.search(r"useradd .*--create-home .*--uid 10001", DOCKERFILE)
