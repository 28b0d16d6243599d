"""The wheels of a release install into an empty environment, and do there what a new user tries."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest

from pointsman_testing import eventually

ROOT: Final = Path(__file__).resolve().parents[1]
UV: Final = str(ROOT / ".uv" / "bin" / "uv")
VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CONFIG: Final = """
pools: {own: {models: [llama], discovery: agents}}
models: {llama: {pool: own, cost: {input: 1000, output: 10000}}}
preprocessing:
  - {use: api-key-auth, stored: true}
  - {use: budget, name: keys, per: [key], claim: budget}
"""
START_S: Final = 180

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not Path(UV).exists(), reason="needs the uv of `make`")]


class Installed(NamedTuple):
    """An environment with nothing but the release in it, and a folder with nothing in it."""

    bin: Path
    folder: Path

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.bin / "pointsman"), *arguments],
            cwd=self.folder, env=self.env, check=False, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def env(self) -> Mapping[str, str]:
        """Nothing of this process's environment leads to the checkout."""
        return {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder), "COLUMNS": "80"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("home")
    environment = folder / "environment"
    _uv("venv", "--python", sys.executable, str(environment))
    # The versions that everything else is tested with.
    locked = folder / "locked.txt"
    _uv("export", "--frozen", "--no-emit-workspace", "--no-hashes", "--all-packages", "--output-file", str(locked))
    python = str(environment / "bin" / "python")
    release = f"pointsman=={VERSION}"
    _uv("pip", "install", "--python", python, "--find-links", str(wheels), "--constraints", str(locked), release)
    return Installed(environment / "bin", folder)


@pytest.fixture
async def gateway(installed: Installed) -> AsyncIterator[dict[str, str]]:
    """Where a gateway of the installed release is."""
    (installed.folder / "pointsman.yaml").write_text(CONFIG)
    run = installed.folder / "run"
    arguments = ["up", "--run-dir", str(run), "--port", "0", "--nats-port", "0", "--simulated", "1", "--speedup", "20"]
    with (installed.folder / "up.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            str(installed.bin / "pointsman"),
            *arguments,
            cwd=installed.folder,
            env=installed.env,
            stdout=log,
            stderr=log,
        )
    try:
        state = run / "state.json"
        await eventually(lambda: process.returncode is not None or state.exists(), timeout=START_S)
        assert process.returncode is None, (installed.folder / "up.log").read_text()
        yield json.loads(state.read_text())
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()


def test_two_builds_are_the_same_bytes_and_say_what_they_need(wheels: Path, tmp_path: Path) -> None:
    assert _hashes(_build(tmp_path)) == _hashes(wheels)
    names = {path.name.partition("-")[0] for path in wheels.iterdir()}
    assert {"pointsman", "pointsman_cli", "pointsman_frontend", "pointsman_contracts"} <= names
    assert "pointsman_testing" not in names


def test_the_demo_runs_where_there_is_no_checkout(installed: Installed) -> None:
    assert installed.run("--version") == f"pointsman {VERSION}\n"
    shown = installed.run("demo", "--simulated", "1", "--seconds", "1", "--clients", "2")
    assert "none failed" in shown
    assert "`pointsman up`" in shown


@pytest.mark.requirement("BUDGET-3")
async def test_a_key_is_served_until_its_budget_is_spent(installed: Installed, gateway: dict[str, str]) -> None:
    key = installed.run(
        "keys", "create", "--tenant", "acme", "--name", "first", "--budget", "0.10/d", "--nats", gateway["nats"]
    ).splitlines()[0]

    async with aiohttp.ClientSession() as http:

        async def served() -> bool:
            status, words = await _ask(http, gateway["door"], key)
            return status == 200 and bool(words)

        async def refused() -> str | None:
            status, words = await _ask(http, gateway["door"], key)
            return words if status == 402 else None

        await eventually(served)
        words = await eventually(refused)
    assert "udget keys (0.10 dollars a day per key)" in words
    assert "It has room for this request again on " in words


async def _ask(http: aiohttp.ClientSession, door: str, key: str) -> tuple[int, str]:
    """Status, and the text of the answer or the message of the error."""
    body = {"model": "llama", "prompt": "Count to three", "max_tokens": 4}
    headers = {"authorization": f"Bearer {key}"}
    async with http.post(f"{door}/v1/completions", json=body, headers=headers) as answer:
        document: dict[str, Any] = json.loads(await answer.read())
        return answer.status, document["error"]["message"] if "error" in document else document["choices"][0]["text"]


def _build(out: Path) -> Path:
    script = str(ROOT / "scripts" / "build_wheels.py")
    subprocess.run([sys.executable, script, "--out", str(out)], check=True, capture_output=True)
    return out


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _uv(*arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run([UV, "--quiet", *arguments], cwd=ROOT, env=env, check=True)
